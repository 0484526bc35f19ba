"""Training of many devices at once against one after another, in this process, on its GPU if there is one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from benchmarks.sizes import Sizes, Stack
from benchmarks.table import Line
from shared.training.compute_device import compute_device_of, cuda_missing
from shared.training.loop import Batch, batches, samples_at, shuffles, train
from shared.training.models import build, read_state, write_state
from shared.training.stacked.batches import Shuffled, gathered
from shared.training.stacked.memory import padded_rows
from shared.training.stacked.training import Device, StackTrainer

LR = 0.01
SOME = 25
"""Devices that are trained one after another in a turn: a device takes as long as any other."""
LEAST_TURNS = 2


class Work:
    """The training of one case's devices, all from one model, for an epoch each."""

    def __init__(self, case: Stack, compute: torch.device) -> None:
        self.case, self.compute = case, compute
        n, (channels, *sides) = case.n_devices * case.n_samples, case.shape
        rng = np.random.default_rng(0)
        self.x = rng.integers(0, 256, (n, *sides) if channels == 1 else (n, *sides, channels), dtype=np.uint8)
        self.y = rng.integers(0, 10, n)
        self.model = build(case.model, case.shape, 10, 0).to(compute)
        self.start = read_state(self.model)
        self.trainer = StackTrainer(self.model, case.width)

    def _samples(self, device: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.arange(device * self.case.n_samples, (device + 1) * self.case.n_samples)

    def one_after_another(self) -> float:
        """Milliseconds a device."""
        began, n = time.perf_counter(), min(SOME, self.case.n_devices)
        for device in range(n):
            write_state(self.model, self.start)
            drawn = batches(
                self.x,
                self.y,
                self._samples(device),
                batch_size=self.case.batch_size,
                generator=torch.Generator().manual_seed(device),
                epochs=1,
                least=2,
                device=self.compute,
            )
            train(self.model, drawn, lr=LR)
            read_state(self.model)
        return self._ms(began, n)

    def at_once(self) -> float:
        """Milliseconds a device."""
        began, everyone = time.perf_counter(), iter(range(self.case.n_devices))
        while some := list(islice(everyone, self.case.width)):
            self._stack(some)
        return self._ms(began, self.case.n_devices)

    def _stack(self, some: list[int]) -> None:
        case = self.case
        orders = [self._order(device) for device in some]
        places = np.concatenate([self._samples(device) for device in some])
        drawn = [Shuffled(self.y[self._samples(device)], order) for device, order in zip(some, orders, strict=True)]
        rows = padded_rows(max(map(len, orders[0])), case.batch_size)
        images = samples_at(self.x, places, self.compute)
        stacked: Iterator[Batch] = gathered(drawn, images, case.width, rows, self.compute)
        self.trainer.train([Device(self.start, [len(b) for b in order]) for order in orders], rows, stacked, lr=LR)

    def _order(self, device: int) -> list[torch.Tensor]:
        seeded = torch.Generator().manual_seed(device)
        return list(shuffles(self.case.n_samples, batch_size=self.case.batch_size, generator=seeded, epochs=1, least=2))

    def _ms(self, began: float, n: int) -> float:
        if self.compute.type == "cuda":
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - began) / n


def measure(case: Stack, compute: torch.device, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds a device one after another and at once, in turns; the first turn is left out."""
    work = Work(case, compute)
    runs: tuple[Callable[[], float], ...] = (work.one_after_another, work.at_once)
    found: tuple[list[float], list[float]] = ([], [])
    for run in runs:
        run()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found[0]) < LEAST_TURNS:
        for run, times in zip(runs, found, strict=True):
            times.append(run())
    return found


def lines(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Two lines for each model and number of devices; on a GPU at least ten times as fast for `mlp` and `cnn_mnist`."""
    on_gpu = cuda_missing() is None
    compute = compute_device_of("cuda" if on_gpu else "cpu")
    compute.make_repeatable()
    where = "GPU" if on_gpu else "CPU"
    for case in (case for case in sizes.stacked if case.on_gpu == on_gpu):
        each, together = measure(case, compute.device, sizes.stacked_s)
        named = f"{where}, {case.model}, {case.n_devices} devices"
        line = partial(_line, reference=each)
        yield line(f"{named}: one by one", each)
        yield line(f"{named}: {case.width} at once", together, most=case.most)


def _line(what: str, ms: list[float], reference: list[float], most: float | None = None) -> Line:
    ratio = statistics.median(ms) / statistics.median(reference)
    figure, spread = f"{statistics.median(ms):.2f} ms", f"{min(ms):.2f}-{max(ms):.2f}"
    target = "" if most is None else f"{most:.2f}"
    return Line("stacked", what, figure, spread, ratio, target, met=most is None or ratio <= most)
