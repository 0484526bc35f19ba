"""Following a run: what is shown while it goes, waits, loses and is resumed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, cast

from rich.console import Console

from shared.api import Event, RunInfo
from shared.cli.client import Client
from shared.cli.progress import LineView, follow
from tests.cli.samples import a_run


class Cloud:
    """Answers with a run's documents one after another, each after one event."""

    def __init__(self, first: RunInfo, *then: tuple[str, dict[str, Any], RunInfo]) -> None:
        self.now, self.then = first, then

    def run(self, run: str) -> RunInfo:
        return self.now

    def events(self, run: str, **options: Any) -> Iterator[Event]:
        for number, (kind, data, info) in enumerate(self.then):
            self.now = info
            yield Event(id=str(number), kind=kind, at="2026-01-02T03:04:05Z", data=data)


def shown(first: RunInfo, *then: tuple[str, dict[str, Any], RunInfo]) -> list[str]:
    text = io.StringIO()
    follow(cast(Client, Cloud(first, *then)), "r1", LineView(Console(file=text, width=400)))
    return text.getvalue().splitlines()


def evaluated(accuracy: float) -> dict[str, Any]:
    return {"round_no": 1, "evaluation": {"global": {"accuracy": accuracy, "loss": 0.5}}}


def test_a_resumed_run_shows_its_newest_accuracy_and_not_that_of_its_pause() -> None:
    """Its document keeps the accuracy of the pause until the run ends; the events know better."""
    paused = a_run(status="running", rounds=1, accuracy=0.50)
    lines = shown(
        paused,
        ("run.status", {}, paused),
        ("round.evaluated", evaluated(0.75), paused),
        ("run.status", {}, paused.but(rounds=2)),
        ("run.status", {}, paused.but(status="completed", rounds=3, accuracy=0.80)),
    )
    found = [line.split("accuracy ")[1].split("  ")[0] for line in lines]
    assert found[0] == "50.00 %"
    assert found[-2:] == ["75.00 %", "80.00 %"]


def test_a_run_that_waits_says_for_what_and_losses_are_counted() -> None:
    running = a_run(status="running", rounds=1)
    waits = running.but(reason="waiting: 2 of at least 3 devices are alive")
    lines = shown(
        running,
        ("contribution.lost", {"seat": 4}, running),
        ("contribution.lost", {"seat": None, "seats": [0, 1]}, running),
        ("run.status", {}, running.but(rounds=2)),
        ("run.status", {}, waits),
        ("run.status", {}, running.but(status="completed", rounds=3)),
    )
    assert "lost" not in lines[0]
    assert any("3 lost" in line for line in lines)
    assert any("waiting: 2 of at least 3 devices are alive" in line for line in lines)
