"""An evolution strategy of many (1+1) searches that share one covariance (ES-AFL, section 3.3).

    x_k' = x_k + s_k y_k,  y_k ~ N(0, C)                                     the child of client k                (6)
    C    = 1/K sum_k y_k y_k^T                     over the directions that won last in each client              (7)
    p_k <- (1 - a) p_k + sqrt(1 - (1 - a)^2) C^(-1/2) y_k                                                       (10)
    s_k <- s_k exp(a (|p_k| / E|N(0, I)| - 1))                                                                  (11)

Clients minimise different functions, so that each has its own place, step size and path. Pure functions on records;
vectors are tuples of Python's floats, which travel and are kept exactly.

Readings (the paper is silent): genes are clipped to [0, `max_gene`], and y_k is the move made, after clipping. Where
the parent wins, y_k, p_k and s_k stay as they are. Clients that have not won yet have no part in (7); while nobody has,
C is I. C is kept positive definite by shrinkage, (1 - c) C + c I. In (10) C is that with which y_k was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.core.records import Record

Vector = tuple[float, ...]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Strategy:
    """How the search goes.

    Attributes:
        alpha: a of (10) and (11).
        max_gene: genes lie in [0, this].
        max_sigma: step sizes stay at or below it.
        shrinkage: c.
        adapted: whether C is (7); else it stays I, as in the paper's ablation.
    """

    alpha: float = 0.2
    max_gene: float = 0.95
    max_sigma: float = 0.5
    shrinkage: float = 0.1
    adapted: bool = True


class Search(Record):
    """The search of one client.

    Attributes:
        parent: x_k.
        child: the offspring that is to be tried.
        direction: y_k of the child.
        whitened: C^(-1/2) y_k, of the C with which it was drawn.
        won: the direction that won last; empty before the first.
        path: p_k.
        sigma: s_k.
    """

    parent: Vector
    child: Vector
    direction: Vector
    whitened: Vector
    won: Vector = ()
    path: Vector
    sigma: float


def begun(start: Vector, sigma: float, covariance: Array, strategy: Strategy, rng: np.random.Generator) -> Search:
    """A search before its first trial: the parent is the start."""
    still = Search(
        parent=start, child=start, direction=_zeros(start), whitened=_zeros(start), path=_zeros(start), sigma=sigma
    )
    return with_child(still, covariance, strategy, rng)


def with_child(search: Search, covariance: Array, strategy: Strategy, rng: np.random.Generator) -> Search:
    """The search with a new child of its parent; with step size 0 the child is the parent."""
    if not search.sigma:
        return search.but(child=search.parent)
    half, inverse = _roots(covariance)
    parent = np.asarray(search.parent)
    drawn = parent + search.sigma * (half @ rng.standard_normal(len(parent)))  # (6)
    child = np.clip(drawn, 0.0, strategy.max_gene)
    direction = (child - parent) / search.sigma  # (8), of the move made
    return search.but(child=_vector(child), direction=_vector(direction), whitened=_vector(inverse @ direction))


def judged(search: Search, child_won: bool, strategy: Strategy) -> Search:
    """The search after its trial: the winner is the next parent."""
    if not child_won:
        return search
    a, n = strategy.alpha, len(search.parent)
    path = (1 - a) * np.asarray(search.path) + math.sqrt(1 - (1 - a) ** 2) * np.asarray(search.whitened)  # (10)
    factor = math.exp(a * (float(np.linalg.norm(path)) / expected_length(n) - 1))  # (11)
    sigma = min(search.sigma * factor, strategy.max_sigma)
    return search.but(parent=search.child, won=search.direction, path=_vector(path), sigma=sigma)


def covariance_of(searches: Iterable[Search], n_genes: int, strategy: Strategy) -> Array:
    """C, symmetric and positive definite, (n_genes, n_genes)."""
    won = [search.won for search in searches if search.won]
    if not won or not strategy.adapted:
        return np.eye(n_genes)
    directions = np.asarray(won)  # (clients, genes)
    found: Array = directions.T @ directions / len(won)  # (7)
    return (1 - strategy.shrinkage) * found + strategy.shrinkage * np.eye(n_genes)


def expected_length(n: int) -> float:
    """E|N(0, I)| in n dimensions, by the series that CMA-ES uses (Hansen, 2016, The CMA Evolution Strategy)."""
    return math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))


def _roots(covariance: Array) -> tuple[Array, Array]:
    """C^(1/2) and C^(-1/2), both symmetric."""
    values, vectors = np.linalg.eigh(covariance)
    half = np.sqrt(values)
    return (vectors * half) @ vectors.T, (vectors / half) @ vectors.T


def _zeros(like: Vector) -> Vector:
    return (0.0,) * len(like)


def _vector(array: Array) -> Vector:
    return tuple(array.tolist())
