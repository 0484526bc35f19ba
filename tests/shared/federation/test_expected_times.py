"""What is expected of tasks and rounds, beside what they take; and fields of a spec that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core.formatting import duration, size
from shared.federation.expected_times import ExpectedTimes
from shared.federation.visit_estimates import HEAD_BYTES
from tests.federation import small_spec
from tests.shared.algorithms.layouts import ran, resolved

PHONE = {"name": "phone_low", "jitter_s": 0}
SLOW = {"profile": PHONE, "straggler_ratio": 1 / 3, "edge_latency_s": 0}


def times_of(**changes: Any) -> ExpectedTimes:
    experiment = resolved(**small_spec(**changes))
    return ExpectedTimes(experiment, experiment.spec)


def without_effect(**changes: Any) -> list[str]:
    return [line.removeprefix("without effect: ") for line in times_of(**changes).without_effect]


@pytest.mark.whole
@pytest.mark.parametrize("slows", ["compute", "visit", "link"])
async def test_tasks_and_rounds_take_what_is_expected(slows: str) -> None:
    """But for the bytes of a body's header, which are assumed to be 8 kB; they are fewer."""
    spec = small_spec(devices={**SLOW, "straggler_slows": slows}, num_rounds=1)
    done, times = await ran(spec), times_of(**{**spec, "name": "expected"})
    (detail,) = done.rounds
    rows = {row.seat: row for row in detail.seats}
    assert sorted(rows) == [seat.number for seat in times.seats]
    for seat, cost in zip(times.seats, times.costs, strict=True):
        row = rows[seat.number]
        assert cost.compute_s == pytest.approx(row.compute_s)
        most_s = 8 * HEAD_BYTES * (1 / seat.profile.up_bps + 1 / seat.profile.down_bps)
        assert 0 <= cost.simulated_s - row.simulated_s < most_s
    slowest_s = max(row.simulated_s for row in rows.values())
    assert rows[times.last[1].number].simulated_s == pytest.approx(slowest_s, rel=0.01)  # several are as slow
    assert times.last[0] == pytest.approx(detail.simulated_s, rel=0.25)
    usual, slow = times.classes
    assert (usual.name, usual.n, slow.name, slow.n) == ("phone_low", 4, "phone_low, 8 times slower", 2)
    parts = {"compute": ("compute_s",), "link": ("down_s", "up_s"), "visit": ("compute_s", "down_s", "up_s")}[slows]
    for part in ("compute_s", "down_s", "up_s"):
        assert getattr(slow, part) == pytest.approx(getattr(usual, part) * (8 if part in parts else 1))


def test_what_changes_no_time_is_named_with_its_cause() -> None:
    slow = {**SLOW, "edge_latency_s": {"name": "uniform", "low": 0.001, "high": 0.1}}
    (line,) = without_effect(devices={**slow, "straggler_slows": "compute"})
    assert line.startswith("straggler_slowdown 8 (straggler_slows: compute) changes a task by 0.")
    assert " %: compute is < 1 ms of 0." in line
    assert without_effect(devices=slow) == []  # whole tasks do
    assert (
        without_effect(devices={"profile": {"jitter_s": 0.5}}, edge_link={"jitter_s": 0.5}) == []
    )  # no median shows it
    assert without_effect(devices={"profile": {"compute_sps": 100}})[0].startswith(
        "compute_sps of the profile changes "
    )
    assert without_effect(devices={"profile": {"up_bps": 1e5}}) == []
    assert without_effect(edge_link={"latency_s": 0.01})[0].startswith("edge_link.latency_s changes a round by 0.0 %")
    assert without_effect(edge_link="lte") == []
    (line,) = times_of(
        num_devices=10, local_epochs=10, devices={"straggler_ratio": 0.1, "straggler_slows": "compute"}
    ).without_effect
    assert line.startswith(
        "without effect on a round: straggler_slowdown 8 (straggler_slows: compute) changes it by 0.0 %"
    )


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ({"straggler_slowdown": 5}, "straggler_slowdown 5: straggler_ratio is 0, so that no device is a straggler"),
        ({"straggler_slows": "link"}, "straggler_slows link: straggler_ratio is 0, so that no device is a straggler"),
        ({"straggler_ratio": 0.5, "straggler_slowdown": 1}, "straggler_slowdown 1: stragglers take as long as other"),
        ({"straggler_ratio": 0.01}, "straggler_ratio 0.01: it makes none of 6 devices a straggler"),
    ],
)
def test_fields_of_stragglers_without_stragglers_are_named(devices: dict[str, Any], says: str) -> None:
    (line,) = without_effect(devices=devices)
    assert line.startswith(says)


@pytest.mark.parametrize(
    ("twins", "changes", "says"),
    [
        ({"loss": 1}, {}, "twins.loss 1: every message is lost"),
        ({"noise": 0.1}, {"schedule": "own_data"}, "without effect on tasks: twins.period_s, noise: schedule own_data"),
        ({"delay_s": 1, "estimator": "ewma"}, {}, "without effect: twins.period_s, delay_s, estimator: devices are"),
        ({"noise": 0.1}, {}, None),
        ({"loss": 0.1}, {}, None),
        ({"noise": 0.1, "bias": 0.2, "estimator": "kalman"}, {}, "without effect: twins.noise and bias: kalman knows"),
        ({"noise": 0.1}, {"devices": {"profile": {"load": "steps"}}}, None),
        ({"period_s": 1e8, "noise": 0.1}, {}, "twins.period_s 1e+08 is longer than the run"),
    ],
)
def test_telemetry_that_changes_nothing_is_named(
    twins: dict[str, Any], changes: dict[str, Any], says: str | None
) -> None:
    times = times_of(**{"schedule": "free_compute", "twins": {"period_s": 0.01, **twins}, **changes})
    assert any(line.startswith(f"expected: schedule {times.spec.schedule}") for line in times.lines()) == (
        times.spec.schedule != "own_data"
    )
    lines = [line for line in times.without_effect if "twins" in line]
    assert lines[0].startswith(says) if says else not lines
    assert any("messages of 128 B to its twin in such a round" in line for line in times.lines())


def test_the_wait_for_the_first_samples_is_told() -> None:
    travels: dict[str, Any] = {
        "schedule": "equal",
        "collected": "travels",
        "devices": {"profile": {"latency_s": 0.5, "up_bps": 1e4}},
    }
    travels["devices"] |= {"edge_latency_s": 0}
    times = times_of(**travels)
    n_bytes = max(seat.n_train for seat in times.seats) * times.experiment.sample_bytes
    (line,) = [line for line in times.lines() if line.startswith("expected: the first round begins ")]
    assert f"begins {duration(0.5 + 8 * n_bytes / 1e4)} later, when up to {size(n_bytes)} of samples" in line
    assert any(line.startswith("without effect after the first round: collected") for line in times.lines())
    later = list(times_of(**travels, arrival_rate=0.5).lines())
    assert not any("collected" in line for line in later)


def test_a_load_that_hardly_changes_during_tasks_is_named() -> None:
    def load(**fields: Any) -> dict[str, Any]:
        return {"profile": {"load": {"during_tasks": True, **fields}, "compute_sps": 10}, "edge_latency_s": 0}

    (line,) = without_effect(devices=load(name="steps", every_s=1e5))
    assert line.startswith("load steps changes during at most 0.0 % of tasks")
    assert without_effect(devices=load(name="steps", every_s=1e5, during_tasks=False)) == []
    assert without_effect(devices=load(name="sinus", period_s=0.01)) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"round_deadline_s": 1000}, ["round_deadline_s 1000: the slowest task takes "]),
        ({"round_deadline_s": 1e-6}, ["round_deadline_s 1e-06 is too short for all: the quickest task takes "]),
        ({"report_deadline_s": 1000}, ["report_deadline_s 1000: the slowest task takes "]),
        ({"round_deadline_s": 0.5, "devices": {"profile": "phone_low", "straggler_ratio": 0.5}}, []),
        ({"round_deadline_s": 1000, "devices": {"profile": {"drop_rate": 0.1}}}, []),  # of those the edge waits so long
        ({"round_deadline_s": 1000, "devices": {"profile": {"delay_s": {"name": "normal", "mean": 1, "sd": 9}}}}, []),
        (
            {"round_deadline_s": 1000, "devices": {"profile": {"jitter_s": 1}}},  # no transfer takes a second longer
            ["round_deadline_s 1000: the slowest task takes 2."],
        ),
        ({"round_deadline_s": 2, "devices": {"profile": {"jitter_s": 1}}}, []),
        ({"round_deadline_s": 1000, "schedule": "equal"}, []),  # tasks are other ones
        (
            {"round_deadline_s": 0.5, "partial_work": True, "devices": {**SLOW, "straggler_slowdown": 50}},
            ["without effect on what is late: partial_work: the transfers of a late task alone take "],
        ),
        ({"staleness_discount": 0.9}, ["staleness_discount 0.9: late: drop uses no late update"]),
        ({}, []),
    ],
)
def test_deadlines_that_end_no_task_or_all_are_named(changes: dict[str, Any], says: list[str]) -> None:
    found = without_effect(**changes)
    assert [line.startswith(text) for line, text in zip(found, says, strict=True)] == [True] * len(says)


# ---- load and availability

ALWAYS_ON = {"name": "trace", "traces": [[[0, 1e6]]]}
OFTEN_OFF = {"name": "trace", "traces": [[[0, 0.05]], [[0, 1e6]]]}
"""Of two devices one is on for a twentieth of a second only."""


@pytest.mark.parametrize(
    ("profile", "line"),
    [
        ({"availability": ALWAYS_ON}, "without effect: availability trace: no device is off"),
        ({"availability": OFTEN_OFF}, "expected: 75 % of devices are on when a round begins, at least 50 %"),
        ({"load": {"name": "steps", "low": 0.9}}, "without effect: load steps lengthens a task by at most 0."),
        (
            {"load": {"name": "steps", "low": 0.5, "high": 0.5}, "compute_sps": 10},
            "expected: load steps leaves 50 % of compute free, at least 50 %, when a round begins; the times",
        ),
    ],
)
def test_what_load_and_availability_do_is_said(profile: dict[str, Any], line: str) -> None:
    """A run of two rounds."""
    lines = [*times_of(devices={"profile": {**PHONE, **profile}}).lines()]
    assert len([found for found in lines if found.startswith(line)]) == 1, lines
