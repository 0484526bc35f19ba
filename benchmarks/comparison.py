"""Comparison of a local topology with loops that do the same training."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import federation, spec_of
from benchmarks.loops import Code, Job, loops
from benchmarks.table import Line, compared, timed
from benchmarks.turns import in_turns

Variant = tuple[Code, int]
WORDS = {"plain": "plain PyTorch loop", "own": "loop with the same training code"}
VARIANTS: tuple[Variant, ...] = (("plain", 1), ("plain", 2), ("own", 2))


def compare_with_loops(row: str, folder: Path, job: Job, n_rounds: int, targets: dict[Variant, float]) -> list[Line]:
    """Compare the seconds of a round: one cloud, two edges and two agents against loops in one and two processes."""
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    with ExitStack() as stack:
        ours = stack.enter_context(federation(folder, spec_of(job)))
        rounds = {"ours": ours.round}
        for code, n in VARIANTS:
            rounds[f"{code} {n}"] = stack.enter_context(loops(folder, job, code=code, n_processes=n)).round
        seconds = in_turns(rounds, n_rounds)
    lines = [timed(row, "topology: 1 cloud, 2 edges, 2 agents", seconds["ours"])]
    for code, n in VARIANTS:
        what = f"{WORDS[code]}, {n} process{'es' if n > 1 else ''}"
        lines.append(compared(row, what, seconds[f"{code} {n}"], seconds["ours"], targets.get((code, n))))
    return lines
