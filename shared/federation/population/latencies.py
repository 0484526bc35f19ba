"""One-way latencies between devices and edges, a row for each device, made when they are looked at."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from shared.core.number_sets import Numbers
from shared.core.randomness import stream_seed
from shared.simulation import Uniform, quantile
from shared.spec.experiment import ExperimentSpec

Rows = npt.NDArray[np.float64]
BLOCK = 2**20
"""Latencies that are made at a time where all are compared."""


class Latencies:
    """Seconds one way from every device seat to every edge, without the seat's own link.

    `devices.edge_latency_s` lists them, or is the distribution from which they are drawn: the row of a seat is a
    stretch of one stream, so it does not depend on the number of seats.

    Args:
        spec: resolved.
    """

    def __init__(self, spec: ExperimentSpec) -> None:
        self._amount, self._n_edges = spec.devices.edge_latency_s, spec.num_edges or 1
        self._seed = stream_seed(f"{spec.seed}|population|latency")
        self._streams = threading.local()

    def rows(self, first: int, n: int) -> Rows:
        """Returns the latencies of n seats from the first on, (n, num_edges)."""
        amount = self._amount
        if isinstance(amount, tuple):
            return np.array(amount[first : first + n], np.float64)
        if isinstance(amount, int | float):
            return np.full((n, self._n_edges), float(amount))
        u = self._stream(first * self._n_edges).random(size=(n, self._n_edges))
        if isinstance(amount, Uniform):
            return amount.low + (amount.high - amount.low) * u
        return np.array([[quantile(amount, value) for value in row] for row in u.tolist()], np.float64)

    def _stream(self, skipped: int) -> np.random.Generator:
        """The stream after its first `skipped` numbers; a thread moves one of its own, as a new one takes longer."""
        if not hasattr(self._streams, "generator"):
            self._streams.generator = np.random.Generator(np.random.PCG64(self._seed))
            self._streams.origin = self._streams.generator.bit_generator.state
        generator: np.random.Generator = self._streams.generator
        generator.bit_generator.state = self._streams.origin
        generator.bit_generator.advance(skipped)  # type: ignore[attr-defined]
        return generator

    def nearest(self, numbers: Numbers, edges: Sequence[int]) -> npt.NDArray[np.int32]:
        """Returns for each of these seats, (n,), the nearest of some edges; of equals the first."""
        columns, found = np.array(edges), np.empty(len(numbers), np.int32)
        for part in self._blocks(numbers):
            first = int(numbers[part.start])
            rows = self.rows(first, int(numbers[part.stop - 1]) - first + 1)[numbers[part] - first]
            found[part] = columns[rows[:, columns].argmin(axis=1)]
        return found

    def _blocks(self, numbers: Numbers) -> Iterator[slice]:
        """Slices of ascending numbers, each within so many seats that their latencies make up a block."""
        span, start = max(BLOCK // self._n_edges, 1), 0
        while start < len(numbers):
            stop = int(numbers.searchsorted(numbers[start] + span))
            yield slice(start, stop)
            start = stop
