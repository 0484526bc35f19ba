"""`strata sweep` with a fake cloud; `test_sweep_real.py` uses real processes."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from shared.core.errors import Conflict
from shared.core.scores import Spread
from shared.results.sweeps import Combination, Sweep, SweepFolder, figures_of, over_seeds, read_sweep
from shared.run_records.runs import RunInfo
from tests.strata.conftest import Strata
from tests.strata.fake_cloud import FakeCloud
from tests.strata.samples import a_run

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(autouse=True)
def results(cloud: FakeCloud) -> None:
    """The fake cloud writes the state of its runs into results folders."""
    cloud.files["run.json"] = lambda run: cloud.runs[run].model_dump_json().encode()
    cloud.files["rounds.csv"] = b""


def sweep_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "runs").glob("sweep-*")
    return folder


def table_of(tmp_path: Path) -> list[dict[str, str]]:
    text = (sweep_folder(tmp_path) / "results.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def test_every_combination_becomes_a_run_and_a_row(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, tmp_path: Path
) -> None:
    wrong = strata("sweep", spec_file, "lr=0.1,0.2", "sed=1,2", "--url", url)
    assert (wrong.code, "sed: unknown field; did you mean 'seed'?" in wrong.err, cloud.seen) == (1, True, [])
    result = strata("sweep", spec_file, "lr=0.1,0.2", "batch_size=8,16", "--url", url)
    assert result.code == 0, result.err
    assert [(spec["lr"], spec["batch_size"]) for spec in cloud.specs] == [(0.1, 8), (0.1, 16), (0.2, 8), (0.2, 16)]
    assert len(set(cloud.keys)) == 4
    rows = table_of(tmp_path)
    figures = "accuracy loss rounds bytes_up bytes_down simulated_s clients_mean clients_min clients_max model_sha256"
    assert list(rows[0]) == ["lr", "batch_size", *figures.split(), "run", "status", "reason"]
    assert [f"{row['run']}: {row['lr']} {row['batch_size']}" for row in rows] == [
        "r2: 0.1 8", "r3: 0.1 16", "r4: 0.2 8", "r5: 0.2 16"
    ]  # fmt: skip
    assert {(row["accuracy"], row["bytes_up"], row["status"]) for row in rows} == {("0.93", "600", "completed")}
    assert "3 of 4: lr=0.2, batch_size=8" in result.err
    assert result.out.count("completed") == 4
    compared = json.loads(strata("compare", sweep_folder(tmp_path), "--format", "json").out)
    assert [row["run"] for row in compared["runs"]] == ["r2", "r3", "r4", "r5"]


def test_runs_that_train_side_by_side_are_submitted_together_and_reported_in_order(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, tmp_path: Path
) -> None:
    one = strata("sweep", spec_file, "lr=0.1,0.2", "batch_size=8,16", "--url", url)
    shutil.rmtree(tmp_path / "runs")
    del cloud.seen[:]
    result = strata("sweep", spec_file, "lr=0.1,0.2", "batch_size=8,16", "--url", url, "--parallel", "3")
    assert (result.code, result.out.count("completed")) == (0, one.out.count("completed"))
    posts = [at for at, seen in enumerate(cloud.seen) if seen == ("POST", "/runs")]
    assert posts[:3] == [0, 1, 2]
    assert len(posts) == 4
    assert [row["status"] for row in table_of(tmp_path)] == ["completed"] * 4
    assert strata("sweep", spec_file, "lr=0.1", "--url", url, "--parallel", "0").code == 2


def test_repeated_arguments_run_only_incomplete_combinations(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, tmp_path: Path
) -> None:
    arguments = ("sweep", spec_file, "lr=0.1,0.2", "--url", url, "--format", "csv")
    first = strata(*arguments)
    posts = [seen for seen in cloud.seen if seen[0] == "POST"]
    assert strata(*arguments).out == first.out
    assert [seen for seen in cloud.seen if seen[0] == "POST"] == posts == [("POST", "/runs")] * 2
    shutil.rmtree(tmp_path / "runs" / "r3")  # a run without results is not complete
    again = strata(*arguments)
    assert again.out == first.out
    assert "1 of 2 combinations are complete" in again.err
    assert len(cloud.keys) == 2
    path = sweep_folder(tmp_path) / "sweep.json"
    kept = json.loads(path.read_text())
    for each in kept["combinations"]:  # as if it had been killed before it could record its runs
        each |= {"run": None, "status": "waiting"}
    path.write_text(json.dumps(kept))
    assert strata(*arguments).out == first.out
    assert [row["run"] for row in table_of(tmp_path)] == ["r2", "r3"]


def test_results_that_cannot_be_read_or_are_incomplete_are_not_counted_as_completed(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, tmp_path: Path
) -> None:
    arguments = ("sweep", spec_file, "lr=0.1,0.2", "--url", url)
    strata(*arguments)
    folder = next((tmp_path / "runs").glob("sweep-*"))
    sweep = SweepFolder(folder, Sweep.model_validate_json((folder / "sweep.json").read_bytes()), tmp_path / "runs")
    records = [tmp_path / "runs" / str(each.run) / "run.json" for each in sweep.sweep.combinations]
    for record, (old, new) in zip(records, [('"phase"', '"stage"'), ('"completed"', '"running"')], strict=True):
        assert old in record.read_text()
        record.write_text(record.read_text().replace(old, new))
    assert sweep.todo() == [0, 1]
    (first, _), (second, info) = sweep.rows()
    assert (first.status, second.status, info and info.status) == ("unreadable", "completed", "running")
    assert "stage: unknown field" in str(first.reason)
    assert strata(*arguments).code == 0  # they are fetched again
    assert sweep.todo() == []


def test_other_values_are_another_sweep(strata: Strata, url: str, cloud: FakeCloud, spec_file: Path) -> None:
    strata("sweep", spec_file, "lr=0.1,0.2", "--url", url)
    strata("sweep", spec_file, "lr=0.1,0.3", "--url", url)
    assert len(set(cloud.keys)) == len(cloud.keys) == 4
    assert strata("sweep", spec_file, "lr=0.1,0.2", "--into", "mine", "--dry-run", "--url", url).code == 0


def test_failed_run_is_recorded_and_continued_next_time(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, tmp_path: Path
) -> None:
    def ends() -> list[tuple[str, str, str]]:
        return [(row["run"], row["status"], row["reason"]) for row in table_of(tmp_path)]

    cloud.ends_as = "failed"
    arguments = ("sweep", spec_file, "lr=0.1,0.2", "--url", url)
    result = strata(*arguments)
    assert result.code == 1
    assert result.err.count("failed: no device left") == 2
    assert ends() == [("r2", "failed", "no device left"), ("r3", "failed", "no device left")]
    cloud.ends_as = "completed"
    assert strata(*arguments).code == 0
    assert ends() == [("r2", "completed", ""), ("r3", "completed", "")]
    assert ("POST", "/runs/r2/resume") in cloud.seen
    assert len(cloud.keys) == 2


def test_refused_combination_does_not_prevent_the_others(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, tmp_path: Path
) -> None:
    result = strata("sweep", spec_file, "lr=0.1,99,0.2", "--url", url)  # the fake cloud refuses 99
    assert result.code == 1
    assert [(row["run"], row["status"], row["reason"]) for row in table_of(tmp_path)] == [
        ("r2", "completed", ""),
        ("", "failed", "lr: too large"),
        ("r3", "completed", ""),
    ]


def test_dry_run_lists_the_combinations_and_starts_nothing(strata: Strata, spec_file: Path, tmp_path: Path) -> None:
    result = strata("sweep", spec_file, "lr=0.1,0.2", "seed=1,2", "--dry-run", "--format", "json")
    assert result.code == 0
    rows = json.loads(result.out)
    assert [(row["lr"], row["seed"]) for row in rows] == [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]
    assert {row["status"] for row in rows} == {"waiting"}
    assert "4 of 4 combinations to run, into runs/sweep-small-" in result.err
    assert not (tmp_path / "runs").exists()
    assert "0.2" in strata("sweep", spec_file, "lr=0.1,0.2", "--dry-run").out


def test_run_whose_id_is_a_path_is_refused(
    strata: Strata, url: str, cloud: FakeCloud, spec_file: Path, tmp_path: Path
) -> None:
    cloud.runs["r3"] = a_run().model_copy(update={"run": "../../evil"})  # the folder of the fake cloud's next run
    result = strata("sweep", spec_file, "lr=0.1,0.2", "--url", url)
    assert result.code == 1
    assert "did not return a valid RunInfo (at run: must match the pattern" in result.err
    assert list(tmp_path.iterdir()) == [spec_file]


def test_state_of_another_program_is_neither_used_nor_removed(strata: Strata, spec_file: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "mine" / "state" / "thesis.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("years of work")
    result = strata("sweep", spec_file, "lr=0.1,0.2", "--into", "mine")
    assert (result.code, result.err) == (
        1,
        "error: mine/state exists and belongs to no sweep: choose another folder with --into\n",
    )
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["small.yaml", "thesis.txt"]
    assert theirs.read_text() == "years of work"


# ---- the folder


def a_sweep(*values: dict[str, object]) -> Sweep:
    combinations = tuple(Combination(values=each, spec_digest=str(each)) for each in values)
    return Sweep(sweep="s", name="small", arguments=("a.yaml",), keys=tuple(values[0]), combinations=combinations)


def test_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "s", a_sweep({"lr": 1}), tmp_path)
    folder.note(0, run="r1", status="running")
    assert SweepFolder(tmp_path / "s", a_sweep({"lr": 1}), tmp_path).sweep.combinations[0].run == "r1"
    with pytest.raises(Conflict, match=r"holds another sweep \(a.yaml\)"):
        SweepFolder(tmp_path / "s", a_sweep({"lr": 2}), tmp_path)


def test_state_belongs_to_the_sweep_once_that_is_recorded(tmp_path: Path) -> None:
    assert read_sweep(tmp_path) is None
    SweepFolder(tmp_path / "s", a_sweep({"lr": 1}), tmp_path).own_state()
    (tmp_path / "s" / "state").mkdir()  # created by its topology, which may be killed before it has a run
    again = SweepFolder(tmp_path / "s", a_sweep({"lr": 1}), tmp_path)
    again.own_state()
    assert read_sweep(tmp_path / "s") == again.sweep


def test_mean_and_deviation_are_over_the_completed_seeds_of_a_combination() -> None:
    def row(lr: float, seed: int, accuracy: float | None, status: str = "completed") -> tuple[Combination, RunInfo]:
        combination = Combination(values={"seed": seed, "lr": lr}, spec_digest="", status=status)
        return combination, a_run(accuracy=accuracy)

    rows = [row(0.1, 1, 0.5), row(0.2, 1, 0.6), row(0.1, 2, 0.7), row(0.2, 2, 0.9, "failed"), row(0.1, 3, 0.9)]
    (first, means), (second, alone) = over_seeds(rows)
    assert [combination.values["seed"] for combination, _ in first] == [1, 2, 3]
    assert means is not None
    assert (means["lr"], means["n"]) == (0.1, 3)
    assert means["accuracy_mean"] == pytest.approx(0.7)
    assert means["accuracy_sd"] == pytest.approx(0.2)  # sqrt((0.04 + 0 + 0.04) / 2)
    assert [combination.status for combination, _ in second] == ["completed", "failed"]
    assert alone is not None
    assert (alone["n"], alone["accuracy_mean"], alone["accuracy_sd"]) == (1, 0.6, None)
    unseeded = [(Combination(values={"lr": lr}, spec_digest=""), a_run()) for lr in (0.1, 0.2)]
    assert [means for _, means in over_seeds(unseeded)] == [None, None]


def test_figures_over_clients_are_of_the_model_that_each_uses() -> None:
    spreads = {"received": Spread.of([0.2, 0.4]), "own": Spread.of([0.6, 0.8])}
    common, personal = (a_run(clients=spreads, accuracy_of=of) for of in ("global model", "mean over clients"))
    figures = [figures_of(info, info.metrics) for info in (common, personal)]
    assert [(row["clients_min"], row["clients_max"]) for row in figures] == [(0.2, 0.4), (0.6, 0.8)]
    assert [row["clients_mean"] for row in figures] == pytest.approx([0.3, 0.7])
    assert figures_of(None, common.metrics)["clients_mean"] is None


def test_means_are_shown_below_their_seeds_and_written_to_a_file(
    strata: Strata, url: str, spec_file: Path, tmp_path: Path
) -> None:
    result = strata("sweep", spec_file, "seed=1,2", "lr=0.1,0.2", "--url", url)
    lines = [line.split("│")[1:3] for line in result.out.splitlines() if line.startswith("│")]
    shown = [tuple(cell.strip() for cell in line) for line in lines]
    assert shown == [(first, lr) for lr in ("0.1", "0.2") for first in ("1", "2", "mean of 2", "± sd")]
    means = list(csv.DictReader((sweep_folder(tmp_path) / "over_seeds.csv").read_text().splitlines()))
    found = [(row["lr"], row["n"], float(row["accuracy_mean"]), float(row["accuracy_sd"])) for row in means]
    assert found == [("0.1", "2", 0.93, 0.0), ("0.2", "2", 0.93, 0.0)]
    assert len(table_of(tmp_path)) == 4
    again = strata("sweep", spec_file, "seed=1,2", "lr=0.1,0.2", "--url", url, "--format", "json")
    assert [(row["lr"], row["rounds_mean"]) for row in json.loads(again.out)["over_seeds"]] == [(0.1, 3.0), (0.2, 3.0)]
