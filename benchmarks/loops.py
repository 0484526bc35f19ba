"""Hand-written FedAvg loops for comparison: all devices in one process, or split over several.

Each process has one torch thread. The global model and each process's weighted sum of trained models are in shared
memory, so that nothing is encoded or sent between the processes: splitting cannot be faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, multiprocessing, nn
from torch.nn import functional

from shared.training.data.dataset import as_batch, load
from shared.training.loop import Trained, batches, train
from shared.training.models import build

Code = Literal["plain", "own"]
"""`plain`: the loop below; `own`: `shared.training.loop`, with which the product's devices train."""
State = Mapping[str, Tensor]
LR = 0.05


@dataclass(frozen=True)
class Work:
    """The work of a round: devices that took part, their samples, and their steps."""

    n_devices: int
    n_samples: int
    n_steps: int


@dataclass(frozen=True)
class Job:
    """The training of a round: each device trains one epoch on an equal share of a data set, in batches of 32.

    Attributes:
        n_samples: number of samples of each device.
        epochs: 0 means that devices send the model back without training.
    """

    data: str
    model: str
    n_devices: int
    n_samples: int
    batch_size: int = 32
    epochs: int = 1

    @property
    def work(self) -> Work:
        """The work of a round."""
        n_steps = self.epochs * -(-self.n_samples // self.batch_size)
        return Work(self.n_devices, self.n_devices * self.n_samples, self.n_devices * n_steps)

    def samples_of(self, device: int) -> slice:
        """The places of a device's samples in the data set."""
        return slice(device * self.n_samples, (device + 1) * self.n_samples)


def plain_epoch(model: nn.Module, x: Tensor, y: Tensor, batch_size: int, momentum: float = 0.0) -> int:
    """One epoch of the usual PyTorch loop; returns the number of steps."""
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
    """One or several processes, each of which trains its devices one after another."""

    def __init__(self, pipes: Sequence[Connection], model: State, sums: Sequence[State]) -> None:
        self._pipes, self._model, self._sums = pipes, model, sums

    def round(self) -> float:
        """Train every device from the global model and average; returns the seconds."""
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send_bytes(b"round")
        for pipe in self._pipes:
            pipe.recv_bytes()
        for name, tensor in self._model.items():
            torch.sum(torch.stack([part[name] for part in self._sums]), 0, out=tensor)
        return time.perf_counter() - began


@contextmanager
def loops(folder: Path, job: Job, *, code: Code, n_processes: int) -> Iterator[Loops]:
    """Processes with their data loaded, before their first round.

    Args:
        folder: contains `data/` and `cache/`.
        job: the training of a round.
        code: which training loop is used.
        n_processes: number of processes over which the devices are split evenly.
    """
    model = _shared(initial_model(folder, job).state_dict())
    sums = [_shared(model) for _ in range(n_processes)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.loops", "torch._dynamo"])  # torch.optim would import the latter
    shares = np.array_split(np.arange(job.n_devices), n_processes)
    pipes, processes = [], []
    for share, mine in zip(shares, sums, strict=True):
        here, there = context.Pipe()
        processes.append(context.Process(target=_work, args=(there, folder, job, code, share, model, mine)))
        processes[-1].start()
        there.close()  # so that the end of the process is noticed here
        pipes.append(here)
    try:
        for pipe in pipes:
            pipe.recv_bytes()
        yield Loops(pipes, model, sums)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)


def _shared(state: State) -> State:
    return {name: _in_shared_memory(tensor) for name, tensor in state.items()}


def _in_shared_memory(tensor: Tensor) -> Tensor:
    own: Tensor = tensor.detach().clone().share_memory_()  # type: ignore[no-untyped-call]
    return own


def initial_model(folder: Path, job: Job) -> nn.Module:
    """The model of the first round."""
    data = load(job.data, data_dir=folder / "data", cache_dir=folder / "cache")
    made: nn.Module = build(job.model, data.sample, data.target, 0)
    return made


def _work(
    pipe: Connection, folder: Path, job: Job, code: Code, devices: Sequence[int], start: State, mine: State
) -> None:
    """The process' main: waits for a round, trains its devices, and writes their part of the mean to `mine`."""
    torch.set_num_threads(1)
    model = initial_model(folder, job)
    epoch = _plain(folder, job) if code == "plain" else _own(folder, job)
    pipe.send_bytes(b"ready")
    with suppress(EOFError):
        while pipe.recv_bytes():
            for total in mine.values():
                total.zero_()
            for device in devices:
                model.load_state_dict(start)
                epoch(model, device)
                for name, tensor in model.state_dict().items():
                    mine[name].add_(tensor, alpha=1 / job.n_devices)
            pipe.send_bytes(b"done")


def prepared_data(folder: Path, job: Job) -> tuple[Tensor, Tensor]:
    """Images as float tensors, converted beforehand, outside the timing, and their labels."""
    data = load(job.data, data_dir=folder / "data", cache_dir=folder / "cache")
    return as_batch(data.train_x), torch.from_numpy(np.array(data.train_y))


def _plain(folder: Path, job: Job) -> Callable[[nn.Module, int], object]:
    """The plain loop."""
    x, y = prepared_data(folder, job)

    def epoch(model: nn.Module, device: int) -> int:
        own = job.samples_of(device)
        return plain_epoch(model, x[own], y[own], job.batch_size)

    return epoch


def _own(folder: Path, job: Job) -> Callable[[nn.Module, int], object]:
    """The product's loop, reading memory-mapped bytes as the product does."""
    data = load(job.data, data_dir=folder / "data", cache_dir=folder / "cache")
    generator = torch.Generator().manual_seed(0)

    def epoch(model: nn.Module, device: int) -> Trained:
        own = job.samples_of(device)
        places = np.arange(own.start, own.stop)
        drawn = batches(data.train_x, data.train_y, places, batch_size=job.batch_size, generator=generator, epochs=1)
        return train(model, drawn, lr=LR)

    return epoch
