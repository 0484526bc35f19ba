"""A sweep on real local processes: it is killed, interrupted, and completed by the same command."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path

import pytest

from shared.results.folder import read_run
from shared.results.run_list import runs_in
from tests.forked_strata import Command, run
from tests.strata.conftest import Strata

pytestmark = pytest.mark.e2e
SPEC = (
    "name: real\nnum_rounds: 25\nnum_edges: 2\nnum_devices: 4\ndata: {name: digits, n_train: 400}\n"
    "clock: real\ntime_scale: 0.3\ndevices: {profile: {delay_s: 0.3}}\n"  # a signal comes long before the last round
)
KEYS = ("lr=0.05,0.2", "seed=1,2", "--agents", "2")
SWEEP = ("sweep", "real.yaml", *KEYS)


def interrupted(combination: str, number: int) -> int | None:
    """Start the sweep, send it a signal when rounds of that combination are committed; returns its exit status."""
    sweep, begun = Command(*SWEEP), False
    for line in sweep.stderr:
        begun = begun or line.startswith(combination)
        if begun and line.startswith("running") and "round 0/" not in line:
            break
    sweep.send_signal(number)
    sweep.communicate()
    return sweep.returncode


def statuses(folder: Path) -> list[str]:
    return [each["status"] for each in json.loads((folder / "sweep.json").read_text())["combinations"]]


def test_sweep_that_was_killed_and_interrupted_ends_with_the_same_results(tmp_path: Path, strata: Strata) -> None:
    (tmp_path / "real.yaml").write_text(SPEC, encoding="utf-8")
    assert interrupted("2 of 4", signal.SIGKILL) == -signal.SIGKILL
    (folder,) = (tmp_path / "runs").glob("sweep-real-*")
    assert statuses(folder)[0] == "completed"
    assert statuses(folder)[2:] == ["waiting"] * 2

    assert interrupted("3 of 4", signal.SIGINT) == 130
    assert statuses(folder) == ["completed", "completed", "stopped", "waiting"]

    done = run(*SWEEP)
    assert done.returncode == 0, done.stderr
    assert "2 of 4 combinations are complete" in done.stderr
    assert statuses(folder) == ["completed"] * 4
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [(row["lr"], row["seed"], row["rounds"]) for row in rows] == [
        ("0.05", "1", "25"),
        ("0.05", "2", "25"),
        ("0.2", "1", "25"),
        ("0.2", "2", "25"),
    ]
    assert {row["run"] for row in rows} == {info.run for _, info in runs_in(tmp_path / "runs").runs}  # no further run
    assert len({row["model_sha256"] for row in rows}) == 4
    assert (folder / "compare.png").stat().st_size > 10_000
    assert not (folder / "state").exists()

    plain = run("run", "real.yaml", "lr=0.2", "seed=1", "--agents", "1", "--format", "json", "--runs-dir", "plain")
    assert json.loads(plain.stdout.splitlines()[-1])["model_sha256"] == rows[2]["model_sha256"]
    assert read_run(tmp_path / "runs" / rows[2]["run"]).spec.lr == 0.2
