"""A client's trials in ES-AFL (`es_afl.py`, algorithm 2): sub-networks cut by a chromosome, trained and compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shared.algorithms._hooks import Bench
from shared.context import Ctx
from shared.core.records import TensorMap
from shared.core.scores import Score
from shared.evolution import Vector
from shared.test_sets import Samples
from shared.training.loop import Trained
from shared.training.subnetworks.pruning import heaviest, kept_units, rates_of
from shared.training.subnetworks.units import Units


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
    ctx: Ctx, start: TensorMap, chromosome: Vector, counts: TensorMap, bench: Bench, parts: tuple[Samples, Samples]
) -> Trial:
    """Cut a sub-network from the supernet, train it, leave out its lightest weights, and test it; lines 2 to 4.

    Without validation samples all are equally fit.
    """
    units, (training, validation) = ctx.units, parts
    kept = kept_units(counts, rates_of(units, chromosome, "units"))
    fit = bench.fit(ctx, units.cut(start, kept), samples=training)
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
        score=bench.test(left, validation),  # (12)
        n_weights={layer.name: int(stays[f"{layer.name}.weight"].sum()) for layer in units.layers},
    )


def divided(ctx: Ctx, bench: Bench) -> tuple[Samples, Samples]:
    """A client's samples of this round: to train on, and to validate.

    One at least validates, unless training needs them all: a batch-norm may want two.
    """
    n = bench.n_samples
    n_validation = max(min(max(math.floor(ctx.params.validation * n), 1), n - ctx.least_batch), 0)
    order = torch.randperm(n, generator=ctx.rng("validation")).numpy()
    chosen = np.zeros(n, dtype=bool)
    chosen[order[:n_validation]] = True
    samples = bench.samples
    return Samples(samples.part, samples.indices[~chosen]), Samples(samples.part, samples.indices[chosen])


def n_trained(units: Units, start: TensorMap, trials: Sequence[Trial], n_validation: int) -> int:
    """On how many samples the supernet could have been trained in the operations of a visit."""
    whole = units.training_flops(start)
    flops = 2 * n_validation * sum(units.multiply_adds(start).values())  # the ranking
    for trial in trials:
        flops += trial.trained.n_samples * units.training_flops(trial.model)
        flops += 2 * n_validation * sum(units.multiply_adds(trial.model).values())
    return math.ceil(flops / whole)
