"""One process of a local topology: started in its own session, logging to a file, and certain to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from shared.core.errors import StrataError
from shared.runtime import import_path
from shared.runtime.host_limits import n_killed
from shared.runtime.logs import read, unfolded
from shared.runtime.memory import of_limit

_PARENT_DEATH = Path(__file__).with_name("parent_death.py")
_TAIL_LINES = 15
_LONGEST_LOG = 2**26
"""Bytes of a log before it is truncated; as many bytes of older lines are kept beside it."""
LOG_ENDS = "; its log ends:"
"""What stands in messages between how a process ended and the end of its log."""


class ProcessDied(StrataError):
    """A process of the topology ended by itself; the message names it and quotes the end of its log."""

    code = "process_died"

    @property
    def how(self) -> str:
        """The message without the end of the log."""
        return self.detail.partition(LOG_ENDS)[0]


def ends_with_parent(command: Sequence[str]) -> list[str]:
    """The command, started so that the kernel kills it when its parent ends (see `parent_death`)."""
    return [sys.executable, "-I", "-S", str(_PARENT_DEATH), str(os.getpid()), *command]


class Child(Protocol):
    """A started process: a `subprocess.Popen`, or one that a fork server started."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """The exit status (negative: the signal that ended it), None while it runs."""

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit status; raises `subprocess.TimeoutExpired`."""


def execute(
    name: str,
    module: str,
    env: Mapping[str, str],
    log: Path,
    inherited: Mapping[str, int] | None = None,
    arguments: Sequence[str] = (),
) -> Process:
    """Start a process that runs a module as `python -m` would, in a session of its own; it ends when this one ends.

    Args:
        name: unique in the topology, for instance `edge-1`.
        module: the module.
        env: the complete environment.
        log: file to which stdout and stderr are appended.
        inherited: descriptors that the process gets, by the environment variable that tells it the number.
        arguments: arguments of the module.
    """
    inherited = inherited or {}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and modules, no shell
            ends_with_parent([sys.executable, "-P", import_path.__file__, module, *arguments]),
            env={**env, **{variable: str(descriptor) for variable, descriptor in inherited.items()}},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(inherited.values()),
        )
    return Process(name, child, log)


class Process:
    """A running process with a name.

    It runs in its own session, so that Ctrl-C in the terminal does not reach it: the launcher ends its processes
    itself, in the right order. If the launcher is killed, the fork server ends the processes that it forked, and the
    kernel those that were executed.
    """

    def __init__(self, name: str, child: Child, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = child

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status (negative: the signal that ended it), None while it runs."""
        return self._process.poll()

    @property
    def private_bytes(self) -> int:
        """Memory that the process shares with no other; 0 once it has ended, or on systems without /proc."""
        try:
            rows = Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        return 1024 * sum(int(row.split()[1]) for row in rows if row.startswith("Private_"))

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children; does nothing once it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended; False if it still runs after `timeout_s`."""
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def tail(self, n_lines: int = _TAIL_LINES) -> str:
        """The last lines of its log, formatted for people."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        shown = (line if (event := read(line)) is None else unfolded(event) for line in lines[-n_lines:])
        return "\n".join(shown) or "(its log is empty)"

    def trim(self, longest: int = _LONGEST_LOG) -> None:
        """Truncate the log once it is longer than `longest` bytes; the old lines are kept beside it as `.log.1`.

        The process keeps appending to the same file. Lines that it writes between copying and truncating are lost.
        """
        with suppress(OSError):  # a full disk or a missing folder is reported by the code that depends on it
            if self.log.stat().st_size > longest:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)

    def death(self) -> ProcessDied:
        """The error that names the process, says how it ended and quotes the end of its log."""
        return ProcessDied(f"{self.name} ended {how_ended(self.returncode)}{LOG_ENDS}\n{self.tail()}")


def how_ended(code: int | None) -> str:
    """How a process ended, by its exit status (negative: the signal), in brackets; of SIGKILL also the likely cause."""
    how = f"exit status {code}" if code is None or code >= 0 else f"signal {_signal_name(-code)}"
    return f"({how}): {_out_of_memory()}" if code == -signal.SIGKILL else f"({how})"


def _out_of_memory() -> str:
    n, remedy = n_killed(), "allow more memory, or use fewer edges, or more devices an agent (--agents)"
    if not n:
        return f"the kernel does so where memory runs out, as `kill -9` and batch systems do; if so, {remedy}"
    return f"memory has run out{of_limit()}, and the kernel has ended {n} processes; {remedy}"


def _signal_name(number: int) -> str:
    """The name of a signal; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def end_all(processes: Iterable[Process], grace_s: float) -> None:
    """Send SIGTERM to all processes at once, and SIGKILL to those that still run after `grace_s` seconds.

    Returns when all have ended. Children of a process are in its group and are killed too. A process that ended
    earlier gets no signal: its number may belong to another process by now.
    """
    waiting = [process for process in processes if process.returncode is None]
    for process in waiting:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for process in waiting:
        if not process.wait(deadline - time.monotonic()):
            process.signal(signal.SIGKILL)
            process.wait(10.0)
        with suppress(ProcessLookupError, PermissionError):  # stragglers of a group whose leader has ended
            os.killpg(process.pid, signal.SIGKILL)
