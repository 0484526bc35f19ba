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
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_TOO_MANY = (errno.EMFILE, errno.ENFILE)


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
        SystemRefused: this user may not, the file system is read-only, or a file has the name of the folder.
    """
    above = _nearest(folder)
    if not os.path.isdir(above):
        raise of_system(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), above))
    if not os.access(above, os.W_OK | os.X_OK):
        cause = errno.EROFS if os.statvfs(above).f_flag & os.ST_RDONLY else errno.EACCES
        raise of_system(OSError(cause, os.strerror(cause), str(folder)))


def check_working_folder() -> None:
    """Checks that the working folder is there, without which relative paths and much else lead nowhere.

    Raises:
        SystemRefused: it has been removed, or may not be read.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise SystemRefused(f"the working folder: {error.strerror}; change to another one with `cd`") from None


def _remedy(error: OSError, where: str) -> str:
    if error.errno in _FULL or "requested and" in str(error):  # the latter is NumPy's word for a full disk
        return f": the disk or the quota is full; {FOLDERS}"
    if error.errno in _DENIED:
        return f"{_owner(where)}; {FOLDERS}"
    if error.errno == errno.EROFS:
        return f"; {FOLDERS}"
    if error.errno in _NO_LOCKS:
        return f": its file system has no locks; {FOLDERS}, TMPDIR another for temporary files"
    if error.errno in _TOO_MANY:
        return ": `ulimit -n` shows and raises how many files a process may open"
    if error.errno == errno.EAGAIN:
        return ": `ulimit -u` and the container's limit say how many processes and threads may run"
    if error.errno == errno.ENOMEM:
        return ": no memory is left, or no more is allowed (`ulimit -v`, the container's limit)"
    return ""


def other_owner(where: str | os.PathLike[str]) -> str:
    """Returns the user whose a file is, or the nearest folder above that is there; empty if it is this one's."""
    with suppress(OSError):
        owner = os.stat(_nearest(where)).st_uid
        return "" if owner == os.geteuid() else _user(owner)
    return ""


def _owner(where: str) -> str:
    owner = other_owner(where)
    me = _user(os.geteuid())
    return f": {_nearest(where)} belongs to {owner}, and this process runs as {me}" if owner else ""


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
