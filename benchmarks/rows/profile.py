"""Profile of a round by tier, in separate rounds, since timing costs time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import federation, spec_of
from benchmarks.loops import Job
from benchmarks.profiled.stages import FOLDER, STAGES, read_spans
from benchmarks.sizes import Sizes
from benchmarks.table import Line
from strata.launcher.environment import Modules

MODULES = Modules("benchmarks.profiled.cloud", "benchmarks.profiled.edge", "benchmarks.profiled.agent")


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """The stages of a round of the CNN, the MLP and the transport row."""
    found: list[Line] = []
    for name, job in (("cnn", sizes.cnn), ("mlp", sizes.mlp), ("transport", sizes.transport)):
        algorithm = "fedavg" if job.epochs else "bench_transport"
        found += _profile(name, folder / name, job, algorithm, sizes.n_rounds)
    return found


def _profile(name: str, folder: Path, job: Job, algorithm: str, n_rounds: int) -> list[Line]:
    """Milliseconds of each stage per round and process of a tier."""
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    stages = folder / "stages"
    stages.mkdir()
    took_s = 0.0
    spec = {**spec_of(job), "algorithm": algorithm}
    with federation(folder, spec, modules=MODULES, env={FOLDER: str(stages)}) as ours:
        turns = []
        for _ in range(n_rounds):
            took_s += ours.round()
            turns.append(ours.measured)
    found = [Line("profile", f"{name}: a round", f"{1000 * took_s / n_rounds:.1f} ms")]
    for tier in STAGES:
        processes = read_spans(stages, tier)
        total: dict[tuple[str, bool], float] = defaultdict(float)
        for span in (span for spans in processes for span in spans):
            if any(begin <= span.began <= end for begin, end in turns):
                total[span.stage, span.waits] += span.seconds
        for (stage, waits), seconds in sorted(total.items(), key=lambda item: -item[1]):
            figure = f"{1000 * seconds / n_rounds / max(len(processes), 1):.1f} ms"
            found.append(Line("profile", f"  {tier}: {stage}{' (waits)' if waits else ''}", figure))
    return found
