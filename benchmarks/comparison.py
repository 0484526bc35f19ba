"""Comparison of a local topology with loops and simulators that do the same work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import federation, spec_of
from benchmarks.loops import Code, Job, loops
from benchmarks.simulators.process import SIMULATORS, Name, Simulator, installed, simulator
from benchmarks.table import Line, compared, skipped, timed
from benchmarks.turns import in_turns

Variant = tuple[Code, int] | Name
WORDS = {"plain": "plain PyTorch loop", "own": "loop with the same training code"}
VARIANTS: tuple[tuple[Code, int], ...] = (("plain", 1), ("plain", 2), ("own", 2))


def compare_with_loops(
    row: str,
    folder: Path,
    job: Job,
    n_rounds: int,
    targets: dict[Variant, float],
    *,
    width: int | None = None,
    most: float | None = None,
) -> list[Line]:
    """Compare the seconds of a round: one cloud, two edges and two agents against loops and simulators.

    With `width` also those of a topology that trains so many devices at once, with `most` times the seconds of the
    plain loop in one process as its target.
    """
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    with ExitStack() as stack:
        ours = stack.enter_context(federation(folder, spec_of(job)))
        rounds = {"ours": ours.round}
        if width is not None:
            spec = {**spec_of(job), "vectorised": {"width": width}}
            rounds["stacked"] = stack.enter_context(federation(folder / "stacked", spec, data=folder / "data")).round
        for code, n in VARIANTS:
            rounds[f"{code} {n}"] = stack.enter_context(loops(folder, job, code=code, n_processes=n)).round
        rounds |= {name: each.round for name, each in simulators(stack, folder, job).items()}
        seconds = in_turns(rounds, n_rounds)
        ours.check_work(job)
    lines = [timed(row, "topology: 1 cloud, 2 edges, 2 agents", seconds["ours"])]
    for code, n in VARIANTS:
        what = f"{WORDS[code]}, {n} process{'es' if n > 1 else ''}"
        lines.append(compared(row, what, seconds[f"{code} {n}"], seconds["ours"], targets.get((code, n))))
    if width is not None:
        lines.append(timed(row, f"topology, {width} devices at once", seconds["stacked"]))
        what = f"{WORDS['plain']}, 1 process, to {width} at once"
        lines.append(compared(row, what, seconds["plain 1"], seconds["stacked"], most))
    return [*lines, *lines_of_simulators(row, seconds, targets)]


def simulators(stack: ExitStack, folder: Path, job: Job) -> dict[Name, Simulator]:
    """The simulators that are installed, started one after another."""
    return {name: stack.enter_context(simulator(name, folder, job)) for name in SIMULATORS if installed(name)}


def lines_of_simulators(
    row: str, seconds: Mapping[str, Sequence[float]], targets: Mapping[Variant, float]
) -> Iterator[Line]:
    """A line for each simulator: its seconds, or that it was skipped."""
    for name, what in SIMULATORS.items():
        if name in seconds:
            yield compared(row, what, seconds[name], seconds["ours"], targets.get(name))
        else:
            yield skipped(row, f"{name}: skipped; `make bench-tools` installs it")
