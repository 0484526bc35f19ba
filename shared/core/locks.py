"""Locks on files, which the kernel frees when their process ends."""

from __future__ import annotations

import errno
import fcntl
import os


def lock(descriptor: int, path: str | os.PathLike[str], *, shared: bool = False, wait: bool = False) -> bool:
    """Takes the lock of an open file, which its closing frees; returns whether it was free.

    Args:
        descriptor: of the file.
        path: of the file, for the error.
        shared: whether others may take it too, if they share it.
        wait: whether to wait until it is free.

    Raises:
        OSError: names the file; its file system has no locks, for instance.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(error.errno or errno.ENOLCK, error.strerror, os.fspath(path)) from None
    return True
