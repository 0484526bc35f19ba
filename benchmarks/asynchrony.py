"""`python -m benchmarks.asynchrony [PICTURE]`: updates and simulated seconds to a target accuracy, by how tiers wait.

Devices of an edge, or edges of the cloud, have long-tailed speeds. Tiers wait for all, until
a deadline, for the first to answer, or are asynchronous (docs/asynchrony.md).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shared.run_records.runs import FINAL
from strata.api.client import Client
from strata.launcher.topology import Topology

TARGET = 0.85
SEEDS = (0, 1, 2)
N_DEVICES, N_EDGES = 20, 4
BASE: dict[str, Any] = {
    "data": {"name": "digits", "n_train": 1200, "n_test": 350},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "num_devices": N_DEVICES,
    "num_edges": N_EDGES,
    "lr": 0.1,
    "num_rounds": 60,
}
POLYNOMIAL = {"name": "polynomial", "a": 0.5}
FEDASYNC = {"name": "fedasync", "params": {"alpha": 0.6}}
LONG_TAIL = {"name": "pareto", "shape": 1.1, "scale": 1.0}
"""Seconds of a visit's delay at a device, drawn for each visit: half last less than 2, one of a hundred over 60."""
LATENCIES = (0.5, 0.7, 1.2, 9.0)
"""Seconds of the links between the cloud and its edges."""
SLOW: dict[str, dict[str, Any]] = {
    "devices": {"devices": {"profile": {"delay_s": LONG_TAIL}}},
    "edges": {
        "devices": {"profile": {"delay_s": 1.0}},
        "edge_link": {"name": "backhaul", "by_home": [{"latency_s": latency} for latency in LATENCIES]},
    },
}
"""Where the slow ones are."""


def variants(tier: str) -> dict[str, dict[str, Any]]:
    """How the tier above these clients waits, by name, as fields of a spec."""

    def asynchronous(**fields: Any) -> dict[str, Any]:
        return {"sync": {tier: {"mode": "asynchronous", "staleness": POLYNOMIAL, **fields}}}

    found: dict[str, dict[str, Any]] = {"waits for all": {}}
    if tier == "devices":
        late = {"round_deadline_s": 4.0, "late": "next_round"}
        found["deadline"] = {**late, "sync": {"devices": "semi_synchronous"}}
        first = {"select": "random", "fraction_train": 0.6, "overselection": 0.6}
        found["over-selection"] = {**first, "sync": {"devices": "semi_synchronous"}}
        found["FedAsync"] = {**asynchronous(), "edge_rounds": 5, "algorithm": FEDASYNC}
        found["FedBuff"] = {**asynchronous(buffer=3), "algorithm": "fedbuff"}
        return found
    found["deadline"] = {"sync": {"edges": {"mode": "semi_synchronous", "deadline_s": 5.0}}}
    found["first 3"] = {"sync": {"edges": {"mode": "semi_synchronous", "wanted": 3}}}
    found["FedAsync"] = {**asynchronous(), "algorithm": FEDASYNC, "num_rounds": 200}
    found["FedBuff"] = {**asynchronous(buffer=2), "algorithm": "fedbuff", "num_rounds": 120}
    return found


class Point(NamedTuple):
    """A version of the global model: updates used and simulated seconds until it was made, and its accuracy."""

    updates: int
    seconds: float
    accuracy: float


def course(client: Client, spec: Mapping[str, Any]) -> list[Point]:
    """Runs a spec; returns the versions of the global model."""
    run = client.create_run(spec).run
    while (info := client.run(run)).status not in FINAL:
        time.sleep(0.1)
    if info.status != "completed":
        raise RuntimeError(f"a run failed: {info.reason}")
    found, updates, seconds = [], 0, 0.0
    for row in client.rounds(run).rounds:
        updates, seconds = updates + row.n_used, seconds + row.simulated_s
        accuracy = (row.evaluation or {}).get("global")
        if accuracy is not None and accuracy.accuracy is not None:
            found.append(Point(updates, seconds, accuracy.accuracy))
    return found


def courses() -> dict[str, dict[str, list[list[Point]]]]:
    """By tier and variant, a course for each seed."""
    found: dict[str, dict[str, list[list[Point]]]] = {}
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder:
        topology = Topology(edges=N_EDGES, devices=N_DEVICES, agents=2, runs_dir=Path(folder) / "runs").start()
        try:
            topology.wait_ready(300.0)
            with Client(topology.url) as client:
                for tier, slow in SLOW.items():
                    for name, fields in variants(tier).items():
                        specs = [{**BASE, **slow, **fields, "seed": seed} for seed in SEEDS]
                        found.setdefault(tier, {})[name] = [course(client, spec) for spec in specs]
                        print(*_row(tier, name, found[tier][name]), sep=" | ", flush=True)
        finally:
            topology.stop()
    return found


def reached(points: Sequence[Point]) -> Point | None:
    """The first version from which on the accuracy stays at the target for three versions."""
    good = [point.accuracy >= TARGET for point in points]
    return next((points[n] for n in range(len(points) - 2) if all(good[n : n + 3])), None)


def _row(tier: str, name: str, runs: Sequence[Sequence[Point]]) -> Iterator[str]:
    """The cells of a variant: medians over the seeds, and the range."""
    yield from (f"{tier[:-1]} to {'edge' if tier == 'devices' else 'cloud'}", name)
    ends = [reached(points) for points in runs]
    known = [end for end in ends if end is not None]
    for what, digits in (("updates", 0), ("seconds", 1)):
        if len(known) < len(ends):
            yield f"reached by {len(known)} of {len(ends)}"
            continue
        values = sorted(getattr(end, what) for end in known)
        yield f"{statistics.median(values):,.{digits}f} ({values[0]:,.{digits}f}-{values[-1]:,.{digits}f})"
    yield f"{statistics.median(points[-1].accuracy for points in runs):.3f}"


def table(found: Mapping[str, Mapping[str, Sequence[Sequence[Point]]]]) -> str:
    """The table of docs/asynchrony.md."""
    head = f"| link | | updates to {TARGET:.0%} | simulated seconds to {TARGET:.0%} | accuracy at the end |"
    rows = ["| " + " | ".join(_row(tier, name, runs)) + " |" for tier, of in found.items() for name, runs in of.items()]
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def draw(found: Mapping[str, Mapping[str, Sequence[Sequence[Point]]]], path: Path) -> None:
    """Draw accuracy over updates and over simulated seconds, a line for each seed, for both links."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    grid = figure.subplots(2, 2, sharey=True)
    for row, (tier, of) in zip(grid, found.items(), strict=True):
        where = "devices differ: how edges wait for them" if tier == "devices" else "edges differ: how the cloud waits"
        for axes, what in zip(row, ("updates", "seconds"), strict=True):
            for colour, (name, runs) in enumerate(of.items()):
                for seed, points in enumerate(runs):
                    x, y = [getattr(point, what) for point in points], [point.accuracy for point in points]
                    axes.plot(x, y, color=f"C{colour}", lw=1, alpha=0.8, label=None if seed else name)
            axes.axhline(TARGET, color="black", lw=0.8, ls=":")
            limits = [getattr(end, what) for runs in of.values() for points in runs if (end := reached(points))]
            axes.set(title=where, xlabel="updates used" if what == "updates" else "simulated seconds (logarithmic)")
            if what == "seconds":
                axes.set(xscale="log")
            else:
                axes.set(xlim=(0, 1.5 * max(limits, default=1)))
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("accuracy of the global model")
        row[1].legend(frameon=False, loc="lower right")
    with rc_context({"svg.hashsalt": "asynchrony"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    all_courses = courses()
    print(table(all_courses))
    if len(sys.argv) > 1:
        draw(all_courses, Path(sys.argv[1]))
