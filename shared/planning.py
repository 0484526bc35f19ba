"""How one user's training samples are divided among its workers: numbers in, positions out.

`proportional` is eq. 2 (Task_j = Comp_j / sum Comp x Task) of Liu, Wu, Liu: Research on Personalized Federated Learning
Algorithm in Industrial Internet of Things, 2025; `balanced` lets all workers finish as early as the predictions allow.
No sample is lost or given twice, whatever the figures are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.core.apportionment import largest_remainder

Indices = npt.NDArray[np.int64]
Shares = dict[int, Indices]
_BISECTIONS = 200


@dataclass(frozen=True)
class Worker:
    """A worker as a plan sees it.

    Attributes:
        seat: its number.
        free_sps: its free compute, as far as it is counted on.
        fixed_s: predicted seconds to send it its order and get its update, whatever its share is.
        sample_s: of work for one sample.
        moved_s: to send it one sample that it does not hold.
        own: samples of the task that it holds; nobody else holds them.
        server: it is the edge's own machine, which has them all.
    """

    seat: int
    free_sps: float
    fixed_s: float = 0.0
    sample_s: float = 1.0
    moved_s: float = 0.0
    own: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    server: bool = False

    def finishes_s(self, n: int) -> float:
        """When it is predicted to be done with so many samples, those that it holds first."""
        n_moved = 0 if self.server else max(n - len(self.own), 0)
        return self.fixed_s + n * self.sample_s + n_moved * self.moved_s if n else 0.0

    def within(self, until_s: float) -> int:
        """How many samples it is predicted to be done with by then."""
        left_s = until_s - self.fixed_s
        if left_s < 0:
            return 0
        n_own = left_s / self.sample_s
        if self.server or n_own <= len(self.own):
            return int(n_own)
        return len(self.own) + int((left_s - len(self.own) * self.sample_s) / (self.sample_s + self.moved_s))


def proportional(workers: Sequence[Worker], task: Indices, rng: np.random.Generator) -> Shares:
    """Shares in proportion to free compute (eq. 2), by largest remainder, of the task in seeded order.

    Where nobody has any, the edge's own machine takes all; without one, all take equal shares.
    """
    compute = np.array([worker.free_sps for worker in workers], np.float64)
    if not compute.any():
        compute = np.array([worker.server for worker in workers], np.float64)
    if not compute.any():
        compute = np.ones(len(workers))
    sizes = largest_remainder(compute / compute.max(), len(task))
    parts = np.split(rng.permutation(task), np.cumsum(sizes)[:-1])
    return _not_empty({worker.seat: part for worker, part in zip(workers, parts, strict=True)})


def balanced(workers: Sequence[Worker], task: Indices, rng: np.random.Generator) -> Shares:
    """Shares with which the last worker is done as early as the predictions allow.

    Exact for them, to one sample: what a worker can do by an instant only grows with it, so that bisection finds the
    first instant at which all together can do the task. Everyone trains on samples of its own first; what nobody
    trains on who holds it is dealt in seeded order.
    """
    counts = _balanced_counts(workers, len(task))
    kept = {worker.seat: rng.permutation(worker.own)[: counts[worker.seat]] for worker in workers}
    held = np.concatenate([np.empty(0, np.int64), *kept.values()])
    pool = rng.permutation(np.setdiff1d(task, held))
    due = [counts[worker.seat] - len(kept[worker.seat]) for worker in workers]
    parts = np.split(pool, np.cumsum(due)[:-1])
    dealt = {w.seat: np.concatenate([kept[w.seat], part]) for w, part in zip(workers, parts, strict=True)}
    return _not_empty(dealt)


def _balanced_counts(workers: Sequence[Worker], total: int) -> dict[int, int]:
    low, high = 0.0, min(worker.finishes_s(total) for worker in workers)
    high = math.nextafter(high, math.inf) * (1 + 1e-12)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        enough = sum(worker.within(middle) for worker in workers) >= total
        low, high = (low, middle) if enough else (middle, high)
    counts = {worker.seat: min(worker.within(high), total) for worker in workers}
    by_seat = {worker.seat: worker for worker in workers}
    while (over := sum(counts.values()) - total) > 0:  # of those that are done last
        last = max((s for s in counts if counts[s]), key=lambda s: (by_seat[s].finishes_s(counts[s]), s))
        counts[last] -= min(max(over - len(workers), 1), counts[last])
    short = min(workers, key=lambda worker: (worker.finishes_s(counts[worker.seat] + 1), worker.seat)).seat
    counts[short] += max(total - sum(counts.values()), 0)  # where floating point stood in the way
    return counts


def _not_empty(shares: Shares) -> Shares:
    return {seat: np.sort(share) for seat, share in shares.items() if len(share)}
