"""Each row of `make bench` runs at a tiny size, so that the benchmarks keep working; the figures have no meaning."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import pytest

from benchmarks.__main__ import MARK, ROWS
from benchmarks.loops import Job
from benchmarks.profiled.stages import COMMON, STAGES
from benchmarks.rows.scale import slope
from benchmarks.simulators.process import SIMULATORS, Name, Simulator, installed
from benchmarks.turns import in_turns
from strata.launcher.environment import common
from tests.forked_strata import run
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
LINES = {
    "start": ("first round, forked", "first round, executed", "peak memory (PSS), forked"),
    "cnn": ("topology", "plain PyTorch loop, 1 process", "same training code, 2 processes"),
    "mlp": ("topology", "plain PyTorch loop, 1 process", "same training code, 2 processes", "devices at once"),
    "transport": ("topology", "in-memory copies", "peak memory"),
    "population": ("4 of 16 devices, a round", "4 of 4 devices, a round", "16 devices, the first round", "peak memory"),
    "devices": ("40 devices, 4 a round", "40 devices against 4", "submission to first round", "all (PSS), peak"),
    "runs": ("2 runs of 1 agent, one after another", "side by side / one after another", "different models"),
    "in_flight": ("2 versions of 2 updates: 1 agent", "2 agents / 1 agent", "different models"),
    "scale": ("4 devices, a round", "8 devices, peak memory", "log-log slope"),
    "memory": ("after 1 rounds", "after 2 rounds"),
    "train": ("mlp 1x8x8", "cnn_mnist 1x28x28"),
    "methods": ("fedavg, mlp: 1.00 x operations", "moon, mlp", "fedser n=4, mlp", "lafl_cpn, mlp"),
    "half": ("mlp: 0.50 x operations, 0.50 x bytes",),
    "pristine": ("mlp, 2 steps: a visit of",),
    "stacked": ("mlp, 3 devices: one by one", "mlp, 3 devices: 2 at once"),
    "events": ("CPU a round, 0 clients", "CPU a round, 2 clients"),
    "tls": ("mlp: a round over mutual TLS", "mlp: a round without", "transport: a round over mutual TLS"),
    "connect": ("mlp: a round of nodes that dial out", "mlp: a round of nodes that are", "transport: a round of nodes"),
    "profile": (
        *("cloud_server: wait for edges", "cloud_server: aggregate", "cloud_server: write files"),
        *("edge_server: wait for agents", "edge_server: take answers", "edge_server: record of visits"),
        *("device_agent: train", "device_agent: visits, the rest", "device_agent: add updates up"),
    ),
}


@pytest.fixture(scope="module")
def all_rows() -> list[str]:
    """The lines of all rows but the header, from one command in the environment in which it would restart itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("STRATA_", "BENCH_"))]:
            patch.delenv(name)
        done = run("--tiny", cwd=ROOT, env=common({MARK: "1"}, ""), module="benchmarks")
    assert done.returncode == 0, done.stderr[-3000:]
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["row", "what", "figure", "range", "ratio", "target"]
    return lines


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("row", ROWS)
def test_a_row_prints_a_figure_for_each_variant(row: str, all_rows: list[str]) -> None:
    lines = [line for line in all_rows if line.split()[0] == row]
    for words in LINES[row]:
        found = [line for line in lines if words in line]
        assert found, f"no line with {words!r}:\n{lines}"
        assert all(re.search(r"\s-?\d+\.?\d*( (s|ms|MB|GB))?\b", line) for line in found)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SIMULATORS)
def test_the_rows_of_the_issue_measure_a_simulator_or_say_what_to_run(name: Name, all_rows: list[str]) -> None:
    for row in ("cnn", "mlp", "transport"):
        lines = [line for line in all_rows if line.split()[0] == row]
        if installed(name):
            assert sum(bool(re.search(re.escape(SIMULATORS[name]) + r" +\d+\.\d+ s", line)) for line in lines) == 1
        else:
            assert sum(f"{name}: skipped; `make bench-tools`" in line for line in lines) == 1


def test_a_round_that_did_other_work_than_its_job_is_refused() -> None:
    here, there = Pipe()
    job = Job("mnist", "mlp", n_devices=3, n_samples=33)
    answers = [asdict(job.work), asdict(job.work) | {"n_steps": 5}]
    for done in answers:
        there.send_bytes(json.dumps(done).encode())
    running = Simulator("flower", job, [here], [])
    assert answers[0] == {"n_devices": 3, "n_samples": 99, "n_steps": 6}
    assert running.round() > 0
    with pytest.raises(RuntimeError, match=r"did .*'n_steps': 5"):
        running.round()
    there.close()
    with pytest.raises((RuntimeError, OSError)):
        running.round()


def test_an_unknown_row_is_refused_with_a_list_of_the_known() -> None:
    command = [sys.executable, "-m", "benchmarks", "cnn,speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 2
    assert "no row speed" in done.stderr
    assert all(row in done.stderr for row in ROWS)


def test_variants_take_turns_and_their_first_rounds_are_left_out() -> None:
    order: list[str] = []

    def variant(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = in_turns({name: partial(variant, name) for name in "ab"}, 2)
    assert "".join(order) == "abbaab"
    assert found == {"a": [4.0, 5.0], "b": [3.0, 6.0]}
    assert in_turns({"a": partial(variant, "a")}, 1) == {"a": [7.0]}


def test_the_slope_is_the_exponent() -> None:
    counts = [100, 1000, 5000]
    assert slope(counts, [3e-4 * n**1.25 for n in counts]) == pytest.approx(1.25)


def test_stages_have_distinct_names() -> None:
    for stages in STAGES.values():
        assert COMMON.keys() <= stages.keys()
        assert len(set(stages.values())) == len(stages)


@pytest.mark.parametrize("place", sorted({place for stages in STAGES.values() for place in stages.values()}))
def test_every_stage_names_a_function_of_the_product(place: str) -> None:
    assert callable(pkgutil.resolve_name(place))
