"""Samples that one client draws by itself, with a class mix of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.core.errors import BadInput
from shared.training.partition.partitioners import Floats, Ints, Parts


class ClassPools:
    """The samples from which clients draw, by class.

    Args:
        indices: positions in the data set, (N,).
        labels: of these samples, (N,), each in 0..n_classes-1.
        n_classes: K.
    """

    def __init__(self, indices: Ints, labels: npt.NDArray[Any], n_classes: int) -> None:
        self.pools: Parts = [indices[labels == k] for k in range(n_classes)]
        self.sizes: Ints = np.array([len(pool) for pool in self.pools], np.int64)

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def mix(self, alpha: float, rng: np.random.Generator) -> Floats:
        """Returns shares of the classes, (K,), drawn from Dir(alpha) over those that have samples."""
        there = np.flatnonzero(self.sizes)
        shares = np.zeros(len(self.sizes))
        shares[there] = rng.dirichlet(np.full(len(there), alpha))
        return shares

    def draw(self, n: int, mix: Floats, rng: np.random.Generator) -> Ints:
        """Returns n different samples, ascending, with classes drawn by the mix.

        Where a class has too few samples, the rest comes from the other classes of the mix, then from any.

        Raises:
            BadInput: there are fewer than n samples.
        """
        if n > len(self):
            raise BadInput(f"{n} samples for each device, there are {len(self)}", field="partition.samples")
        counts = np.zeros(len(self.sizes), np.int64)
        while left := n - int(counts.sum()):
            room = self.sizes - counts
            shares = np.where(room > 0, mix, 0.0)
            shares = shares if shares.sum() > 0 else room.astype(np.float64)
            counts += np.minimum(rng.multinomial(left, shares / shares.sum()), room)
        drawn = [
            self.pools[k][rng.choice(self.sizes[k], size=counts[k], replace=False)] for k in np.flatnonzero(counts)
        ]
        return np.sort(np.concatenate(drawn)).astype(np.int64, copy=False)
