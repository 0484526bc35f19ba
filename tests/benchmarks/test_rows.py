"""Each row of `make bench` runs at a tiny size, so that the benchmarks keep working; the figures have no meaning."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks.__main__ import ROWS
from benchmarks.profiled.stages import COMMON, STAGES
from benchmarks.rows.scale import slope
from benchmarks.turns import in_turns

ROOT = Path(__file__).resolve().parents[2]
LINES = {
    "start": ("first round, forked", "first round, executed", "peak memory (PSS), forked"),
    "cnn": ("topology", "plain PyTorch loop, 1 process", "same training code, 2 processes"),
    "mlp": ("topology", "plain PyTorch loop, 1 process", "same training code, 2 processes", "devices at once"),
    "transport": ("topology", "in-memory copies", "peak memory"),
    "scale": ("4 devices, a round", "8 devices, peak memory", "log-log slope"),
    "memory": ("after 1 rounds", "after 2 rounds"),
    "train": ("mlp 1x8x8", "cnn_mnist 1x28x28"),
    "methods": ("fedavg, mlp: 1.00 x operations", "moon, mlp", "fedser n=4, mlp", "lafl_cpn, mlp"),
    "half": ("mlp: 0.50 x operations, 0.50 x bytes",),
    "stacked": ("mlp, 3 devices: one by one", "mlp, 3 devices: 2 at once"),
    "events": ("CPU a round, 0 clients", "CPU a round, 2 clients"),
    "tls": ("mlp: a round over mutual TLS", "mlp: a round without", "transport: a round over mutual TLS"),
    "profile": (
        *("cloud_server: wait for edges", "cloud_server: aggregate", "cloud_server: write files"),
        *("edge_server: wait for agents", "edge_server: take answers", "edge_server: record of visits"),
        *("device_agent: train", "device_agent: visits, the rest", "device_agent: add updates up"),
    ),
}


def trainer(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m benchmarks` at its tiny size."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "BENCH_"))}
    command = [sys.executable, "-m", "benchmarks", *words, "--tiny"]
    return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=580, check=False)


@pytest.fixture(scope="module")
def all_rows() -> list[str]:
    """The lines of all rows but the header, from one command: for each row a command would import torch anew."""
    done = trainer()
    assert done.returncode == 0, done.stderr[-3000:]
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["row", "what", "figure", "range", "ratio", "target"]
    return lines


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("row", ROWS)
def test_a_row_prints_a_figure_for_each_variant(row: str, all_rows: list[str]) -> None:
    lines = [line for line in all_rows if line.split()[0] == row]
    for words in LINES[row]:
        found = [line for line in lines if words in line]
        assert found, f"no line with {words!r}:\n{lines}"
        assert all(re.search(r"\s-?\d+\.?\d*( (s|ms|MB|GB))?\b", line) for line in found)


def test_an_unknown_row_is_refused_with_a_list_of_the_known() -> None:
    done = trainer("cnn,speed")
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
