"""`strata compare` on made-up results folders."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import NotFound
from shared.core.scores import Spread
from shared.federation.spec_parser import parse_spec
from shared.plots.curves import comparison
from shared.plots.picture import Lines
from shared.results.comparison import compare
from shared.results.folder import read_run
from shared.results.lookup import find_folders
from shared.run_records.rounds import Evaluation
from tests.strata.conftest import Strata
from tests.strata.samples import SPEC, a_round, a_run, put_run

pytestmark = pytest.mark.usefixtures("undrawn")


def in_folder(
    runs: Path, run: str, accuracies: Sequence[float | None], *, spec: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """Writes a run whose rounds take 4 s and 200 uploaded bytes each; None is a round without evaluation."""
    fields = SPEC.model_dump(mode="json", exclude_none=True) | {"name": changes.get("name", "small")} | (spec or {})
    n = len(accuracies)
    totals = {"rounds": n, "num_rounds": n, "bytes_up": 200 * n, "simulated_s": 4.0 * n}
    info = a_run(run=run, spec=parse_spec(fields), **{**totals, "accuracy": accuracies[-1] if n else None, **changes})
    rounds = [
        a_round(number, evaluation=None if value is None else {"global": Evaluation(n=10, accuracy=value, loss=1.0)})
        for number, value in enumerate(accuracies, start=1)
    ]
    after = [a_round(n, kind="evaluate", bytes_up=999, simulated_s=99.0, evaluation=None)] if n else []
    return put_run(runs / run, rounds + after, info)


def compared(strata: Strata, *arguments: object) -> dict[str, Any]:
    result = strata("compare", *arguments, "--format", "json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


# ---- figures


def test_target_is_counted_in_rounds_seconds_and_bytes_of_training(strata: Strata, runs: Path) -> None:
    in_folder(runs, "slow", [0.2, 0.5, 0.7, 0.8])
    in_folder(runs, "fast", [0.6, 0.85, 0.84, 0.9], spec={"lr": 0.5})
    found = compared(strata, "slow", "fast", "--target", "0.7")
    slow, fast = found["runs"]
    assert (slow["rounds_to_target"], slow["simulated_s_to_target"], slow["bytes_up_to_target"]) == (3, 12.0, 600)
    assert (fast["rounds_to_target"], fast["simulated_s_to_target"], fast["bytes_up_to_target"]) == (2, 8.0, 400)
    assert (fast["accuracy"], fast["rounds"], fast["simulated_s"], fast["bytes_up"]) == (0.9, 4, 16.0, 800)
    assert (slow["lr"], fast["lr"]) == (0.05, 0.5)
    assert "seed" not in slow
    assert found["remarks"] == []


def test_default_target_is_the_highest_that_all_runs_reach_and_is_named(strata: Strata, runs: Path) -> None:
    in_folder(runs, "a", [0.2, 0.8, 0.75])
    in_folder(runs, "b", [0.6, 0.9, 0.95])
    result = strata("compare", "a", "b", "--format", "json")
    assert json.loads(result.out)["target"] == 0.8
    assert "target: 80 %, the best accuracy that all runs reach" in result.err
    assert [row["rounds_to_target"] for row in json.loads(result.out)["runs"]] == [2, 2]


def test_target_that_a_run_does_not_reach_is_a_dash(strata: Strata, runs: Path) -> None:
    in_folder(runs, "a", [0.2, 0.8])
    (row,) = compared(strata, "a", "--target", "0.99")["runs"]
    assert row["rounds_to_target"] is row["simulated_s_to_target"] is row["bytes_up_to_target"] is None
    line = next(line for line in strata("compare", "a", "--target", "0.99").out.splitlines() if "80.00 %" in line)
    assert line.count(" - ") == 3


def test_rounds_without_evaluation_count_in_the_costs(runs: Path) -> None:
    folder = in_folder(runs, "a", [None, None, 0.5, None, None, 0.7], spec={"eval_every": 3})
    (course,) = compare([folder]).curves
    assert [(point.round_no, point.simulated_s, point.bytes_up, point.value) for point in course.points] == [
        (3, 12.0, 600, 0.5),
        (6, 24.0, 1200, 0.7),
    ]


def test_curves_are_drawn_over_the_measures_asked_for(runs: Path) -> None:
    folders = [in_folder(runs, "a", [0.2, None, 0.8]), in_folder(runs, "b", [0.3, 0.4])]
    found = compare(folders)
    picture = comparison(found.curves, found.target, ("wall", "round"))
    assert picture is not None
    wall, rounds = (panel for panel in picture.panels if isinstance(panel, Lines))
    assert (wall.x.label, wall.x.unit) == ("wall-clock time", "seconds")
    assert [series.x for series in wall.series[:2]] == [(0.5, 1.5), (0.5, 1.0)], "half a second a round"
    assert [series.x for series in rounds.series[:2]] == [(1, 3), (1, 2)]


def test_run_with_a_headline_over_clients_is_compared_by_it(runs: Path) -> None:
    clients = in_folder(runs, "a", [0.1, 0.2], accuracy_of="mean over clients")
    other = in_folder(runs, "b", [0.1, 0.2])
    comparison = compare([clients, other])
    assert [point.value for point in comparison.curves[0].points] == [0.6, 0.7]  # `client_accuracy` of the rounds
    assert comparison.remarks == ("Different accuracy measures (mean over clients; global model): not comparable.",)


def test_one_measure_for_all_is_the_model_that_each_client_would_use(strata: Strata, runs: Path) -> None:
    """With `--clients` a global model is judged as clients receive it, a personal one as before."""
    spreads = {"received": Spread.of([0.2, 0.4]), "own": Spread.of([0.6, 0.8])}
    in_folder(runs, "a", [0.1, 0.9], clients=spreads, accuracy_of="mean over clients", accuracy=0.7)
    shared = in_folder(runs, "b", [0.1, 0.9], clients=spreads)
    rounds = [a_round(1, clients={"received": Spread.of([0.1, 0.3]), "own": Spread.of([0.9])}), a_round(2)]
    put_run(shared, rounds, read_run(shared))
    comparison = compare([runs / "a", shared], clients=True)
    personal, common = comparison.curves
    assert comparison.remarks == ()
    assert (personal.value, [point.value for point in personal.points]) == (0.7, [0.6, 0.7])
    assert common.value == pytest.approx(0.3)
    assert [point.value for point in common.points] == pytest.approx([0.2])
    found = compared(strata, "b", "--clients")["runs"][0]
    assert (found["accuracy"], found["clients_max"]) == (pytest.approx(0.3), 0.4)
    assert found["accuracy_of"] == "mean over clients"
    assert compared(strata, "b")["runs"][0]["accuracy"] == 0.9


# ---- remarks


def test_different_data_steps_and_unfinished_runs_are_noted(strata: Strata, runs: Path) -> None:
    in_folder(runs, "a", [0.2, 0.8])
    in_folder(runs, "b", [None, 0.7], spec={"eval_every": 2, "data": "mnist"}, status="running", num_rounds=9)
    in_folder(runs, "c", [None, 0.7], spec={"eval_every_s": 90.0})
    result = strata("compare", "a", "b")
    assert result.code == 0
    assert "note: Different test sets (digits; mnist): accuracies are not comparable." in result.err
    assert "note: Evaluated every 1 or 2 rounds" in result.err
    assert "b: running, 2/9" in result.err
    assert "note: Evaluated every 1 rounds or 90 simulated seconds: costs" in strata("compare", "a", "c").err


def test_run_without_an_evaluation_has_a_row_and_does_not_affect_the_target(strata: Strata, runs: Path) -> None:
    in_folder(runs, "a", [0.2, 0.8])
    in_folder(runs, "b", [None], status="running", accuracy=None)
    in_folder(runs, "c", [], status="failed", reason="no device left", accuracy=None)
    result = strata("compare", "a", "b", "c", "--format", "json")
    found = json.loads(result.out)
    assert found["target"] == 0.8
    assert [row["accuracy"] for row in found["runs"]] == [0.8, None, None]
    assert "Not evaluated: left out of charts and target (b; c)." in result.err
    (runs / "compare.png").unlink()
    alone = strata("compare", "c")
    assert (alone.code, "failed" in alone.out) == (0, True)
    assert "no picture: no run has been evaluated yet" in alone.err
    assert not (runs / "compare.png").exists()


# ---- which runs


def test_runs_are_found_by_id_name_latest_and_folder_each_once(strata: Strata, runs: Path, tmp_path: Path) -> None:
    first = in_folder(runs, "r1", [0.5], name="tried", created_at="2026-01-01T00:00:00Z")
    second = in_folder(runs, "r2", [0.5], name="tried", created_at="2026-01-02T00:00:00Z")
    third = in_folder(runs, "r3", [0.5], name="quickstart", created_at="2026-01-03T00:00:00Z")
    elsewhere = in_folder(tmp_path / "pulled", "r4", [0.5])
    assert find_folders(runs, ["tried"]) == [first, second]
    assert find_folders(runs, ["r2", "latest", "tried", "quickstart"]) == [second, third, first]
    assert find_folders(runs, [str(elsewhere), str(runs / "r1")]) == [elsewhere, first]
    long = in_folder(runs, "r5", [0.5], name="\N{SNOWMAN}" * 100)  # 300 bytes, too long for a folder
    assert find_folders(runs, ["\N{SNOWMAN}" * 100]) == [long]
    for unknown, said in (("x" * 300, f"results folder '{'x' * 300}'"), ("quickstrat", "; did you mean 'quickstart'?")):
        result = strata("compare", unknown)
        assert (result.code, said in result.err) == (1, True)
    with pytest.raises(NotFound, match="no run in"):
        find_folders(runs / "empty", ["latest"])


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        (b"\n2,train,", b"\nmany,train,", "round_no: must be a whole number"),
        (b"\n2,train,", b"\n2\0,train,", "round_no: must be a whole number"),
        (b"\n2,train,", b"\n2,tr\xffin,", "can't decode byte 0xff"),
        (b"\n2,train,", b"\n2,guess,", "kind: must be 'train' or 'evaluate'"),
        (b'""accuracy"": 0.6', b'""accuracy"": 0.6.7', "evaluation: broken JSON"),
        (b'""accuracy"": 0.6', b'""accuracy"": ' + b"[" * 10**5, "evaluation: broken JSON"),
        (b'""accuracy"": 0.6', b'""accuracy"": ""high""', "evaluation.global.accuracy: must be a number"),
    ],
)
def test_invalid_line_of_a_table_is_named_with_its_cause(
    strata: Strata, runs: Path, old: bytes, new: bytes, cause: str
) -> None:
    table = in_folder(runs, "r1", [0.5, 0.6]) / "rounds.csv"
    assert table.read_bytes().count(old) == 1
    table.write_bytes(table.read_bytes().replace(old, new))
    result = strata("compare", "r1")
    assert result.code == 1
    assert "runs/r1/rounds.csv, line 3: " in result.err
    assert cause in result.err


def test_runs_of_equal_names_show_the_keys_in_which_they_differ(strata: Strata, runs: Path) -> None:
    in_folder(runs, "r1", [0.5], spec={"lr": 0.1, "partition": {"name": "dirichlet", "alpha": 0.1}})
    in_folder(runs, "r2", [0.6], spec={"lr": 0.1, "partition": {"name": "dirichlet", "alpha": 10}})
    out = strata("compare", "small").out
    assert "alpha=0.1" in out
    assert "alpha=10.0" in out
    assert "lr=" not in out
    first, second = csv.DictReader(strata("compare", "small", "--format", "csv").out.splitlines())
    assert list(first)[:4] == ["run", "name", "partition.alpha", "status"]
    assert [(row["partition.alpha"], row["accuracy"]) for row in (first, second)] == [("0.1", "0.5"), ("10.0", "0.6")]


# ---- forms


@pytest.mark.parametrize(
    ("option", "value", "code", "said"),
    [
        ("--target", "90", 1, "target: 90 is no value of accuracy"),
        ("--target", "-1", 1, "target: -1 is no value of accuracy"),
        ("--target", "many", 2, "Invalid value"),
        ("--out", "a.docx", 1, "error: out: 'a.docx' does not end in .png, .svg, .pdf\n"),
    ],
)
def test_a_target_is_a_share_and_a_picture_has_a_known_format(
    strata: Strata, runs: Path, option: str, value: str, code: int, said: str
) -> None:
    in_folder(runs, "r1", [0.5])
    result = strata("compare", "r1", option, value)
    assert (result.code, said in result.err) == (code, True), result.err
