"""What clients of a run's events cost the cloud, in a run of short rounds."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.federation import NEVER, READY_S, ROUND_S
from benchmarks.forking import fork_server
from benchmarks.processes import cpu_s
from benchmarks.sizes import Sizes
from benchmarks.table import Line
from strata.api.client import Client
from strata.launcher.topology import Topology

SPEC = {"data": "digits", "num_edges": 2, "num_devices": 4, "batch_size": 64, "num_rounds": NEVER, "eval_every": NEVER}
LIMIT = 1.5


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Target: with the most clients the cloud takes 1.5 times the CPU a round that it takes with none."""
    numbers = (0, *sizes.event_clients)
    spent: dict[int, list[float]] = {n: [] for n in numbers}
    rate: dict[int, list[float]] = {n: [] for n in numbers}
    variables = {"STRATA_CACHE_DIR": str(folder / "cache")}
    with Topology(
        edges=2, devices=4, agents=2, runs_dir=folder / "runs", env=variables, fork=fork_server()
    ) as topology:
        topology.wait_ready(READY_S)
        with Client(topology.url, timeout_s=ROUND_S) as client:
            run = client.create_run(SPEC).run
            _after(client, run, 2)
            for turn in range(sizes.n_rounds):
                for n in numbers if turn % 2 == 0 else reversed(numbers):
                    with readers(topology.url, run, n):
                        used_s, wall_s = _round(client, run, topology.processes["cloud"].pid, sizes.event_rounds)
                    spent[n].append(1000 * used_s)
                    rate[n].append(1 / wall_s)
            client.stop(run)
    return [_line(n, spent, rate, max(numbers)) for n in numbers]


def _line(n: int, spent: dict[int, list[float]], rate: dict[int, list[float]], most: int) -> Line:
    figures = spent[n]
    ratio = statistics.median(figures) / statistics.median(spent[0])
    what = f"cloud's CPU a round, {n} clients ({statistics.median(rate[n]):.1f} rounds/s)"
    spread = f"{min(figures):.1f}-{max(figures):.1f}"
    target = f"{LIMIT:.2f}" if n == most else ""
    return Line(
        "events", what, f"{statistics.median(figures):.1f} ms", spread, ratio, target, met=n != most or ratio <= LIMIT
    )


@contextmanager
def readers(url: str, run: str, n: int) -> Iterator[None]:
    """So many clients of the events of a run, in a process of their own."""
    if not n:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.readers", str(urlsplit(url).port), f"/runs/{run}/events", str(n)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None  # noqa: S101
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("a client of events was refused")
        try:
            yield
        except BaseException:
            process.kill()
            raise
        fewest, _ = process.communicate(timeout=ROUND_S)
    if int(fewest) < 1:
        raise RuntimeError("a client of events got none")


def _round(client: Client, run: str, pid: int, n_rounds: int) -> tuple[float, float]:
    """The CPU and wall seconds of a round, over so many rounds."""
    first = _after(client, run, 1)
    before_s, began = cpu_s(pid), time.monotonic()
    last = _after(client, run, n_rounds)
    return (cpu_s(pid) - before_s) / (last - first), (time.monotonic() - began) / (last - first)


def _after(client: Client, run: str, n_rounds: int) -> int:
    """Waits for so many more rounds; returns the number of rounds."""
    begun = found = client.run(run).rounds
    ends = time.monotonic() + ROUND_S
    while found < begun + n_rounds:
        if time.monotonic() > ends:
            raise RuntimeError(f"rounds not over after {ROUND_S:g} s")
        time.sleep(0.25)
        found = client.run(run).rounds
    return found
