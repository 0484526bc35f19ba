"""What it costs that a visit begins with a user's module as it was made, as a share of the visit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.by_hooks import ByHooks
from benchmarks.sizes import Sizes
from benchmarks.step_cost import experiment_of
from benchmarks.table import Line, at_most
from benchmarks.turns import in_turns
from shared.core.process_settings import settings_kept
from shared.training.models import Pristine

MOST = 2.0
"""Per cent."""


def lines(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """A line for each model; it is one of ours, but is put back as one of a user is."""
    for case in sizes.pristine:
        experiment = experiment_of("fedavg", case)
        (visit,) = ByHooks(experiment).visits().values()
        module = Pristine(experiment.model, watched=True)
        works: dict[str, Callable[[], object]] = {"visit": visit, "restored": partial(_restored, module)}
        found = in_turns({name: partial(_seconds, work) for name, work in works.items()}, 10 * sizes.n_rounds)
        of_visit, of_restored = (statistics.median(found[name]) for name in works)
        what = f"{case.model}, {case.n_batches} steps: a visit of {1000 * of_visit:.2f} ms"
        yield at_most("pristine", what, 100 * of_restored / of_visit, "%", MOST)


def _restored(module: Pristine) -> None:
    with settings_kept():
        module.restored()


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
