"""A gate at which visits wait, so that a test can inject a fault in the middle of a visit on a machine of any speed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from tests.waits import until

ENV = "SOAK_GATE"
"""The environment variable that names the gate's folder; in processes without it the gate is open."""
TICK_S = 0.02


class Arrival(NamedTuple):
    """A visit that reached the gate."""

    round_no: int
    seat: int


class Gate:
    """The test's side of the gate. Only visits of probes that call `pass_gate` reach it.

    Args:
        folder: holds the files by which the test and the agents communicate.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def closed(self, from_round: int = 1) -> Iterator[Self]:
        """Let visits of earlier rounds pass and hold all others; open the gate at the end at the latest."""
        self.open()  # an arrival may have been told while it was last opened
        self.hold(from_round)
        try:
            yield self
        finally:
            self.open()

    def hold(self, from_round: int) -> None:
        """Hold visits from this round on, and release those of earlier rounds that wait."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / "closed.part"
        part.write_text(str(from_round), encoding="ascii")
        part.replace(self.folder / "closed")

    def open(self) -> None:
        """Let all visits pass, and forget the arrivals."""
        for path in [self.folder / "closed", *self.folder.glob("*.came")]:
            path.unlink(missing_ok=True)

    def arrivals(self, agent: str) -> list[Arrival]:
        """Returns the visits that reached the gate at an agent since it was last opened."""
        path = self.folder / f"{agent}.came"
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        return [Arrival(*map(int, line.split())) for line in lines]

    def wait(self, agent: str, round_no: int = 1) -> Arrival:
        """Wait until a visit of a round has reached the gate at an agent; return the first such visit."""
        seen = until(
            f"a visit of round {round_no} at {agent}",
            lambda: [arrival for arrival in self.arrivals(agent) if arrival.round_no == round_no],
        )
        return seen[0]


def pass_gate(round_no: int, seat: int) -> None:
    """The visit's side of the gate: announce the visit and wait until the gate is open for its round.

    An edge's own worker passes: it is at no agent.
    """
    agent = os.environ.get("AGENT_NAME")
    if ENV not in os.environ or agent is None:
        return
    folder = Path(os.environ[ENV])
    if not _is_closed(folder, round_no):
        return
    with (folder / f"{agent}.came").open("a", encoding="ascii") as file:
        file.write(f"{round_no} {seat}\n")
    while _is_closed(folder, round_no):
        time.sleep(TICK_S)


def _is_closed(folder: Path, round_no: int) -> bool:
    try:
        return round_no >= int((folder / "closed").read_text(encoding="ascii"))
    except FileNotFoundError:
        return False
