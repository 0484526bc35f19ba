"""Runs that are judged by an error or another metric: shown, compared, drawn, swept and exported by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.core.scores import Spread
from shared.plots.curves import scores
from shared.results.comparison import compare
from shared.results.reader import read_history
from shared.results.sweeps import figures_of, metrics_of
from shared.results.text_tables import round_columns, run_figures
from shared.results.tracking.scalars import tracked_of
from shared.run_records.metrics import ACCURACY, MetricInfo
from shared.run_records.rounds import Evaluation
from strata.tables import runs_table
from tests.strata.conftest import Strata
from tests.strata.samples import a_round, a_run, put_run

MAE = MetricInfo(label="mae", higher_is_better=False)
RMSE = MetricInfo(label="rmse", higher_is_better=False)


def in_folder(
    runs: Path, run: str, errors: list[float], metrics: tuple[MetricInfo, ...] = (MAE, RMSE), **changes: Any
) -> Path:
    """Writes a run of a regression, whose rounds take 4 s; the error over clients is twice the global one."""
    rounds = [
        a_round(
            number,
            simulated_s=4.0,
            client_accuracy=None,
            clients={"own": Spread.of([error, 3 * error], higher_is_better=False)},
            client_metrics={"rmse": {"received": Spread.of([error + 1, error + 2], higher_is_better=False)}},
            evaluation={"global": Evaluation(n=9, loss=error**2, metrics={"mae": error, "rmse": error + 1})},
        )
        for number, error in enumerate(errors, start=1)
    ]
    last = {"mae": errors[-1], "rmse": errors[-1] + 1}
    info = a_run(
        run=run, accuracy=None, metrics=metrics, scores=last, resolved=True, clients=rounds[-1].clients,
        client_metrics=rounds[-1].client_metrics,
        rounds=len(errors), num_rounds=len(errors), simulated_s=4.0 * len(errors), **changes,
    )  # fmt: skip
    return put_run(runs / run, rounds, info)


def test_an_error_reaches_its_target_from_above(runs: Path) -> None:
    found = compare([in_folder(runs, "slow", [0.9, 0.7, 0.5, 0.4]), in_folder(runs, "fast", [0.8, 0.3, 0.35])])
    assert (found.metric, found.target) == (MAE, 0.4)  # the best error that both reach
    firsts = [curve.reached(found.target) for curve in found.curves]
    assert [first.round_no for first in firsts if first] == [4, 2]
    assert [curve.value for curve in found.curves] == [0.4, 0.35]
    assert found.remarks == ()


@pytest.mark.whole
@pytest.mark.integration
def test_runs_are_compared_by_another_of_their_metrics(strata: Strata, runs: Path) -> None:
    in_folder(runs, "a", [0.9, 0.5])
    in_folder(runs, "b", [0.8, 0.7])
    shown = json.loads(strata("compare", "a", "b", "--metric", "rmse", "--target", "1.75", "--format", "json").out)
    assert (shown["metric"], shown["target"]) == ("rmse", 1.75)
    assert [run["rmse"] for run in shown["runs"]] == [1.5, 1.7]
    assert [run["rounds_to_target"] for run in shown["runs"]] == [2, 2]
    assert [run["clients_mean"] for run in shown["runs"]] == pytest.approx([2.0, 2.2])
    table = strata("compare", "a", "b")
    assert "target: 0.7, the best mae that all runs reach" in table.err
    unknown = strata("compare", "a", "b", "--metric", "f1")
    assert (unknown.code, "unknown metric 'f1'" in unknown.err) == (1, True)


def test_of_the_mean_over_clients_only_the_headline_is_compared(runs: Path) -> None:
    folder = in_folder(runs, "a", [0.5, 0.25], accuracy_of="mean over clients")
    assert [point.value for point in compare([folder]).curves[0].points] == [1.0, 0.5]
    assert compare([folder], metric="rmse").curves[0].points == ()


def test_runs_of_different_headlines_say_so(runs: Path) -> None:
    found = compare([in_folder(runs, "a", [0.9]), in_folder(runs, "b", [0.8], (RMSE, MAE))])
    assert "Different headline metrics (mae; rmse): compared by mae." in found.remarks


def test_tables_name_the_metric_and_how_even_clients_are(runs: Path) -> None:
    history = read_history(in_folder(runs, "a", [0.5]))
    columns = {column.name: column.cells for column in round_columns(history.rounds, history.info.metrics)}
    assert (columns["mae"], columns["rmse"], columns["clients"]) == (["0.5000"], ["1.5000"], ["1.0000"])
    assert (columns["worst decile"], columns["variance"]) == (["1.5000"], ["0.25"])
    figures = dict(run_figures(history.info))
    assert figures["mae"] == "0.5000 (global model)"
    assert figures["clients, own"] == "1.0000 (mean of 2, 0.5000 to 1.5000; worst decile 1.5000, variance 0.25)"
    assert "accuracy" not in {*columns, *figures}
    spec = history.info.spec.replace(num_devices=4, num_edges=2, max_devices=4)
    roomy = history.info.replace(spec=spec.replace(max_devices=10))
    assert dict(run_figures(history.info.replace(spec=spec)))["devices, edges"] == "4, 2"
    assert dict(run_figures(roomy))["devices, edges"] == "4 (room for 10), 2"
    texts = [str(cell) for column in runs_table([history.info, a_run()]).columns for cell in column.cells]
    assert "0.5000 mae" in texts


def test_rounds_csv_pictures_trackers_and_sweeps_have_the_metric(runs: Path) -> None:
    folder = in_folder(runs, "a", [0.5, 0.25])
    header, first, _ = (folder / "rounds.csv").read_text().splitlines()
    assert header.endswith("accuracy,loss,mae,rmse,client_metrics")
    assert ',,0.25,0.5,1.5,"{""rmse"": {""received"": ' in first
    history = read_history(folder)
    picture: Any = scores(history)
    other: Any = scores(history, "time", RMSE)
    assert (picture.name, picture.panels[0].y.label, picture.panels[0].series[0].y) == ("mae", "mae", (0.5, 0.25))
    assert (other.name, other.panels[0].series[0].y) == ("rmse_by_time", (1.5, 1.25))
    assert [series.name for series in other.panels[0].series] == ["global model"]
    step = tracked_of(history.info, history.rounds).steps[0].figures
    assert (step["mae/global"], step["clients_own/worst_decile"], step["clients_own/variance"]) == (0.5, 1.5, 0.25)
    assert metrics_of([]) == (ACCURACY,)
    row: Any = (None, history.info)
    assert figures_of(history.info, metrics_of([row]))["mae"] == 0.25


def test_the_worst_decile_is_of_a_tenth_of_the_clients_in_the_metrics_direction() -> None:
    values = [float(n) for n in range(21)]
    assert Spread.of(values).worst_decile == (0 + 1 + 2) / 3  # ceil(2.1) clients
    assert Spread.of(values, higher_is_better=False).worst_decile == (18 + 19 + 20) / 3
    assert Spread.of([0.5]).worst_decile == 0.5
    assert Spread.of([0.0, 1.0, 1.0, 0.0]).variance == 0.25
    shuffled = [0.1 * n for n in (7, 3, 9, 1, 5, 2, 8)]
    assert Spread.of(shuffled).variance == Spread.of(sorted(shuffled)).variance


def test_a_round_without_a_value_of_the_headline_shows_no_accuracy_in_its_place() -> None:
    f1 = MetricInfo(label="f1", unit="share")
    (row,) = [a_round(1, clients={}, client_accuracy=0.5)]
    shown = {column.name: column.cells for column in round_columns([row], [f1])}
    assert shown["clients"] == ["-"]
    assert {column.name: column.cells for column in round_columns([row])}["clients"] == ["50.00 %"]
