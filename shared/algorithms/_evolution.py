"""An evolution strategy of many (1+1) searches that share one covariance (ES-AFL, section 3.3).

    x_k' = x_k + s_k y_k,  y_k ~ N(0, C)                                     the child of client k                (6)
    C    = 1/K sum_k y_k y_k^T                     over each client's last winning direction                     (7)
    p_k <- (1 - a) p_k + sqrt(1 - (1 - a)^2) C^(-1/2) y_k                                                       (10)
    s_k <- s_k exp(a (|p_k| / E|N(0, I)| - 1))                                                                  (11)

Clients minimise different functions, so each has its own position, step size and path. The functions are pure, on
records; vectors are tuples of Python floats, which are sent and stored exactly.

Readings, since the paper is silent: genes are clipped to [0, `max_gene`], and y_k is the actual move, after clipping.
If the parent wins, y_k, p_k and s_k do not change. Clients that have not won yet do not count in (7); as long as none
has, C is I. C is kept positive definite by shrinkage, (1 - c) C + c I. In (10) C is the one with which y_k was drawn.

Also ES-AFL's parameters and what follows from them alone, and a client's trials (`es_afl.py`, algorithm 2):
sub-networks pruned by a chromosome, trained and compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator

from shared.federation.hooks import (
    Context,
    ExperimentSpec,
    Passes,
    Phase,
    Record,
    Samples,
    Score,
    TensorMap,
    Trained,
    Trainer,
    one_phase,
    uploaded_names,
)
from shared.training.batch_norm import statistics_in
from shared.training.subnetworks.pruning import kept_units, magnitude_mask, rates_of
from shared.training.subnetworks.units import Units

Vector = tuple[float, ...]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Strategy:
    """Constants of the search.

    Attributes:
        alpha: a of (10) and (11).
        max_gene: upper bound of genes; the lower is 0.
        max_sigma: upper bound of step sizes.
        shrinkage: c.
        adapted: whether C is that of (7); else it is I, as in the paper's ablation.
    """

    alpha: float = 0.2
    max_gene: float = 0.95
    max_sigma: float = 0.5
    shrinkage: float = 0.1
    adapted: bool = True


class Params(Record):
    """Parameters of the search; the paper gives only the share of validation samples.

    Attributes:
        start: value of every gene of a client's first parent.
        sigma: first step size; 0 means that chromosomes do not change.
        alpha: learning rate of path and step size.
        max_gene: upper bound of genes.
        max_sigma: upper bound of step sizes.
        shrinkage: weight of the identity in the covariance.
        covariance: `shared` by all clients as in (7), or the `identity` (the paper's ablation).
        validation: share of a client's training samples on which units are ranked and sub-networks compared.
        statistics: batch-norm statistics of the supernet: `averaged` over sub-networks, or `retaken` by all clients.
        ties: which of equally important units are kept: the `first`, or `random` ones of each client.
        head_bias: `averaged` over all clients, or `fixed` at its initial value.
    """

    start: Annotated[float, Field(ge=0, le=1)] = 0.2
    sigma: Annotated[float, Field(ge=0, le=1)] = 0.1
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2
    max_gene: Annotated[float, Field(ge=0, lt=1)] = 0.95
    max_sigma: Annotated[float, Field(gt=0, le=10)] = 0.5
    shrinkage: Annotated[float, Field(gt=0, le=1)] = 0.1
    covariance: Literal["shared", "identity"] = "shared"
    validation: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    statistics: Literal["averaged", "retaken"] = "averaged"
    ties: Literal["first", "random"] = "first"
    head_bias: Literal["averaged", "fixed"] = "averaged"

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        for first, most in (("start", "max_gene"), ("sigma", "max_sigma")):
            if getattr(self, first) > getattr(self, most):
                raise ValueError(f"{first} {getattr(self, first):g} is above {most} {getattr(self, most):g}")
        return self

    @property
    def strategy(self) -> Strategy:
        """These parameters, as the evolution strategy takes them."""
        adapted = self.covariance == "shared"
        return Strategy(self.alpha, self.max_gene, self.max_sigma, self.shrinkage, adapted)


STATISTICS = "statistics"
"""The phase after the last round, in which statistics are retaken without training."""


def phases(spec: ExperimentSpec, params: Params) -> tuple[Phase, ...]:
    """Returns the rounds of the spec and, if statistics are retaken, one round more."""
    last = (Phase(STATISTICS, 1, kind="collect"),) if params.statistics == "retaken" else ()
    return *one_phase(spec, params), *last


class Search(Record):
    """The search of one client.

    Attributes:
        parent: x_k.
        child: its offspring, which is tried next.
        direction: y_k of the child.
        whitened: C^(-1/2) y_k, with the C with which y_k was drawn.
        won: the last winning direction; empty before the first.
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


def new_search(start: Vector, sigma: float, covariance: Array, strategy: Strategy, rng: np.random.Generator) -> Search:
    """Returns a search before its first trial, with `start` as the parent."""
    still = Search(
        parent=start, child=start, direction=_zeros(start), whitened=_zeros(start), path=_zeros(start), sigma=sigma
    )
    return with_child(still, covariance, strategy, rng)


def with_child(search: Search, covariance: Array, strategy: Strategy, rng: np.random.Generator) -> Search:
    """Returns the search with a new child of its parent; with step size 0 the child equals the parent."""
    if not search.sigma:
        return search.replace(child=search.parent)
    half, inverse = _roots(covariance)
    parent = np.asarray(search.parent)
    drawn = parent + search.sigma * (half @ rng.standard_normal(len(parent)))  # (6)
    child = np.clip(drawn, 0.0, strategy.max_gene)
    direction = (child - parent) / search.sigma  # (8), of the move made
    return search.replace(child=_vector(child), direction=_vector(direction), whitened=_vector(inverse @ direction))


def after_trial(search: Search, child_won: bool, strategy: Strategy) -> Search:
    """Returns the search after its trial, whose winner is the next parent."""
    if not child_won:
        return search
    a, n = strategy.alpha, len(search.parent)
    path = (1 - a) * np.asarray(search.path) + math.sqrt(1 - (1 - a) ** 2) * np.asarray(search.whitened)  # (10)
    factor = math.exp(a * (float(np.linalg.norm(path)) / expected_length(n) - 1))  # (11)
    sigma = min(search.sigma * factor, strategy.max_sigma)
    return search.replace(parent=search.child, won=search.direction, path=_vector(path), sigma=sigma)


def covariance_of(searches: Iterable[Search], n_genes: int, strategy: Strategy) -> Array:
    """Returns C, symmetric and positive definite, (n_genes, n_genes)."""
    won = [search.won for search in searches if search.won]
    if not won or not strategy.adapted:
        return np.eye(n_genes)
    directions = np.asarray(won)  # (clients, genes)
    found: Array = directions.T @ directions / len(won)  # (7)
    return (1 - strategy.shrinkage) * found + strategy.shrinkage * np.eye(n_genes)


def expected_length(n: int) -> float:
    """Returns E|N(0, I)| in n dimensions, by the series that CMA-ES uses (Hansen, 2016, The CMA Evolution Strategy)."""
    return math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))


def _roots(covariance: Array) -> tuple[Array, Array]:
    """Returns C^(1/2) and C^(-1/2), both symmetric."""
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
        model: the sub-network's tensors, with pruned weights 0.
        whole: the same tensors at their positions in the supernet, 0 elsewhere.
        mask: 0/1 masks of the supernet's shapes, 1 where a parameter or statistic was kept.
        trained: what its training counted.
        score: on the validation samples.
        n_weights: number of kept weights by layer.
    """

    model: TensorMap
    whole: TensorMap
    mask: TensorMap
    trained: Trained
    score: Score
    n_weights: dict[str, int]

    @property
    def rank(self) -> tuple[float, int]:
        """Fitness, then fewer weights; the larger rank wins."""
        return self.score.accuracy or 0.0, -sum(self.n_weights.values())


def run_trial(
    ctx: Context,
    start: TensorMap,
    chromosome: Vector,
    counts: TensorMap,
    trainer: Trainer,
    parts: tuple[Samples, Samples],
    *,
    orders: TensorMap | None = None,
    trains: Collection[str] | None = None,
) -> Trial:
    """Cuts a sub-network from the supernet, trains it, prunes its smallest weights and evaluates it; lines 2 to 4.

    Without validation samples all sub-networks have the same fitness.

    Args:
        ctx: context of the visit.
        start: the supernet.
        chromosome: the share that is pruned, by gene.
        counts: importance of each unit, by group.
        trainer: of the client.
        parts: training and validation samples.
        orders: by group, the order of units that are equally important, see `kept_units`.
        trains: names of the parameters that are trained; None means all.
    """
    units, (training, validation) = ctx.model.units, parts
    kept = kept_units(counts, rates_of(units, chromosome, "units"), orders)
    fit = trainer.fit(ctx, units.cut(start, kept), samples=training, trains=trains)
    stays = {name: torch.ones_like(tensor, dtype=torch.float32) for name, tensor in fit.model.items()}
    for name, rate in rates_of(units, chromosome, "weights").items():
        key = f"{name}.weight"
        stays[key] = magnitude_mask(fit.model[key], rate).to(torch.float32)
    left = {name: tensor * stays[name].to(tensor.dtype) for name, tensor in fit.model.items()}
    return Trial(
        model=left,
        whole=units.spread(left, start, kept),
        mask=units.spread(stays, start, kept),
        trained=fit.trained,
        score=trainer.evaluate(left, validation),  # (12)
        n_weights={layer.name: int(stays[f"{layer.name}.weight"].sum()) for layer in units.layers},
    )


def split_samples(ctx: Context, trainer: Trainer, share: float) -> tuple[Samples, Samples]:
    """Returns a client's training and validation samples of this round; `share` of them validate.

    At least one sample validates, unless training needs them all (batch-norm needs two).
    """
    n = trainer.n_samples
    n_validation = max(min(max(math.floor(share * n), 1), n - ctx.model.least_batch), 0)
    order = torch.randperm(n, generator=ctx.rng("validation")).numpy()
    chosen = np.zeros(n, dtype=bool)
    chosen[order[:n_validation]] = True
    samples = trainer.samples
    return Samples(samples.part, samples.indices[~chosen]), Samples(samples.part, samples.indices[chosen])


def equivalent_samples(
    units: Units, start: TensorMap, trials: Sequence[Trial], n_validation: int, n_passed: int
) -> int:
    """Returns the number of samples on which the supernet could be trained in as many operations as this visit took.

    `n_passed` samples passed forward through the supernet: those that ranked its units, and others.
    """
    whole = units.training_flops(start)
    flops = 2 * n_passed * sum(units.multiply_adds(start).values())
    for trial in trials:
        flops += trial.trained.n_samples * units.training_flops(trial.model)
        flops += 2 * n_validation * sum(units.multiply_adds(trial.model).values())
    return math.ceil(flops / whole)


def head_bias(ctx: Context) -> str:
    """Returns the name of the head's bias."""
    return f"{ctx.model.units.layers[-1].name}.bias"


def orders_of(ctx: Context) -> TensorMap:
    """Returns by group a client's own order of units, the same in all rounds."""
    once = ctx.at(round_no=0, edge_round=0, wave=0)
    return {
        group: torch.randperm(n, generator=once.rng(f"ties of {group}")) for group, n in ctx.model.units.groups.items()
    }


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """The tensors of an update: all that travel, without a fixed bias; while statistics are retaken, these alone."""
    names = uploaded_names(ctx, model)
    if ctx.phase == STATISTICS:
        return {"delta": statistics_in(names)}
    return {"delta": names - {head_bias(ctx)} if ctx.params.head_bias == "fixed" else names}


def passes(params: Params) -> Passes:
    """Returns what is expected of a visit, as passes of the whole supernet: parent, child and validation samples."""
    n_trials, retaken = (2 if params.sigma else 1), params.statistics == "retaken"
    forward = params.validation * (1 + n_trials) + retaken
    return Passes(per_training_sample=n_trials, extra_per_sample=forward / 3)
