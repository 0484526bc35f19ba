"""Samples that one client draws by itself, with a class mix of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.core.errors import BadInput
from shared.training.partition.partitioners import Floats, Ints


class ClassPools:
    """The samples from which clients draw, by class.

    Args:
        indices: positions in the data set, (N,).
        labels: of these samples, (N,), each in 0..n_classes-1.
        n_classes: K.
    """

    def __init__(self, indices: Ints, labels: npt.NDArray[Any], n_classes: int) -> None:
        self.sizes: Ints = np.bincount(labels, minlength=n_classes).astype(np.int64)
        self._flat: Ints = indices[np.argsort(labels, kind="stable")]  # the samples of the first class, and so on
        self._starts: Ints = np.cumsum(self.sizes) - self.sizes
        self._there = np.flatnonzero(self.sizes)

    def __len__(self) -> int:
        return len(self._flat)

    def mix(self, alpha: float, rng: np.random.Generator) -> Floats:
        """Returns shares of the classes, (K,), drawn from Dir(alpha) over those that have samples."""
        shares = np.zeros(len(self.sizes))
        shares[self._there] = rng.dirichlet(np.full(len(self._there), alpha))
        return shares

    def draw(self, n: int, mix: Floats, rng: np.random.Generator) -> Ints:
        """Returns n different samples, ascending, with classes drawn by the mix.

        Where a class has too few samples, the rest comes from the other classes of the mix, then from any.

        Raises:
            BadInput: there are fewer than n samples.
        """
        if n > len(self):
            raise BadInput(f"{n} samples for each device, there are {len(self)}", field="partition.samples")
        counts = rng.multinomial(n, mix)
        if (counts > self.sizes).any():
            counts = self._within(n, np.minimum(counts, self.sizes), mix, rng)
        drawn: Ints = np.sort(self._flat[self._places(counts, rng)])
        return drawn

    def _within(self, n: int, counts: Ints, mix: Floats, rng: np.random.Generator) -> Ints:
        """Numbers of samples of the classes that add up to n, none above the size of its class."""
        while left := n - int(counts.sum()):
            room = self.sizes - counts
            shares = np.where(room > 0, mix, 0.0)
            shares = shares if shares.sum() > 0 else room.astype(np.float64)
            counts = counts + np.minimum(rng.multinomial(left, shares / shares.sum()), room)
        return counts

    def _places(self, counts: Ints, rng: np.random.Generator) -> Ints:
        """Different places in the list of all samples, so many of each class."""
        if (2 * counts > self.sizes).any():
            drawn = [
                rng.choice(size, size=count, replace=False) for size, count in zip(self.sizes, counts, strict=True)
            ]
            all_places: Ints = np.repeat(self._starts, counts) + np.concatenate(drawn)
            return all_places
        starts, sizes = self._starts.repeat(counts), self.sizes.repeat(counts)
        places: Ints = starts + rng.integers(0, sizes)
        while True:  # of equal places all but one are drawn again, as if the samples were drawn one after another
            order = places.argsort(kind="stable")
            ordered = places[order]
            again = order[1:][ordered[1:] == ordered[:-1]]
            if not len(again):
                return places
            places[again] = starts[again] + rng.integers(0, sizes[again])
