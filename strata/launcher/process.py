"""One process of a local topology: started in a session of its own, logged to a file, ended for sure."""

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

from shared.core.errors import StrataError
from shared.runtime.logs import read, unfolded

_SHIM = Path(__file__).with_name("parent_death.py")
_TAIL_LINES = 15
_LONGEST_LOG = 2**26
"""Bytes, as far as a launcher that looks finds it in time; as much again is kept of what was before."""


class ProcessDied(StrataError):
    """A process of the topology ended by itself; the message names it and ends with its log."""

    code = "process_died"


class Process:
    """A running process with a name.

    A session of its own keeps Ctrl-C at the terminal from it: the launcher ends its processes itself, in the
    right order. If the launcher is killed, the kernel ends them (see `shim`).

    Args:
        name: unique in the topology, for instance `edge-1`.
        module: run as `python -m module`.
        env: the whole environment.
        log: file that stdout and stderr are appended to.
        inherited: descriptors that the process gets under the same numbers.
    """

    def __init__(
        self, name: str, module: str, env: Mapping[str, str], log: Path, inherited: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid())]
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules, no shell
                [*shim, sys.executable, "-m", module],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(inherited),
            )

    @property
    def pid(self) -> int:
        """The process id, also the id of its group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended (negative: by which signal), None while it runs."""
        return self._process.poll()

    @property
    def resident_bytes(self) -> int:
        """Memory that it holds; 0 once it has ended, or where the system does not tell."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0

    def signal(self, number: int) -> None:
        """Send a signal to the process and what it started; without effect once it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False if it still runs."""
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def tail(self, n_lines: int = _TAIL_LINES) -> str:
        """The last lines of its log, as people read them."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        told = (line if (ours := read(line)) is None else unfolded(ours) for line in lines[-n_lines:])
        return "\n".join(told) or "(its log is empty)"

    def trim(self, longest: int = _LONGEST_LOG) -> None:
        """Begin its log anew where that has grown too long; what was there is kept beside it as `.log.1`.

        The process goes on writing at the file's end, wherever that is. Lines that it writes between the copy and
        the cut are lost.
        """
        with suppress(OSError):  # its folder is full, or gone: that is told by what needs it
            if self.log.stat().st_size > longest:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)

    def death(self) -> ProcessDied:
        """The error that names it, says how it ended and shows the end of its log."""
        code = self.returncode
        how = f"exit status {code}" if code is None or code >= 0 else f"signal {signal.Signals(-code).name}"
        return ProcessDied(f"{self.name} ended ({how}); its log ends:\n{self.tail()}")


def end_all(processes: Iterable[Process], grace_s: float) -> None:
    """SIGTERM to all at once, SIGKILL to those that still run after the grace; returns when all have ended.

    What a process may have started itself is in its group and is killed too. One that ended before is left
    alone: its number may be another's by now.
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
