"""Versioned states as files, `folder/run/owner/version`."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from shared.core.files import sync
from shared.storage.blobs import TEMPORARY, Parts, storage_errors, temporary, write_parts
from shared.storage.states.state_store import StateOwner, Version, buffers_of, checked

log = logging.getLogger(__name__)

_HEADER = struct.Struct("<8sQ32s16x")  # magic, length and sha256 of the content; 64 bytes
_MAGIC = b"STRATAV1"


class FileStateStore:
    """`StateStore` as files, which survive a crash whole or not at all.

    Args:
        folder: made if it is absent; one process owns it.
        fsync: whether `save` waits for the disk. Without it, a power cut may lose states that survive the end of the
            process; a half-written file is detected by its checksum.
    """

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        self._folder = folder
        self._fsync = fsync
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob(f"*/*/{TEMPORARY}*"):
                unfinished.unlink(missing_ok=True)

    def save(self, owner: StateOwner, version: Version, data: Parts) -> None:
        """See `StateStore.save`."""
        buffers = buffers_of(data)
        sha256 = hashlib.sha256()
        for buffer in buffers:
            sha256.update(buffer)
        header = _HEADER.pack(_MAGIC, sum(memoryview(b).nbytes for b in buffers), sha256.digest())
        path = self._path(owner, version)
        unfinished = path.with_name(TEMPORARY + path.name)
        with storage_errors(path), temporary(unfinished):
            self._make_folder(path.parent)
            unfinished.unlink(missing_ok=True)
            write_parts(unfinished, [header, *buffers], fsync=self._fsync)
            os.replace(unfinished, path)
            if self._fsync:
                sync(path.parent)

    def load(self, owner: StateOwner, version: Version) -> bytes | None:
        """See `StateStore.load`."""
        return _read(self._path(owner, version))

    def versions(self, owner: StateOwner) -> list[Version]:
        """See `StateStore.versions`; only the length of a file is checked here."""
        return [version for version in self._names(owner) if _is_whole(self._path(owner, version))]

    def forget_before(self, owner: StateOwner, committed: Version) -> None:
        """See `StateStore.forget_before`."""
        candidates = [version for version in self._names(owner) if version <= committed]
        if len(candidates) < 2:
            return
        newest = self._newest(owner, candidates)  # it is read, since a damaged file must not cost an older one
        self._remove(owner, [version for version in candidates if newest is not None and version < newest[0]])

    def forget_between(self, owner: StateOwner, first: Version, last: Version) -> None:
        """See `StateStore.forget_between`."""
        self._remove(owner, [version for version in self._names(owner) if first <= version < last])

    def drop_run(self, run_id: str) -> None:
        """See `StateStore.drop_run`."""
        _remove_tree(self._folder / _encoded(run_id))

    def owners(self, run_id: str) -> list[StateOwner]:
        """See `StateStore.owners`."""
        names = _listing(self._folder / _encoded(run_id))
        owners = [StateOwner(run_id, _decoded(name)) for name in names]
        return sorted(owner for owner in owners if self.versions(owner))

    def runs(self) -> list[str]:
        """See `StateStore.runs`."""
        runs = [_decoded(name) for name in _listing(self._folder)]
        return sorted(run_id for run_id in runs if self.owners(run_id))

    def _owner_folder(self, owner: StateOwner) -> Path:
        return self._folder / _encoded(owner.run_id) / _encoded(owner.key)

    def _path(self, owner: StateOwner, version: Version) -> Path:
        return self._owner_folder(owner) / checked(version).text

    def _names(self, owner: StateOwner) -> list[Version]:
        """Returns the versions with a file, damaged or not, oldest first."""
        return sorted(Version.parse(n) for n in _listing(self._owner_folder(owner)) if n[0] != TEMPORARY[0])

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        folder.mkdir(parents=True, exist_ok=True)
        if self._fsync:
            sync(folder.parent)
            sync(folder.parent.parent)

    def _newest(self, owner: StateOwner, candidates: list[Version]) -> tuple[Version, bytes] | None:
        for version in reversed(candidates):
            data = self.load(owner, version)
            if data is not None:
                return version, data
        return None

    def _remove(self, owner: StateOwner, versions: Iterable[Version]) -> None:
        with storage_errors(self._folder):
            for version in versions:
                self._path(owner, version).unlink(missing_ok=True)


def _encoded(text: str) -> str:
    """Returns a file name; its first character keeps `.` and `..` from meaning folders."""
    return "=" + quote(text, safe="")


def _decoded(name: str) -> str:
    return unquote(name[1:])


def _listing(folder: Path) -> list[str]:
    with storage_errors(folder):
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []


def _is_whole(path: Path) -> bool:
    with storage_errors(path), path.open("rb") as file:
        header = file.read(_HEADER.size)
        size = os.fstat(file.fileno()).st_size
    return len(header) == _HEADER.size and _HEADER.unpack(header)[:2] == (_MAGIC, size - _HEADER.size)


def _read(path: Path) -> bytes | None:
    with storage_errors(path):
        try:
            with path.open("rb") as file:
                header, data = file.read(_HEADER.size), file.read()
        except FileNotFoundError:
            return None
    if len(header) == _HEADER.size:
        magic, size, sha256 = _HEADER.unpack(header)
        if (magic, size) == (_MAGIC, len(data)) and hashlib.sha256(data).digest() == sha256:
            return data
    log.warning("state %s is damaged and counts as absent", path)
    return None


def _remove_tree(folder: Path) -> None:
    with storage_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)
