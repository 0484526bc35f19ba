"""The display of a run's progress: training, waiting, losses and resumption."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, cast

import pytest
from rich.console import Console

from shared.core.number_sets import NumberSet
from shared.run_records.events import Event
from shared.run_records.runs import RunInfo
from shared.run_records.visits import FailureInfo
from strata.api.client import Client
from strata.runs.progress import LineView, LiveView, Told, follow
from tests.strata.samples import a_run


class Cloud:
    """Returns a run's documents one after another, each after one event."""

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
    return {"round_no": 1, "evaluation": {"global": {"n": 10, "accuracy": accuracy, "loss": 0.5}}}


def lost(**fields: Any) -> dict[str, Any]:
    """The data of the event, as the cloud sends them."""
    failure = FailureInfo.model_validate({"reason": "lost", "detail": "it was silent", **fields})
    return {"round_no": 1, **failure.model_dump(mode="json")}


def test_the_plan_is_said_once_as_soon_as_it_is_known_and_each_note_too() -> None:
    first = a_run(status="starting", notes=("a note",))
    planned = first.replace(status="running", plan=("age: a number", "model mlp"))
    later = (
        ("run.status", dict[str, Any](), planned),
        ("run.status", dict[str, Any](), planned.replace(status="completed")),
    )
    lines = shown(first, *later)
    assert [line for line in lines if line in ("note: a note", *planned.plan)] == ["note: a note", *planned.plan]


def test_a_score_of_an_earlier_round_says_so() -> None:
    """A round is evaluated beside the next one, so the newest score may be that of the round before."""
    first, second = (a_run(status="running", rounds=n) for n in (1, 2))
    done = second.replace(status="completed", accuracy=0.8)
    then = ("run.status", dict[str, Any](), second), ("run.status", dict[str, Any](), done)
    lines = shown(first, ("round.evaluated", evaluated(0.75), first), *then)
    found = [line.split("accuracy ")[1].split("  ")[0] for line in lines]
    assert found[1:] == ["75.00 %", "75.00 % after round 1", "80.00 %"]


def test_a_resumed_run_shows_its_newest_accuracy_and_not_that_of_its_pause() -> None:
    """The run's document keeps the accuracy of the pause until the run ends; the events have the newer one."""
    paused = a_run(status="running", rounds=1, accuracy=0.50)
    lines = shown(
        paused,
        ("run.status", {}, paused),
        ("round.evaluated", evaluated(0.75), paused),
        ("run.status", {}, paused.replace(rounds=2)),
        ("run.status", {}, paused.replace(status="completed", rounds=3, accuracy=0.80)),
    )
    found = [line.split("accuracy ")[1].split("  ")[0] for line in lines]
    assert found[0] == "50.00 %"
    assert found[-2:] == ["75.00 % after round 1", "80.00 %"]


def test_a_waiting_run_shows_its_reason_and_losses_are_counted() -> None:
    running = a_run(status="running", rounds=1)
    waits = running.replace(reason="waiting for devices: 2 of 3 (edges: 2, need 1)")
    lines = shown(
        running,
        ("contribution.lost", lost(seat=4), running),
        ("contribution.lost", lost(edge="edge-1", seats=NumberSet(range(1, 11, 3))), running),
        ("run.status", {}, running.replace(rounds=2)),
        ("run.status", {}, waits),
        ("run.status", {}, running.replace(status="completed", rounds=3)),
    )
    assert "lost" not in lines[0]
    assert any("5 lost" in line for line in lines)
    assert any("waiting for devices: 2 of 3 (edges: 2, need 1)" in line for line in lines)


@pytest.mark.parametrize(
    ("columns", "shown", "left_out"),
    [
        (80, ("accuracy 93.00 %",), ("loss", "up ", "down ", "simulated")),
        (100, ("accuracy 93.00 %", "loss 0.3000"), ("down ", "simulated")),
        (160, ("accuracy 93.00 %", "loss 0.3000", "up 8.63 MB", "down 7.83 MB", "simulated 12.0 s"), ()),
    ],
)
def test_a_narrow_terminal_shows_bar_rounds_and_times_without_figures(
    columns: int, shown: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    text = io.StringIO()
    run = a_run(name="quickstart", status="running", rounds=7, num_rounds=30, bytes_up=8_630_000, bytes_down=7_830_000)
    with LiveView(Console(file=text, width=columns, force_terminal=True, color_system=None)) as view:
        view.show(run, Told())
    line = text.getvalue().rpartition("\x1b[2K")[2].splitlines()[0]
    assert line.startswith("quickstart running train ━")
    assert line.count("━") >= 2, "of at least ten columns, seven thirtieths are drawn"
    assert " 7/30 " in line
    assert line.rstrip().endswith("ETA -:--:--")
    assert "…" not in line
    assert len(line) <= columns
    assert all(figure in line for figure in shown)
    assert not any(figure in line for figure in left_out)
