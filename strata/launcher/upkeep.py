"""Looking after a local topology while runs train: what they survive is reported and started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shared.core.errors import StrataError
from strata.launcher.process import Process, ProcessDied

_LONGEST_PAUSE_S = 60.0
STEADY_S = 600.0
"""Seconds after which an earlier end of a process is forgotten."""


@dataclass
class Loss:
    """The ends of one edge or agent.

    Attributes:
        pid: of the process that ended last.
        n: its ends, each soon after the one before.
        at: when it ended last, in monotonic seconds.
    """

    pid: int
    n: int
    at: float

    @property
    def pause_s(self) -> float:
        """How long it stays away."""
        return min(2.0 ** (self.n - 1), _LONGEST_PAUSE_S)


class Processes(Protocol):
    """The processes of a local topology, or of a batch job."""

    def check_vital(self) -> None:
        """Check those without which nothing goes on.

        Raises:
            ProcessDied: one has ended.
        """

    def dead(self) -> list[Process]:
        """Those that ended by themselves."""

    def start_again(self, name: str) -> None:
        """Start one again, with its state."""


class Upkeep:
    """Starts lost edges and agents of a topology again, after pauses that grow with each end of the same one.

    Until it is back, a lost agent costs the visits of its devices, and a lost edge those of its devices that find no
    other edge, as in every topology. Use it from the thread that started the topology.

    Args:
        topology: a started topology, or what else has processes.
        report: gets what a user should know: that a process ended and how, or that it could not be started.
        clock: monotonic seconds.
    """

    def __init__(
        self, topology: Processes, report: Callable[[StrataError], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._topology, self._report, self._clock = topology, report, clock
        self._losses: dict[str, Loss] = {}

    def look(self) -> None:
        """Look once; to be called every second or so.

        Raises:
            ProcessDied: the cloud, Redis or the fork server has ended, which no run survives.
        """
        self._topology.check_vital()
        for process in self._topology.dead():
            loss = self._losses.get(process.name)
            if loss is None or loss.pid != process.pid:
                self._note(process, loss)
            elif self._clock() - loss.at >= loss.pause_s:
                self._start(process, loss)

    def _note(self, process: Process, before: Loss | None) -> None:
        now = self._clock()
        n = before.n + 1 if before is not None and now - before.at < STEADY_S else 1
        loss = self._losses[process.name] = Loss(process.pid, n, now)
        died = process.death()
        log = died.detail.removeprefix(died.how)
        self._report(ProcessDied(f"{died.how}; the run goes on, and it is started again in {loss.pause_s:g} s{log}"))

    def _start(self, process: Process, loss: Loss) -> None:
        try:
            self._topology.start_again(process.name)
        except (StrataError, OSError) as error:
            loss.n, loss.at = loss.n + 1, self._clock()
            self._report(ProcessDied(f"{process.name} could not be started again: {error}"))
