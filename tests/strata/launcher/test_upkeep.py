"""Lost edges and agents are reported and started again; what no run survives is an error."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from shared.core.errors import StrataError
from strata.launcher.process import ProcessDied, how_ended
from strata.launcher.topology import Topology
from strata.launcher.upkeep import STEADY_S, Upkeep


@dataclass
class Ended:
    """A process that was killed."""

    name: str
    pid: int

    def death(self) -> ProcessDied:
        return ProcessDied(f"{self.name} ended {how_ended(-signal.SIGKILL)}; its log ends:\nthe last line")


@dataclass
class Pretended:
    """A topology of which an agent ends again and again."""

    lost: list[Ended] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    fault: StrataError | None = None
    refuses: bool = False

    def check_vital(self) -> None:
        if self.fault is not None:
            raise self.fault

    def dead(self) -> list[Ended]:
        return list(self.lost)

    def start_again(self, name: str) -> None:
        if self.refuses:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.started.append(name)
        self.lost.clear()


class Watched:
    """An upkeep whose time the test sets."""

    def __init__(self) -> None:
        self.topology, self.now, self.said = Pretended(), 0.0, list[str]()
        topology: Any = self.topology
        self.upkeep = Upkeep(cast(Topology, topology), lambda e: self.said.append(e.detail), clock=lambda: self.now)

    def kill(self, pid: int) -> None:
        self.topology.lost = [Ended("agent-1", pid)]
        self.upkeep.look()

    def pause(self) -> float:
        """Returns how long the agent stays away."""
        began, n = self.now, len(self.topology.started)
        while len(self.topology.started) == n:
            self.now += 0.5
            self.upkeep.look()
        return self.now - began


def test_a_lost_agent_is_reported_with_its_signal_and_started_again() -> None:
    watched = Watched()
    watched.kill(1)
    watched.upkeep.look()
    assert len(watched.said) == 1
    assert watched.said[0].startswith("agent-1 ended (signal SIGKILL): ")
    assert "memory" in watched.said[0]
    assert watched.said[0].endswith("; the run goes on, and it is started again in 1 s; its log ends:\nthe last line")
    assert watched.pause() == 1.0
    assert watched.topology.started == ["agent-1"]


def test_the_pause_grows_with_each_end_until_it_has_run_for_a_while() -> None:
    watched, pauses = Watched(), list[float]()
    for pid in range(8):
        watched.kill(pid)
        pauses.append(watched.pause())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    watched.now += STEADY_S
    watched.kill(9)
    assert watched.pause() == 1.0


def test_one_that_cannot_be_started_is_tried_again() -> None:
    watched = Watched()
    watched.topology.refuses = True
    watched.kill(1)
    watched.now += 1.0
    watched.upkeep.look()
    assert "agent-1 could not be started again: [Errno 11] Resource temporarily unavailable" in watched.said[1]
    watched.topology.refuses = False
    assert watched.pause() == 2.0


def test_the_end_of_the_cloud_is_an_error() -> None:
    watched = Watched()
    watched.topology.fault = ProcessDied("cloud ended (signal SIGKILL)")
    with pytest.raises(ProcessDied, match="cloud ended"):
        watched.upkeep.look()
