"""A training step of each model: our loop compared with the plain PyTorch loop, interleaved in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.loops import plain_epoch
from benchmarks.sizes import Epoch, Sizes
from benchmarks.table import Line
from shared.training.data.dataset import as_batch
from shared.training.loop import batches, train
from shared.training.models import build


def measure(case: Epoch, seconds: float) -> tuple[float, float]:
    """Median milliseconds of a step of the plain loop and of ours."""
    name, shape, batch_size, n = case
    rng = np.random.default_rng(0)
    size = (n, *shape[1:]) if shape[0] == 1 else (n, *shape[1:], shape[0])
    x, y = rng.integers(0, 256, size, dtype=np.uint8), rng.integers(0, 10, n)
    floats, labels = as_batch(x), torch.from_numpy(y)
    theirs, own = build(name, shape, 10, 0), build(name, shape, 10, 0)
    generator = torch.Generator().manual_seed(0)

    def ours() -> int:
        source = batches(x, y, np.arange(n), batch_size=batch_size, epochs=1, generator=generator)
        return train(own, source, lr=0.01).n_steps

    runs: tuple[Callable[[], int], ...] = (
        lambda: plain_epoch(theirs, floats, labels, batch_size),
        ours,
    )
    times: tuple[list[float], list[float]] = ([], [])
    for run in runs:
        run()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[0]) < 3:
        for run, spent in zip(runs, times, strict=True):
            start = time.perf_counter()
            n_steps = run()
            spent.append(1000 * (time.perf_counter() - start) / n_steps)
    return statistics.median(times[0]), statistics.median(times[1])


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """A line for each model."""
    found = []
    for case in sizes.train:
        theirs, ours = measure(case, sizes.train_s)
        shape = "x".join(map(str, case.shape))
        what = f"{case.model} {shape}, batch {case.batch_size}: a step, plain {theirs:.2f} ms"
        found.append(Line("train", what, f"{ours:.2f} ms", ratio=ours / theirs))
    return found
