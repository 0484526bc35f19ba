"""Profile of a round by tier, in separate rounds, since timing costs time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.federation import Federation, federation, spec_of
from benchmarks.loops import Job
from benchmarks.processes import cpu_s
from benchmarks.profiled.stages import FOLDER, STAGES, read_spans
from benchmarks.rows.mlp import WIDTH
from benchmarks.sizes import Sizes
from benchmarks.table import Line
from strata.launcher.environment import Modules

TIERS = {"cloud": "cloud_server", "edge": "edge_server", "agent": "device_agent"}
"""The package of a process, by the first part of its name."""
MODULES = Modules("benchmarks.profiled.cloud", "benchmarks.profiled.edge", "benchmarks.profiled.agent")


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """The stages of a round of the CNN, the MLP (also many devices at once) and the transport row."""
    found = _profile("cnn", folder / "cnn", sizes.cnn, {}, sizes.n_rounds)
    found += _profile("mlp", folder / "mlp", sizes.mlp, {}, sizes.n_rounds)
    found += _profile("mlp at once", folder / "once", sizes.mlp, {"vectorised": {"width": WIDTH}}, sizes.n_rounds)
    transport = {"algorithm": "bench_transport"}
    return found + _profile("transport", folder / "transport", sizes.transport, transport, sizes.n_rounds)


def _profile(name: str, folder: Path, job: Job, more: Mapping[str, Any], n_rounds: int) -> list[Line]:
    """Milliseconds of each stage per round and process of a tier, and of CPU of the whole process."""
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    stages = folder / "stages"
    stages.mkdir()
    took_s = 0.0
    spec = {**spec_of(job), **more}
    with federation(folder, spec, modules=MODULES, env={FOLDER: str(stages)}) as ours:
        turns, before, first = [], _cpu_s(ours), ours.n_rounds()
        for _ in range(n_rounds):
            took_s += ours.round()
            turns.append(ours.measured)
        trained = ours.n_rounds() - first
        used_s = {tier: 1000 * (total - before[tier]) / trained for tier, total in _cpu_s(ours).items()}
    found = [Line("profile", f"{name}: a round", f"{1000 * took_s / n_rounds:.1f} ms")]
    for tier in STAGES:
        processes = read_spans(stages, tier)
        total: dict[tuple[str, bool], float] = defaultdict(float)
        for span in (span for spans in processes for span in spans):
            if any(begin <= span.began <= end for begin, end in turns):
                total[span.stage, span.waits] += span.seconds
        found.append(Line("profile", f"  {tier}: all of its CPU", f"{used_s[tier] / len(processes):.1f} ms"))
        for (stage, waits), seconds in sorted(total.items(), key=lambda item: -item[1]):
            figure = f"{1000 * seconds / n_rounds / len(processes):.1f} ms"
            found.append(Line("profile", f"  {tier}: {stage}{' (waits)' if waits else ''}", figure))
    return found


def _cpu_s(ours: Federation) -> dict[str, float]:
    """CPU seconds so far by tier, of all its processes."""
    found: dict[str, float] = defaultdict(float)
    for name, process in ours.topology.processes.items():
        found[TIERS[name.partition("-")[0]]] += cpu_s(process.pid)
    return found
