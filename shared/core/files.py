"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_file(path: Path, content: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Replace a file: a reader sees the old content or the new one. An error names the file.

    Args:
        path: of the file; its folder is made if there is none.
        content: the new one.
        mode: of the file, as far as the umask allows.
        durable: whether the content survives a power cut from now on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with naming(path):
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        if durable:
            sync(path.parent)


def append_file(path: Path, content: bytes) -> None:
    """Append whole lines: all of them or, if that fails, none. A crash may leave the last one incomplete."""
    with naming(path), path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(size)
            raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an error of the operating system the name of the file; that of a write has none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = os.fspath(path)
        raise
