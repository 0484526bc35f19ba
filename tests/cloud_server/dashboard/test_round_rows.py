"""The table of rounds: the ends of visits add up to the visits, with the reasons of those that did not count."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_server.dashboard.pages.run import client_facts, headline_of
from cloud_server.dashboard.round_rows import VisitCounts, round_table
from cloud_server.dashboard.run_views import RunView
from shared.core.scores import Spread
from shared.plots.history import RunHistory, VisitSummary
from shared.run_records.visits import ENDS, FailureInfo, end_of
from tests.strata.samples import a_round, a_run

FOUND = [
    ("used", None), ("used", None), ("refused", "late"), ("failed", "late"), ("refused", "surplus"),
    ("refused", "too far"), ("failed", "dropped"), ("failed", "timeout"), ("failed", "unavailable"),
    ("idle", "no update"), ("evaluated", None), ("collected", None), ("used_late", "late in round 1"),
]  # fmt: skip


def visits_of(round_no: int, found: list[tuple[str, str | None]]) -> list[VisitSummary]:
    return [
        VisitSummary(round_no, seat, "edge-1", outcome, None, {}, reason)
        for seat, (outcome, reason) in enumerate(found)
    ]


def table(*rounds: Any, visits: list[VisitSummary]) -> tuple[list[str], list[dict[str, Any]]]:
    counts = VisitCounts()
    counts.add(visits)
    return round_table(RunHistory(a_run(), rounds, tuple(visits)), counts)


def test_every_visit_is_in_one_column_and_the_columns_add_up_to_the_visits() -> None:
    columns, (row,) = table(a_round(2, n_visits=12, n_used=3), visits=visits_of(2, FOUND))
    assert {name: row[name] for name in columns if name in ENDS} == {
        "used": 2, "late": 2, "surplus": 1, "refused": 1, "dropped": 1, "failed": 2,
        "no update": 1, "only collected": 1, "only tested": 1,
    }  # fmt: skip
    assert sum(row[name] for name in columns if name in ENDS) == row["tasks"] == 12
    assert row["used"] + row["used late"] == 3, "the round's n_used"
    assert row["shown"]["failed"] == "2 (1 timeout, 1 unavailable)"
    assert row["shown"]["refused"] == "1 (1 too far)"


def test_columns_without_a_visit_are_left_out_and_a_lost_edge_has_one() -> None:
    columns, _ = table(a_round(1), visits=visits_of(1, FOUND[:2]))
    assert columns[:7] == ["round", "phase", "tasks", "used", "late", "refused", "failed"]
    assert "lost edges" not in columns
    lost = (FailureInfo(edge="edge-2", seats={4, 5}, reason="timeout", detail="no answer"),)
    columns, rows = table(a_round(1), a_round(2, failures=lost), visits=visits_of(1, FOUND[:2]))
    assert [(row["round"], row["lost edges"], row["used"]) for row in rows] == [(2, 1, 0), (1, 0, 2)]


def test_visits_are_counted_once_and_anew_when_the_run_was_read_again() -> None:
    counts, visits = VisitCounts(), visits_of(1, FOUND[:3])
    counts.add(visits)
    visits += visits_of(2, FOUND[:1])
    counts.add(visits)
    assert {number: sum(found.values()) for number, found in counts.by_round.items()} == {1: 3, 2: 1}
    counts.add(visits[:2])
    assert {number: sum(found.values()) for number, found in counts.by_round.items()} == {1: 2}


@pytest.mark.parametrize(("outcome", "reason"), FOUND[:-1])
def test_ends_are_among_those_that_add_up(outcome: str, reason: str | None) -> None:
    assert end_of(outcome, reason) in ENDS
    assert end_of("used_late", "late in round 1") not in ENDS


def test_a_failed_run_shows_its_newest_evaluation() -> None:
    failed = a_run(status="failed", accuracy=None, loss=None)
    view = RunView(failed, rounds=(a_round(1), a_round(2), a_round(3, evaluation=None)))
    name, score, loss = headline_of(view)
    assert (name, score, loss) == ("accuracy, global model", "92.00 % after round 2", 0.25)
    assert headline_of(RunView(failed)) == ("accuracy, global model", "-", None)


def test_the_headline_says_after_which_round_it_was_measured() -> None:
    rounds = (a_round(1), a_round(2), a_round(3, evaluation=None))
    running = a_run(status="running", accuracy=0.91)  # as the document was written with round 3
    assert headline_of(RunView(running, rounds=rounds))[1] == "92.00 % after round 2"
    assert headline_of(RunView(a_run(), rounds=rounds))[:2] == ("accuracy, global model", "93.00 % after round 3")


def test_the_spread_over_clients_says_of_which_model_it_is() -> None:
    trained, final = Spread.of([0.5, 0.75]), Spread.of([0.25, 0.5])
    rounds = (a_round(2, clients={"own": trained}), a_round(3))
    both = {"clients, received model, round 3": "37.50 % (25.00 % to 50.00 %)"}
    after = {"clients, own model after training, round 2": "62.50 % (50.00 % to 75.00 %)"}
    assert client_facts(RunView(a_run(clients={"own": final, "received": final}), rounds=rounds)) == both | after
    assert client_facts(RunView(a_run(status="running"), rounds=rounds)) == {"clients, received model": "-"} | after
