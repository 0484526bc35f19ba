"""What the operating system refuses, as an error for people: which file or folder, why, and what to do about it."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.core.errors import StrataError

FOLDERS = "STRATA_HOME, STRATA_CACHE_DIR and --runs-dir choose other folders"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM)


class SystemRefused(StrataError):
    """The operating system refused a file, a folder or another resource (500)."""

    code = "system_refused"


def of_system(error: OSError, path: str | os.PathLike[str] | None = None) -> SystemRefused:
    """Returns an error of the operating system with the file that it names, or else `path`, its cause and a remedy."""
    named = error.filename if isinstance(error.filename, str | bytes) else path
    where = "" if named is None else os.fsdecode(named)
    cause = error.strerror or " ".join(str(error).split()) or type(error).__name__
    return SystemRefused(f"{where or 'this machine'}: {cause}{_remedy(error, where)}")


@contextmanager
def refusals(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises what the system refuses in this block as a `SystemRefused` that names a file, by default `path`."""
    try:
        yield
    except OSError as error:
        raise of_system(error, path) from error


def check_writable(folder: Path) -> None:
    """Checks that files may be written into a folder, or that it may be made; changes nothing.

    Raises:
        SystemRefused: this user may not.
    """
    above = _nearest(folder)
    if not os.access(above, os.W_OK | os.X_OK):
        raise of_system(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder)))


def _remedy(error: OSError, where: str) -> str:
    if error.errno in _FULL or "requested and" in str(error):  # the latter is NumPy's word for a full disk
        return f": the disk or the quota is full; {FOLDERS}"
    if error.errno in _DENIED:
        return f"{_owner(where)}; {FOLDERS}"
    if error.errno == errno.EROFS:
        return f"; {FOLDERS}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ": `ulimit -n` shows and raises how many files a process may open"
    return ""


def _owner(where: str) -> str:
    """Whose a file is, or the nearest folder above that is there; empty if it is of this user."""
    path = _nearest(where)
    with suppress(OSError):
        owner, me = os.stat(path).st_uid, os.geteuid()
        if owner != me:
            return f": {path} belongs to {_user(owner)}, and this process runs as {_user(me)}"
    return ""


def _nearest(where: str | os.PathLike[str]) -> str:
    """A file or folder itself or, of one that is not there, the nearest folder above it."""
    path = os.path.abspath(where)
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
