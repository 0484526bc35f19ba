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

A client's trials in ES-AFL (`es_afl.py`, algorithm 2): sub-networks cut by a chromosome, trained and compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shared.federation.hooks import Context, Record, Samples, Score, TensorMap, Trained, Trainer
from shared.training.subnetworks.pruning import heaviest, kept_units, rates_of
from shared.training.subnetworks.units import Units

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
        return search.replace(child=search.parent)
    half, inverse = _roots(covariance)
    parent = np.asarray(search.parent)
    drawn = parent + search.sigma * (half @ rng.standard_normal(len(parent)))  # (6)
    child = np.clip(drawn, 0.0, strategy.max_gene)
    direction = (child - parent) / search.sigma  # (8), of the move made
    return search.replace(child=_vector(child), direction=_vector(direction), whitened=_vector(inverse @ direction))


def judged(search: Search, child_won: bool, strategy: Strategy) -> Search:
    """The search after its trial: the winner is the next parent."""
    if not child_won:
        return search
    a, n = strategy.alpha, len(search.parent)
    path = (1 - a) * np.asarray(search.path) + math.sqrt(1 - (1 - a) ** 2) * np.asarray(search.whitened)  # (10)
    factor = math.exp(a * (float(np.linalg.norm(path)) / expected_length(n) - 1))  # (11)
    sigma = min(search.sigma * factor, strategy.max_sigma)
    return search.replace(parent=search.child, won=search.direction, path=_vector(path), sigma=sigma)


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


@dataclass(frozen=True)
class Trial:
    """A trained sub-network.

    Attributes:
        model: its state, lightest weights 0.
        whole: the same at its places in the supernet, 0 elsewhere.
        stays: its parameters and statistics that are not left out, 0/1, at their places in the supernet.
        score: on the validation samples.
        n_weights: by layer, weights that are not left out.
    """

    model: TensorMap
    whole: TensorMap
    stays: TensorMap
    trained: Trained
    score: Score
    n_weights: dict[str, int]

    @property
    def rank(self) -> tuple[float, int]:
        """Fitness, and of equals the smaller."""
        return self.score.accuracy or 0.0, -sum(self.n_weights.values())


def tried(
    ctx: Context,
    start: TensorMap,
    chromosome: Vector,
    counts: TensorMap,
    trainer: Trainer,
    parts: tuple[Samples, Samples],
) -> Trial:
    """Cut a sub-network from the supernet, train it, leave out its lightest weights, and test it; lines 2 to 4.

    Without validation samples all are equally fit.
    """
    units, (training, validation) = ctx.model.units, parts
    kept = kept_units(counts, rates_of(units, chromosome, "units"))
    fit = trainer.fit(ctx, units.cut(start, kept), samples=training)
    stays = {name: torch.ones_like(tensor, dtype=torch.float32) for name, tensor in fit.model.items()}
    for name, rate in rates_of(units, chromosome, "weights").items():
        key = f"{name}.weight"
        stays[key] = heaviest(fit.model[key], rate).to(torch.float32)
    left = {name: tensor * stays[name].to(tensor.dtype) for name, tensor in fit.model.items()}
    return Trial(
        model=left,
        whole=units.spread(left, start, kept),
        stays=units.spread(stays, start, kept),
        trained=fit.trained,
        score=trainer.evaluate(left, validation),  # (12)
        n_weights={layer.name: int(stays[f"{layer.name}.weight"].sum()) for layer in units.layers},
    )


def divided(ctx: Context, trainer: Trainer) -> tuple[Samples, Samples]:
    """A client's samples of this round: to train on, and to validate.

    One at least validates, unless training needs them all: a batch-norm may want two.
    """
    n = trainer.n_samples
    n_validation = max(min(max(math.floor(ctx.params.validation * n), 1), n - ctx.model.least_batch), 0)
    order = torch.randperm(n, generator=ctx.rng("validation")).numpy()
    chosen = np.zeros(n, dtype=bool)
    chosen[order[:n_validation]] = True
    samples = trainer.samples
    return Samples(samples.part, samples.indices[~chosen]), Samples(samples.part, samples.indices[chosen])


def n_trained(units: Units, start: TensorMap, trials: Sequence[Trial], n_validation: int) -> int:
    """On how many samples the supernet could have been trained in the operations of a visit."""
    whole = units.training_flops(start)
    flops = 2 * n_validation * sum(units.multiply_adds(start).values())  # the ranking
    for trial in trials:
        flops += trial.trained.n_samples * units.training_flops(trial.model)
        flops += 2 * n_validation * sum(units.multiply_adds(trial.model).values())
    return math.ceil(flops / whole)
