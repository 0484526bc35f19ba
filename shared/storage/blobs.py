"""Files named by the sha256 of their content: tensors and long tables, which are too large for Redis.

A file is written before the transaction that refers to it, and removed by `collect` when nothing refers to it
any more. One process owns a folder; it may use it from several threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import threading
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from shared.core.errors import BadInput, NotFound, StrataError

_DIGEST = re.compile(r"[0-9a-f]{64}")
TEMPORARY = ".tmp-"
"""How the names of unfinished files begin; what a crash left of them is removed by the folder's owner."""

Buffer: TypeAlias = "bytes | bytearray | memoryview[Any]"
Parts: TypeAlias = "Buffer | Iterable[Buffer]"


class BlobMissing(NotFound):
    """No file of that digest is here."""

    code = "blob_missing"


class BlobCorrupt(StrataError):
    """A file's content is not that of its name."""

    code = "blob_corrupt"


class StorageFailed(StrataError):
    """The data folder could not be written or read: full, read-only, broken; the message says which."""

    status, code = 507, "storage_failed"


class Blobs:
    """The content-addressed files of one folder.

    Args:
        folder: Made if it is absent.
        fsync: Whether a file is on the disk, not only with the kernel, when `put` returns. Without, a power
            cut may cost what a killed process does not.
    """

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        self._folder = folder
        self._fsync = fsync
        self._lock = threading.Lock()
        self._recent: set[str] = set()
        self._writing: set[str] = set()
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def put(self, parts: Parts) -> str:
        """Store the concatenated parts and return their digest, 64 hexadecimal digits.

        Parts that are there already (anything but a generator) are hashed first and written only if no file
        of that digest is here. The file is protected from the next `collect`.

        Raises:
            StorageFailed: The disk is full, or the like; nothing of the file is left.
        """
        buffers = _buffers(parts)
        if not isinstance(buffers, list):
            return self._write(buffers)
        digest, size = _digest(buffers)
        with self._lock:  # so that no `collect` comes between looking and protecting
            if self._holds(digest, size):
                self._recent.add(digest)
                return digest
        return self._write(buffers, digest)

    def open(self, digest: str, *, verify: bool = True) -> memoryview:
        """Return a file's content, mapped read-only; it stays readable also after `collect` removed the file.

        Args:
            digest: As `put` returned it.
            verify: Whether the content is hashed and compared.

        Raises:
            BlobMissing: No such file.
            BlobCorrupt: The content is another one.
            BadInput: `digest` is none.
        """
        path = self.path(digest)
        with storage_errors(path):
            try:
                with path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
            except FileNotFoundError as error:
                raise BlobMissing(f"no file {digest}") from error
        if verify and hashlib.sha256(data).hexdigest() != digest:
            raise BlobCorrupt(f"the content of file {digest} is another one")
        return data

    def path(self, digest: str) -> Path:
        """Return where the file of a digest is, or would be.

        Raises:
            BadInput: `digest` is none: what comes from a message must not lead out of the folder.
        """
        if not _DIGEST.fullmatch(digest):
            raise BadInput(f"no sha256 digest: {digest[:80]!r}")
        return self._folder / digest

    def collect(self, referenced: Iterable[str], keep: Iterable[str] = ()) -> list[str]:
        """Remove the files that nothing refers to and return their digests, sorted.

        What was put since the last `collect` stays: its transaction may still come, also if `referenced` was
        read before. A file that may see two of them before its transaction has to be named in `keep`.
        """
        with self._lock, storage_errors(self._folder):
            stay = {*referenced, *keep} | self._recent
            names = os.listdir(self._folder)
            gone = sorted(name for name in names if _DIGEST.fullmatch(name) and name not in stay)
            unfinished = [n for n in names if n.startswith(TEMPORARY) and n not in self._writing]
            for name in (*gone, *unfinished):
                (self._folder / name).unlink(missing_ok=True)
            self._recent.clear()
        return gone

    def _holds(self, digest: str, size: int) -> bool:
        try:
            return self.path(digest).stat().st_size == size
        except FileNotFoundError:
            return False

    def _write(self, buffers: Iterable[Buffer], digest: str | None = None) -> str:
        """Write a file; its digest, found on the way where it is not known."""
        name = f"{TEMPORARY}{uuid.uuid4().hex}"
        with self._lock:
            self._writing.add(name)
        try:
            with temporary(self._folder / name), storage_errors(self._folder):
                digest = write_parts(self._folder / name, buffers, fsync=self._fsync, digest=digest)
                with self._lock:
                    os.replace(self._folder / name, self.path(digest))
                    self._recent.add(digest)
                if self._fsync:
                    sync_folder(self._folder)
        finally:
            with self._lock:
                self._writing.discard(name)
        return digest


def _buffers(parts: Parts) -> list[Buffer] | Iterator[Buffer]:
    if isinstance(parts, Iterator):
        return parts
    return [parts] if isinstance(parts, bytes | bytearray | memoryview) else list(parts)


def _digest(buffers: list[Buffer]) -> tuple[str, int]:
    sha256, size = hashlib.sha256(), 0
    for buffer in buffers:
        sha256.update(buffer)
        size += memoryview(buffer).nbytes
    return sha256.hexdigest(), size


def write_parts(path: Path, buffers: Iterable[Buffer], *, fsync: bool, digest: str | None = None) -> str:
    """Write a new file and return the sha256 of its content, which is not computed where it is given."""
    sha256 = hashlib.sha256()
    with path.open("xb") as file:
        for buffer in buffers:
            if digest is None:
                sha256.update(buffer)
            file.write(buffer)
        file.flush()
        if fsync:
            os.fsync(file.fileno())
    return digest or sha256.hexdigest()


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk: a rename is durable only then."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[None]:
    """Remove `path` at the end if it is still there: it was not renamed."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` into `StorageFailed`, which names the place and the reason."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror or error}") from error
