"""Tests of the soak: a short one, its plan of faults, its checks of a record and its judgement of memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from shared.run_records.visits import FailureInfo, VisitRow
from shared.spec.experiment import ExperimentSpec
from tests.soak.memory import Memory
from tests.soak.plan import EVERY_CYCLE, SELDOM, actions
from tests.soak.records import errors_in, losses_of, miscounts
from tests.soak.soak import run_soak

NODES = {"agent": ["agent-2", "agent-3"], "edge": ["edge-2"], "proxied": ["agent-1"], "disk": [], "clock": ["cloud"]}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_short_soak_finds_no_problem(tmp_path: Path) -> None:
    summary = run_soak(0.5, 3, tmp_path, away_s=4.0, gap_s=2.0)
    print(summary.table())
    assert summary.problems == []
    assert summary.runs.total() >= 1
    assert summary.compared == summary.equal >= 1
    assert summary.faults.total() >= 5


# ---- the plan


def test_the_seed_decides_the_faults_and_each_cycle_has_every_kind_that_has_a_target() -> None:
    first, again, other = (list(islice(actions(seed, NODES, 3.0), 60)) for seed in (7, 7, 2))
    assert first == again
    assert first != other
    cycle = first[: len(EVERY_CYCLE) + len(SELDOM) - 1]
    possible = [kind for kind in (*EVERY_CYCLE, *SELDOM) if kind != "disk_full"]
    assert sorted(action.kind for action in cycle) == sorted(possible)
    assert {action.victim for action in cycle if action.kind.startswith("edge")} == {"edge-2"}


# ---- the checks of a record


def row(seat: int, outcome: str = "used", *, agent: str = "a", visits: int = 1, fresh: bool = False) -> VisitRow:
    reason = "lost" if outcome == "failed" else None
    figures = {} if outcome == "failed" else {"visits": float(visits)}
    return VisitRow(
        seat=seat, edge="e", agent=agent, outcome=outcome, reason=reason, fresh_state=fresh, figures=figures
    )


def detail(round_no: int, rows: Sequence[VisitRow], *failures: FailureInfo) -> RoundDetail:
    return RoundDetail(round_no=round_no, phase="train", seats=tuple(rows), failures=failures)


def lost(seat: int) -> FailureInfo:
    return FailureInfo(seat=seat, reason="lost", detail="why")


def info(num_rounds: int, **changes: Any) -> RunInfo:
    spec = ExperimentSpec(num_devices=2, num_rounds=num_rounds, **changes)
    common = {"run": "r", "name": "n", "algorithm": "a", "status": "completed", "created_at": ""}
    return RunInfo.model_validate({**common, "num_rounds": num_rounds, "spec": spec})


def moved(seat: int, agent: str) -> Event:
    return Event(id="1", kind="seat.moved", at="", data={"seats": str(seat), "n_seats": 1, "agent": agent, "from": "a"})


def test_consistent_record_has_no_errors_and_names_its_losses() -> None:
    details = [detail(1, [row(0), row(1, "failed")], lost(1)), detail(2, [row(0, visits=2), row(1)])]
    assert errors_in(info(2), details, []) == []
    assert losses_of(details) == [{"round_no": 1, "seats": [1]}]
    assert miscounts(details) == []


@pytest.mark.parametrize(
    ("rows", "failures", "message"),
    [
        ([row(0)], [], "not each of 2 once"),
        ([row(0), row(0)], [], "not each of 2 once"),
        ([row(0), row(1, "failed")], [], "lost in only one"),
        ([row(0), row(1)], [lost(1)], "lost in only one"),
        ([row(0), row(1, "failed").replace(reason=None)], [lost(1)], "lost for no reason"),
        ([row(0), row(1, "failed")], [lost(1).replace(detail="")], "says nothing"),
    ],
)
def test_omission_in_a_record_is_found(rows: list[VisitRow], failures: list[FailureInfo], message: str) -> None:
    (found,) = errors_in(info(1), [detail(1, rows, *failures)], [])
    assert message in found


def test_moved_seats_and_fresh_states_must_have_events() -> None:
    details = [detail(1, [row(0), row(1)]), detail(2, [row(0), row(1, agent="b", fresh=True)])]
    errors = errors_in(info(2), details, [])
    assert [what.partition(": ")[2] for what in errors] == [
        "seat 1 went to b, no event says so",
        "seat 1 has fresh state though it was never moved",
    ]
    assert errors_in(info(2), details, [moved(1, "b")]) == []


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        ({"select": "random", "fraction_train": 0.5}, [row(1)], [row(1), row(1)]),
        (
            {"client": "edge", "schedule": "free_compute"},
            [row(0), row(1), row(0).replace(wave=1)],
            [row(0), row(0).replace(wave=1), row(0).replace(wave=1)],
        ),
    ],
    ids=["not selected", "a further share"],
)
def test_seats_have_as_many_rows_as_selection_and_shares_ask_for(
    spec: dict[str, Any], right: list[VisitRow], wrong: list[VisitRow]
) -> None:
    assert errors_in(info(1, **spec), [detail(1, right)], []) == []
    assert len(errors_in(info(1, **spec), [detail(1, wrong)], [])) == 1
    assert "rounds are missing" in errors_in(info(2, **spec), [detail(1, right)], [])


@pytest.mark.parametrize(
    ("second", "n"),
    [
        (row(0, visits=2), 0),
        (row(0, visits=3), 1),
        (row(0, visits=1), 1),
        (row(0, visits=1, fresh=True), 0),
        (row(0, visits=2, fresh=True), 1),
    ],
)
def test_visit_counted_twice_or_not_at_all_is_found_and_fresh_state_counts_anew(second: VisitRow, n: int) -> None:
    assert len(miscounts([detail(1, [row(0)]), detail(2, [second])])) == n


# ---- memory


@pytest.mark.parametrize(("life_s", "late", "n"), [(400.0, 109, 0), (400.0, 112, 1), (200.0, 200, 0)])
def test_memory_growth_is_judged_for_long_lived_processes_only(life_s: float, late: int, n: int) -> None:
    samples = [(0.0, 50), (80.0, 80), (95.0, 100), (life_s, late)]
    assert len(Memory({("cloud", 1): samples}).grown()) == n
