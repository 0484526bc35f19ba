"""The batches of a stack: those of each device, padded to the same number of rows, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.training.loop import Batch

IGNORED = -100
"""The label of padding, which the cross-entropy ignores."""
Images = Callable[[Tensor], Tensor]
"""Positions of samples, int64, (n,) -> float images, (n, channels, height, width), on the compute device."""


@dataclass(frozen=True)
class Shuffled:
    """One device's samples and the order in which it trains on them.

    Attributes:
        labels: of its samples, int64, (n,).
        batches: positions among its samples, of each batch.
    """

    labels: npt.NDArray[np.int64]
    batches: Sequence[Tensor]


def gathered(
    devices: Sequence[Shuffled], images: Images, width: int, rows: int, compute: torch.device
) -> Iterator[Batch]:
    """Yields the batches of a stack.

    Args:
        devices: as in `StackTrainer.train`.
        images: images by position among the samples of all devices, those of the first device first.
        width, rows: of the stack.
        compute: device of the batches.
    """
    n_steps = max((len(device.batches) for device in devices), default=0)
    positions = np.zeros((n_steps, width, rows), dtype=np.int64)
    labels = np.full((n_steps, width, rows), IGNORED)
    first = 0
    for place, device in ((place, device) for place, device in enumerate(devices) if device.batches):
        sizes = np.array([len(batch) for batch in device.batches])
        real = np.arange(rows) < sizes[:, None]
        chosen = torch.cat(list(device.batches)).numpy()
        positions[: len(sizes), place] = first  # padding holds the device's first sample
        positions[: len(sizes), place][real] = chosen + first
        labels[: len(sizes), place][real] = device.labels[chosen]
        first += len(device.labels)
    where, flat = torch.from_numpy(positions).flatten(1), torch.from_numpy(labels).flatten(1).to(compute)
    for step in range(n_steps):
        yield images(where[step]), flat[step]


def joined(devices: Sequence[Iterator[Batch]], width: int, rows: int, compute: torch.device) -> Iterator[Batch]:
    """Yields the batches of a stack as `gathered` does, from batches that each device draws itself."""
    while drawn := [(place, *batch) for place, each in enumerate(devices) if (batch := next(each, None)) is not None]:
        shape = drawn[0][1].shape[1:]
        images = torch.zeros(width, rows, *shape, device=compute)
        labels = torch.full((width, rows), IGNORED, device=compute)
        for place, x, y in drawn:
            images[place, : len(y)], labels[place, : len(y)] = x, y
            images[place, len(y) :] = x[0]  # padding holds a sample of the device's own
        yield images.flatten(0, 1), labels.flatten()
