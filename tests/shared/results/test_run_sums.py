"""What devices and edges did over a run: sums, their order by any column, and whose model a score is of."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core.formatting import Figure
from shared.results.run_sums import RunSums
from shared.results.sum_columns import EDGE_COLUMNS, Edge, device_columns, devices_of, mean_visit
from shared.run_records.metrics import ACCURACY
from shared.run_records.rounds import EdgeRow
from shared.run_records.visits import VisitRow
from tests.strata.samples import a_seat


def visit(seat: int, outcome: str = "used", **changes: Any) -> VisitRow:
    return VisitRow.model_validate({"seat": seat, "edge": "edge-1", "outcome": outcome, **changes})


def sums_of(*visits: VisitRow, kind: str = "train") -> RunSums:
    sums = RunSums(ACCURACY)
    for each in visits:
        sums.add_visit(kind, each)
    return sums


def test_the_mean_visit_is_of_those_that_took_time_and_is_the_sum_of_its_parts() -> None:
    slow: dict[str, Any] = {"down_s": 1.0, "compute_s": 4.0, "up_s": 1.0, "simulated_s": 6.0}
    fast: dict[str, Any] = {"down_s": 1.0, "wait_s": 0.5, "up_s": 0.5, "simulated_s": 2.0}
    found = sums_of(visit(0, **slow), visit(0, **fast), visit(0, "failed", reason="unavailable")).by_seat[0]
    assert mean_visit(found, "download", "compute", "wait", "upload") == Figure(4.0, "4.0 s")
    parts = [mean_visit(found, part).value for part in ("download", "compute", "wait", "upload")]
    assert parts == [1.0, 2.0, 0.25, 0.75]


def test_devices_without_a_visit_are_listed_and_any_column_sorts_with_missing_values_last() -> None:
    sums = sums_of(visit(2, own_accuracy=0.0, edge="edge-10"), visit(1, own_accuracy=0.75, edge="edge-2"))
    devices = devices_of(sums, [a_seat(0, straggler=True), a_seat(3, role="worker")])
    assert set(sums.by_seat) == {1, 2}, "to list them adds nothing to the run's sums"
    columns = device_columns(devices)

    def order(name: str, *, descending: bool = False) -> list[int]:
        return [device.number for device in columns.in_order(devices, name, descending=descending)]

    assert order("own") == [2, 1, 0, 3]
    assert order("own", descending=True) == [1, 2, 0, 3]
    assert [number for number in order("edge") if number in (1, 2)] == [1, 2], "edge-2 stands before edge-10"
    assert columns.texts(devices[0], ("device", "straggler", "own")) == ["0", "straggler", "-"]
    assert columns.texts(devices[3], ("device",)) == ["3, worker"]


def test_a_column_without_any_value_is_left_out_and_one_of_zeros_is_not() -> None:
    found = devices_of(sums_of(visit(0, own_accuracy=0.0)), [])
    shown = device_columns(found).shown(found)
    assert "own" in shown
    assert not {"received", "energy", "staleness", "wait", "straggler"} & {*shown}


@pytest.mark.parametrize(("loss", "own"), [(0.5, 0.25), (0.4, 0.75)])
def test_a_received_model_that_the_final_evaluation_tests_twice_is_not_taken_for_the_own_one(
    loss: float, own: float
) -> None:
    sums = sums_of(visit(0, own_accuracy=0.25, own_loss=0.9))
    tested = {"received_accuracy": 0.75, "received_loss": 0.5, "own_accuracy": 0.75, "own_loss": loss}
    sums.add_visit("evaluate", visit(0, "evaluated", **tested))
    assert (sums.scores[0].received, sums.scores[0].own) == (0.75, own)
    assert sum(sums.by_seat[0].ends.values()) == 1, "the final evaluation is no visit in training"


def test_the_edge_for_which_rounds_waited_is_counted() -> None:
    sums = RunSums(ACCURACY)
    for took in (3.0, 1.0, 3.0):
        rows = [EdgeRow(edge=f"edge-{at}", home=at, outcome="used", simulated_s=s) for at, s in enumerate((took, 2.0))]
        sums.add_edges("train", rows)
    shown = ("edge", "used", "came last", "mean round")
    texts = [EDGE_COLUMNS.texts(Edge(name, total), shown) for name, total in sums.edges.items()]
    assert texts == [["edge-0", "3", "2", "2.3 s"], ["edge-1", "3", "1", "2.0 s"]]
