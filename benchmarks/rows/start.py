"""Starting: processes forked from one that has imported the tiers, beside processes that each import them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.federation import federation, spec_of
from benchmarks.memory import monitored
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, compared, timed
from benchmarks.turns import in_turns

END_S = 60.0
LIMIT_S = 3.0
LIMIT_GB = 0.9


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Targets: 3 s from the command to the end of the first round; 0.9 GB for all processes of the row `cnn`."""
    edges, agents = sizes.start
    first = {"data": "digits", "num_edges": edges, "num_devices": 10, "lr": 0.1}
    ways = ("forked", "executed")
    seconds = in_turns({how: partial(first_round, how, folder, first, agents) for how in ways}, sizes.n_rounds)
    make_images(folder / "data", sizes.cnn.data, sizes.cnn.n_devices * sizes.cnn.n_samples)
    spec = {**spec_of(sizes.cnn), "num_edges": edges}
    memory = {how: _memory(folder / how, folder / "data", spec, agents, how) for how in sizes.start_memory}
    limits = {"forked": LIMIT_GB}
    return [
        timed("start", "command to end of first round, forked", seconds["forked"]),
        at_most("start", "median, forked", statistics.median(seconds["forked"]), "s", LIMIT_S),
        compared("start", "command to end of first round, executed", seconds["executed"], seconds["forked"]),
        *(
            at_most("start", f"row cnn: peak memory (PSS), {how}", n, "GB", limits.get(how))
            for how, n in memory.items()
        ),
    ]


def first_round(how: str, folder: Path, spec: dict[str, Any], agents: int) -> float:
    """Start a topology in a process of its own; returns the seconds until its first round is over."""
    command = [sys.executable, "-m", "benchmarks.first_round", how, str(folder), json.dumps(spec), str(agents)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None  # noqa: S101
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if line != "over\n":
        raise RuntimeError(f"the first round did not end: exit status {process.returncode}")
    return seconds


def _memory(folder: Path, data: Path, spec: dict[str, Any], agents: int, how: str) -> float:
    """Peak memory of all processes during a round, in GB."""
    with ExitStack() as stack:
        run = stack.enter_context(federation(folder, spec, agents=agents, fork=how == "forked", data=data))
        run.round()
        with monitored(run.pids()) as peak:
            run.round()
    return float(peak.n_bytes) / 1e9
