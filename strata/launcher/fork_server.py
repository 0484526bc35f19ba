"""A fork server, seen from the launcher: it starts processes that share the pages of what it has imported."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from shared.core.errors import DeadlineExceeded
from strata.launcher.process import Process, execute

_READ_AT_LOAD = (
    *("GLIBC_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_", "OPENSSL_"),
    *("PYTHON", "PYTORCH_", "TORCH"),
)
"""Prefixes of the variables that programs and libraries read when they are loaded."""
_ANSWER_S = 120.0
"""Longest wait for an answer; the first one comes after the imports."""
_CLOSE_S = 10.0
_LOOK_S = 0.1


class ForkServer:
    """A process that imports modules once and forks further processes, which share its memory until they write to it.

    Args:
        env: its environment; forked processes get environments of their own.
        log: file to which its output is appended.
        modules: names of the modules that it imports.

    Attributes:
        process: the server's own process.
    """

    def __init__(self, env: Mapping[str, str], log: Path, modules: Sequence[str]) -> None:
        self._libraries = _of_libraries(env)
        self._ended: dict[int, int] = {}
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            inherited = {"FORK_SERVER_FD": theirs.fileno()}
            self.process = execute("fork server", "strata.launcher.fork_program", env, log, inherited, modules)

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Whether this environment and the server's agree in all variables that are read when a library is loaded."""
        return _of_libraries(env) == self._libraries

    def start(self, name: str, module: str, env: Mapping[str, str], log: Path, inherited: Mapping[str, int]) -> Process:
        """Fork a process that runs a module as `python -m` would; the arguments are those of `execute`.

        Raises:
            OSError: the system refuses to fork.
            ProcessDied: the server has ended.
            DeadlineExceeded: the server does not answer.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        for descriptor in inherited.values():
            os.fstat(descriptor)  # raises here, and not in the middle of a request
        request: dict[str, Any] = {"name": name, "module": module, "env": dict(env), "inherited": list(inherited)}
        request |= {"log": str(log.absolute()), "folder": str(Path.cwd())}
        with self._lock:
            try:
                self._connection.send_bytes(json.dumps(request).encode())
                for descriptor in inherited.values():
                    send_handle(self._connection, descriptor, self.process.pid)
                answer = self._answer()
            except (EOFError, OSError):
                self._lose_all()
                raise self.process.death() from None
            except BaseException:  # the late answer to this request would be taken for that to the next one
                self._lose_all()
                raise
            if "refused" in answer:
                raise OSError(answer["refused"], os.strerror(answer["refused"]))
            self._running.add(answer["started"])
            self._ended.pop(answer["started"], None)  # of an earlier process with this number
        return Process(name, Forked(self, answer["started"]), log)

    def status(self, pid: int) -> int | None:
        """The exit status of a forked process (negative: the signal that ended it), None while it runs."""
        with self._lock:
            if self._running:
                try:
                    while self._connection.poll():
                        self._note(self._receive())
                except (EOFError, OSError):
                    self._lose_all()
        return self._ended.get(pid)

    def wait(self, timeout_s: float) -> None:
        """Wait until the server reports something, at most `timeout_s` seconds."""
        with suppress(OSError):
            wait([self._connection], timeout_s)

    def close(self) -> None:
        """End the server, and with it every process that it forked and that still runs."""
        with self._lock:
            self._connection.close()
            self._lose_all()

    def _answer(self) -> dict[str, Any]:
        """The answer to a request; ends of processes that are reported before it are noted."""
        while self._connection.poll(_ANSWER_S):
            message = self._receive()
            if "ended" not in message:
                return message
            self._note(message)
        raise DeadlineExceeded(f"the fork server has not answered for {_ANSWER_S:g} s")

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return message

    def _note(self, message: dict[str, Any]) -> None:
        self._running.discard(message["ended"])
        self._ended[message["ended"]] = message["status"]

    def _lose_all(self) -> None:
        """Record the end of the server and of its processes, and end those that have not ended by themselves."""
        self._connection.close()
        if not self.process.wait(_CLOSE_S):
            self.process.signal(signal.SIGKILL)
            self.process.wait(_CLOSE_S)
        for pid in self._running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._ended[pid] = -signal.SIGKILL
        self._running.clear()


@dataclass(frozen=True)
class Forked:
    """A process that a fork server started; it has the methods of `subprocess.Popen` that `Process` uses."""

    server: ForkServer
    pid: int

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self.server.status(self.pid)

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.server.wait(min(left, _LOOK_S))  # another thread may read what this one waits for
        return status


def _of_libraries(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_LOAD)}
