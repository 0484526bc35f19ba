"""The batches of a stack: those of each device, padded to the same number of rows, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.training.description import IGNORED
from shared.training.loop import Batch

Samples = Callable[[Tensor], Tensor]
"""Positions of samples, int64, (n,) -> samples as the model gets them, (n, ...), on the compute device."""


@dataclass(frozen=True)
class Shuffled:
    """One device's samples and the order in which it trains on them.

    Attributes:
        targets: of its samples, (n, ...).
        batches: positions among its samples, of each batch.
    """

    targets: npt.NDArray[Any]
    batches: Sequence[Tensor]


def gathered(
    devices: Sequence[Shuffled], samples: Samples, width: int, rows: int, compute: torch.device
) -> Iterator[Batch]:
    """Yields the batches of a stack.

    Args:
        devices: as in `StackTrainer.train`.
        samples: samples by position among the samples of all devices, those of the first device first.
        width, rows: of the stack.
        compute: device of the batches.
    """
    n_steps = max((len(device.batches) for device in devices), default=0)
    positions = np.zeros((n_steps, width, rows), dtype=np.int64)
    targets = _blank(devices, (n_steps, width, rows))
    first = 0
    for place, device in ((place, device) for place, device in enumerate(devices) if device.batches):
        sizes = np.array([len(batch) for batch in device.batches])
        real = np.arange(rows) < sizes[:, None]
        chosen = torch.cat(list(device.batches)).numpy()
        positions[: len(sizes), place] = first  # padding holds the device's first sample
        positions[: len(sizes), place][real] = chosen + first
        targets[: len(sizes), place][real] = device.targets[chosen]
        first += len(device.targets)
    where, flat = torch.from_numpy(positions).flatten(1), torch.from_numpy(targets).flatten(1, 2).to(compute)
    for step in range(n_steps):
        yield samples(where[step]), flat[step]


def _blank(devices: Sequence[Shuffled], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Returns the targets of padding: `IGNORED`, or 0 for numbers."""
    like = devices[0].targets if devices else np.zeros(0, np.int64)
    return np.full((*shape, *like.shape[1:]), IGNORED if like.dtype == np.int64 else 0, like.dtype)


def joined(devices: Sequence[Iterator[Batch]], width: int, rows: int, compute: torch.device) -> Iterator[Batch]:
    """Yields the batches of a stack as `gathered` does, from batches of images that each device draws itself."""
    while drawn := [(place, *batch) for place, each in enumerate(devices) if (batch := next(each, None)) is not None]:
        shape = drawn[0][1].shape[1:]
        images = torch.zeros(width, rows, *shape, device=compute)
        first = drawn[0][2]
        blank = 0 if first.is_floating_point() else IGNORED
        targets = torch.full((width, rows, *first.shape[1:]), blank, dtype=first.dtype, device=compute)
        for place, x, y in drawn:
            images[place, : len(y)], targets[place, : len(y)] = x, y
            images[place, len(y) :] = x[0]  # padding holds a sample of the device's own
        yield images.flatten(0, 1), targets.flatten(0, 1)
