"""Content-addressed files: tensors and long tables, which are too large for Redis, named by their sha256.

A file is written before the transaction that refers to it, and `collect` removes it when nothing refers to it any more.
One process owns a folder, and may use it from several threads.
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
from shared.core.files import sync

_DIGEST = re.compile(r"[0-9a-f]{64}")
TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files; the folder's owner removes those that a crash left."""

Buffer: TypeAlias = "bytes | bytearray | memoryview[Any]"
Parts: TypeAlias = "Buffer | Iterable[Buffer]"


class BlobMissing(NotFound):
    """The folder has no file of that digest (404)."""

    code = "blob_missing"


class BlobCorrupt(StrataError):
    """A file's content does not match its digest (500)."""

    code = "blob_corrupt"


class StorageFailed(StrataError):
    """A folder could not be written or read: full, read-only or broken (507); the message says which."""

    status, code = 507, "storage_failed"


class Blobs:
    """The content-addressed files of one folder.

    Args:
        folder: made if it is absent.
        fsync: whether `put` flushes a file to the disk. Without it, a power cut may lose files that survive the end of
            the process.
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
        """Stores the concatenated parts and returns their digest, 64 hexadecimal digits.

        Parts in memory (all but an iterator) are hashed first and written only if the folder has no file of that
        digest. The next `collect` keeps the file.

        Raises:
            StorageFailed: the disk is full, for instance; no part of the file is left.
        """
        buffers = _buffers(parts)
        if not isinstance(buffers, list):
            return self._write(buffers)
        digest, size = _digest(buffers)
        with self._lock:  # no `collect` may run between the two
            if self._holds(digest, size):
                self._recent.add(digest)
                return digest
        return self._write(buffers, digest)

    def open(self, digest: str, *, verify: bool = True) -> memoryview:
        """Returns a file's content, mapped read-only; it stays readable after `collect` has removed the file.

        Args:
            digest: of the file, as `put` returned it.
            verify: whether the content is hashed and compared.

        Raises:
            BlobMissing: there is no such file.
            BlobCorrupt: the content has another digest.
            BadInput: `digest` is not a sha256.
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
            raise BlobCorrupt(f"the content of file {digest} has another digest")
        return data

    def path(self, digest: str) -> Path:
        """Returns the path of the file with a digest, whether it exists or not.

        Raises:
            BadInput: `digest` is not a sha256; a text from a message must not lead out of the folder.
        """
        if not _DIGEST.fullmatch(digest):
            raise BadInput(f"no sha256 digest: {digest[:80]!r}")
        return self._folder / digest

    def collect(self, referenced: Iterable[str], keep: Iterable[str] = ()) -> list[str]:
        """Removes the files without a reference and returns their digests, sorted.

        Files put since the last `collect` stay, since their transaction may follow. A file that may meet a second
        `collect` before its transaction must be named in `keep`.
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
        """Writes a file and returns its digest, computed meanwhile if it is not known."""
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
                    sync(self._folder)
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
    """Writes a new file and returns the sha256 of its content, which is not computed if it is given."""
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


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[None]:
    """Removes `path` after the body of a `with` if it was not renamed."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns an `OSError` into `StorageFailed`, which names the path and the reason."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror or error}") from error
