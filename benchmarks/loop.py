"""Our training loop beside the plain PyTorch loop, one thread, interleaved; prints one table.

The plain loop: contiguous images prepared once, `torch.optim.SGD`, `zero_grad`, `loss.item()`.
Run from the repository root: `python -m benchmarks.loop [--seconds 20]`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from shared.training.data import as_batch
from shared.training.loop import batches, train
from shared.training.models import Shape, build

CASES: list[tuple[str, Shape, int, int]] = [
    ("mlp", (1, 8, 8), 32, 320),
    ("mlp", (1, 28, 28), 32, 320),
    ("cnn_mnist", (1, 28, 28), 10, 100),
    ("cnn_cifar10", (3, 32, 32), 32, 96),
    ("cnn_6_12", (3, 32, 32), 128, 256),
    ("resnet18", (3, 32, 32), 32, 32),
    ("mobilenet_v1", (3, 32, 32), 32, 64),
]
"""Model, input shape, batch size, samples in an epoch."""


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch_size: int, momentum: float) -> int:
    """One epoch of the loop that everybody writes; answers with the number of steps."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    total = 0.0
    chunks = torch.split(torch.randperm(len(x)), batch_size)
    for chosen in chunks:
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        total += loss.item() * len(chosen)
    return len(chunks)


def measure(case: tuple[str, Shape, int, int], seconds: float, momentum: float) -> tuple[float, float, int]:
    """Median milliseconds a step of the plain loop and of ours, and the number of repetitions."""
    name, shape, batch_size, n = case
    rng = np.random.default_rng(0)
    size = (n, *shape[1:]) if shape[0] == 1 else (n, *shape[1:], shape[0])
    x, y = rng.integers(0, 256, size, dtype=np.uint8), rng.integers(0, 10, n)
    floats, labels = as_batch(x), torch.from_numpy(y)
    theirs, own = build(name, shape, 10, 0), build(name, shape, 10, 0)
    generator = torch.Generator().manual_seed(0)

    def ours() -> int:
        source = batches(x, y, np.arange(n), batch_size=batch_size, epochs=1, generator=generator)
        return train(own, source, lr=0.01, momentum=momentum).n_steps

    runs: tuple[Callable[[], int], ...] = (
        lambda: plain(theirs, floats, labels, batch_size, momentum),
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
    return statistics.median(times[0]), statistics.median(times[1]), len(times[0])


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="seconds for each row")
    parser.add_argument("--momentum", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':<14}{'input':<12}{'batch':>6}{'plain ms':>11}{'ours ms':>10}{'ratio':>8}{'reps':>6}")
    for case in CASES:
        theirs, ours, reps = measure(case, options.seconds, options.momentum)
        shape = "x".join(map(str, case[1]))
        print(f"{case[0]:<14}{shape:<12}{case[2]:>6}{theirs:>11.3f}{ours:>10.3f}{ours / theirs:>8.2f}{reps:>6}")


if __name__ == "__main__":
    main()
