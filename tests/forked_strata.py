"""The command `strata`, or another module, as a process forked from the session's fork server: imports are paid once.

Its arguments, signals, output and exit status are those of an executed command; so are its fork server, which it forks
from itself, and all its processes. Only `/proc/PID/environ` shows the environment of the session's fork server.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from strata.launcher import fork_program, fork_server
from strata.launcher.environment import Modules
from strata.launcher.parent_death import end_with_parent
from strata.launcher.process import Process, execute
from tests.fork_server import ROOT, shared_fork_server
from tests.waits import HANG_S


class Command:
    """A running command; it has what tests use of `subprocess.Popen` in text mode.

    Args:
        words: the arguments.
        cwd: its folder, by default that of this process.
        env: its environment, by default that of this process.
        module: what `python -m` would run.

    Attributes:
        stdout, stderr: what it writes.
    """

    def __init__(
        self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, module: str = "strata"
    ) -> None:
        (out, out_of_it), (err, err_of_it) = os.pipe(), os.pipe()
        try:
            task = {
                "COMMAND_WORDS": json.dumps(words),
                "COMMAND_FOLDER": str(cwd or Path.cwd()),
                "COMMAND_MODULE": module,
            }
            self._process = _started({**(os.environ if env is None else env), **task}, out_of_it, err_of_it)
        finally:
            os.close(out_of_it)
            os.close(err_of_it)
        self.pid = self._process.pid
        self.stdout, self.stderr = os.fdopen(out, encoding="utf-8"), os.fdopen(err, encoding="utf-8")

    @property
    def returncode(self) -> int | None:
        """The exit status (negative: the signal that ended it), None while it runs."""
        return self._process.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def communicate(self, timeout: float = HANG_S) -> tuple[str, str]:
        """Wait for its end; returns what it has written to stdout and stderr and was not read."""
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.append(self.stderr.read()), daemon=True)
        reader.start()
        out = self.stdout.read()
        reader.join(timeout)
        assert self._process.wait(timeout), "it still runs"
        self.stdout.close()
        self.stderr.close()
        return out, errors[0]


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the options are those of `Command`."""
    command = Command(*words, **options)
    out, err = command.communicate()
    assert command.returncode is not None
    return subprocess.CompletedProcess(words, command.returncode, out, err)


def _started(env: Mapping[str, str], out: int, err: int) -> Process:
    given = {"COMMAND_STDOUT": out, "COMMAND_STDERR": err}
    return shared_fork_server().start("strata", __name__, env, Path(os.devnull), given)


# ---- for shells

_PROGRAM = """import json, os, socket, sys
if path := os.environ.get("PYTHONPATH"):
    os.environ["PYTHONPATH"] = path + os.pathsep + {root!r}
    os.execv(sys.executable, [sys.executable, "-m", "strata.main", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({place!r})
    task = {{"COMMAND_WORDS": json.dumps(sys.argv[1:]), "COMMAND_FOLDER": os.getcwd(), "COMMAND_MODULE": "strata"}}
    request = json.dumps({{**os.environ, **task}}).encode()
    socket.send_fds(server, [len(request).to_bytes(4)], [1, 2])
    server.sendall(request)
    sys.exit(int(server.recv(8)))
"""
"""The program `strata` of a shell; it is executed where modules may come from elsewhere than the fork server's."""


@contextmanager
def for_shells() -> Iterator[str]:
    """In this block the words that it returns run `strata` in a shell."""
    shared_fork_server()  # which ends with the thread that starts it
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        place, program = f"{folder}/strata.sock", Path(folder, "strata.py")
        program.write_text(_PROGRAM.format(place=place, root=str(ROOT)), encoding="utf-8")
        listener.bind(place)
        listener.listen()
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield shlex.join((sys.executable, "-IS", str(program)))
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    with suppress(OSError):  # at the end
        while True:
            threading.Thread(target=_answer, args=(listener.accept()[0],), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, suppress(OSError):  # the shell has ended
        size, descriptors, *_ = socket.recv_fds(connection, 4, 2)
        try:
            with connection.makefile("rb") as file:
                process = _started(json.loads(file.read(int.from_bytes(size))), *descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        while not process.wait(HANG_S):
            pass
        connection.sendall(str((process.returncode or 0) % 256).encode())


def main() -> None:
    """Be the command."""
    for name, descriptor in (("COMMAND_STDOUT", 1), ("COMMAND_STDERR", 2)):
        given = int(os.environ.pop(name))
        os.dup2(given, descriptor)
        os.close(given)
    os.chdir(os.environ.pop("COMMAND_FOLDER"))
    tempfile.tempdir = None  # its environment names another
    module = os.environ.pop("COMMAND_MODULE")
    sys.argv = [module, *json.loads(os.environ.pop("COMMAND_WORDS"))]
    vars(fork_server)["execute"] = _forked_server
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _forked_server(
    name: str, module: str, env: Mapping[str, str], log: Path, inherited: Mapping[str, int], modules: Sequence[str]
) -> Process:
    """Do what `execute` does for a fork server, by a fork: this process has the modules."""
    if modules != Modules().preloaded:
        return execute(name, module, env, log, inherited, modules)
    log.parent.mkdir(parents=True, exist_ok=True)
    request = {"name": name, "module": module, "env": dict(env), "log": str(log.absolute()), "folder": str(Path.cwd())}
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _become(request, dict(inherited), parent)
    return Process(name, _Child(pid), log)


def _become(request: dict[str, Any], inherited: dict[str, int], parent: int) -> None:
    """Be the forked process to its end, which no code of the command sees."""
    atexit._clear()
    status: Any = 1
    try:
        os.setsid()
        end_with_parent(parent)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number not in inherited.values():
                with suppress(OSError):
                    os.close(number)
        fork_program.become(request, inherited)
        status = 0
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


class _Child:
    """A child of this process, with the methods of `subprocess.Popen` that `Process` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit status; raises `subprocess.TimeoutExpired`."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)
        return status


if __name__ == "__main__":
    main()
