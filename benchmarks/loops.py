"""The loops that a researcher would write instead: FedAvg over devices in one process, or split over several.

Each process has one torch thread. The global model and each process's weighted sum of trained models lie in shared
memory, so that nothing is encoded or sent between the processes: this is as fast as splitting gets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn, multiprocessing
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from shared.training.data import as_batch, load
from shared.training.loop import batches, train
from shared.training.models import build

Code = Literal["plain", "own"]
"""`plain`: the loop below; `own`: `shared.training.loop`, with which the product's devices train."""
LR = 0.05


@dataclass(frozen=True)
class Job:
    """What is trained: a model on equal shares of a data set, one share a device; batches of 32, one epoch."""

    data: str
    model: str
    n_devices: int
    n_samples: int
    """Of each device."""
    batch_size: int = 32


def plain_epoch(model: nn.Module, x: Tensor, y: Tensor, batch_size: int, momentum: float = 0.0) -> int:
    """One epoch of the loop that everybody writes; answers with the number of steps."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    total = 0.0
    chunks = torch.split(torch.randperm(len(x)), batch_size)
    for chosen in chunks:
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        total += loss.item() * len(chosen)
    return len(chunks)


class Loops:
    """One process or several, which train their devices one after another."""

    def __init__(self, pipes: Sequence[Connection], weights: Tensor, sums: Tensor) -> None:
        self._pipes, self._weights, self._sums = pipes, weights, sums

    def round(self) -> float:
        """Train every device from the global model, average; the seconds that took."""
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send_bytes(b"round")
        for pipe in self._pipes:
            pipe.recv_bytes()
        torch.sum(self._sums, 0, out=self._weights)
        return time.perf_counter() - began


@contextmanager
def loops(folder: Path, job: Job, *, code: Code, n_processes: int) -> Iterator[Loops]:
    """Processes that have their data ready and have trained nothing yet.

    Args:
        folder: holds `data/` and `cache/`.
        job: what is trained.
        code: with which loop.
        n_processes: over which the devices are split evenly.
    """
    start = parameters_to_vector(_model(folder, job).parameters()).detach()
    weights, sums = start.clone().share_memory_(), torch.zeros(n_processes, len(start)).share_memory_()
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(n_processes)]
    shares = np.array_split(np.arange(job.n_devices), n_processes)
    processes = [
        context.Process(target=_work, args=(there, folder, job, code, share, weights, sums[index]), daemon=True)
        for index, ((_, there), share) in enumerate(zip(pairs, shares, strict=True))
    ]
    for process in processes:
        process.start()
    for here, _ in pairs:
        here.recv_bytes()
    try:
        yield Loops([here for here, _ in pairs], weights, sums)
    finally:
        for here, _ in pairs:
            here.send_bytes(b"")
        for process in processes:
            process.join(10)


def _model(folder: Path, job: Job) -> nn.Module:
    data = load(job.data, data_dir=folder / "data", cache_dir=folder / "cache")
    return build(job.model, data.input_shape, data.n_classes, 0)


def _work(
    pipe: Connection, folder: Path, job: Job, code: Code, devices: Sequence[int], weights: Tensor, mine: Tensor
) -> None:
    """A process: wait for a round, train the share of devices, leave their part of the mean behind."""
    torch.set_num_threads(1)
    model = _model(folder, job)
    epoch = _plain(folder, job) if code == "plain" else _own(folder, job)
    pipe.send_bytes(b"ready")
    while pipe.recv_bytes():
        mine.zero_()
        for device in devices:
            vector_to_parameters(weights.clone(), model.parameters())
            epoch(model, device)
            mine.add_(parameters_to_vector(model.parameters()).detach(), alpha=1 / job.n_devices)
        pipe.send_bytes(b"done")


def _plain(folder: Path, job: Job):
    """The plain loop; images are float tensors beforehand, which costs it nothing here."""
    data = load(job.data, data_dir=folder / "data", cache_dir=folder / "cache")
    x, y, n = as_batch(data.train_x), torch.from_numpy(np.array(data.train_y)), job.n_samples
    return lambda model, d: plain_epoch(model, x[d * n : (d + 1) * n], y[d * n : (d + 1) * n], job.batch_size)


def _own(folder: Path, job: Job):
    """The product's loop, from the mapped bytes as the product has them."""
    data = load(job.data, data_dir=folder / "data", cache_dir=folder / "cache")
    generator = torch.Generator().manual_seed(0)

    def epoch(model: nn.Module, device: int) -> None:
        chosen = np.arange(device * job.n_samples, (device + 1) * job.n_samples)
        drawn = batches(
            data.train_x, data.train_y, chosen, batch_size=job.batch_size, generator=generator, epochs=1
        )
        train(model, drawn, lr=LR)

    return epoch
