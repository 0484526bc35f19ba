"""Channel statistics: mean and standard deviation of a client's pixels by colour channel, and normalisation with them.

They are equations 3 to 5 of LAFL-CPN (see `shared.algorithms.lafl_cpn`), kept as integer sums: the sums of all clients
add up exactly, and no image is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from shared.core.bounds import Count
from shared.core.records import Record
from shared.training.loop import Transform


class Statistics(Record):
    """Integer sums over the pixels of images, by channel.

    Attributes:
        n: number of pixels of a channel.
        sums: sum of the pixels (0 to 255) of each channel.
        squares: sum of the squared pixels of each channel.
    """

    n: Annotated[int, Field(ge=0, le=2**53)]
    sums: Annotated[tuple[Count, ...], Field(max_length=3)]
    squares: Annotated[tuple[Count, ...], Field(max_length=3)]

    @model_validator(mode="after")
    def _are_of_pixels(self) -> Self:
        if len(self.sums) != len(self.squares) or len(self.sums) not in ((1, 3) if self.n else (0, 1, 3)):
            raise ValueError(f"{len(self.sums)} sums and {len(self.squares)} squares; images have 1 or 3 channels")
        for total, square in zip(self.sums, self.squares, strict=True):
            if not (total * total <= self.n * square and square <= 255 * total <= 255**2 * self.n):
                raise ValueError("no images have these sums of pixels")
        return self

    def __add__(self, other: Statistics) -> Statistics:
        sums, squares = _added(self.sums, other.sums), _added(self.squares, other.squares)
        return Statistics(n=self.n + other.n, sums=sums, squares=squares)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel, with pixels scaled to 0..1.                                                    (4)"""
        return tuple(total / self.n / 255 for total in self.sums)

    @property
    def std(self) -> tuple[float, ...]:
        """Population standard deviation of each channel, pixels scaled to 0..1; at least one grey level.       (5)"""
        moments = zip(self.sums, self.squares, strict=True)
        spreads = ((self.n * square - total * total) / self.n**2 for total, square in moments)
        return tuple(max(spread, 1.0) ** 0.5 / 255 for spread in spreads)


def _added(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def measured(blocks: Iterable[Tensor]) -> Statistics:
    """Returns the statistics of blocks of images, each uint8 (n, channels, height, width), in one pass."""
    found: Statistics | None = None
    for block in blocks:
        pixels = block.to(torch.int64)
        sums, squares = (values.sum(dim=(0, 2, 3)).tolist() for values in (pixels, pixels * pixels))
        here = Statistics(n=pixels[:, 0].numel(), sums=tuple(sums), squares=tuple(squares))
        found = here if found is None else found + here
    return found or Statistics(n=0, sums=(), squares=())


@dataclass(frozen=True)
class ChannelNormaliser:
    """A transform that normalises the images of `as_batch`, which are scaled to -1..1, by the colours' statistics. (3)

    Attributes:
        mean, std: of each channel, of pixels scaled to 0..1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        mean, std = (torch.tensor(values).view(1, -1, 1, 1).to(x.device) for values in (self.mean, self.std))
        return (x * 0.5 + 0.5 - mean) / std


def normaliser(found: Statistics | None) -> Transform | None:
    """Returns a transform that normalises the images of `as_batch` by these statistics; None without images.    (3)"""
    if found is None or not found.n:
        return None
    return ChannelNormaliser(found.mean, found.std)


def pooled(known: Mapping[str, Statistics]) -> Statistics | None:
    """Returns the statistics of all clients' images together; None without clients."""
    found = [known[client] for client in sorted(known)]
    return sum(found[1:], found[0]) if found else None
