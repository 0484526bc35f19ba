"""The cost of a step of each method compared with FedAvg's: operations and seconds, in this process, in turns.

One device goes through some rounds with the hooks of all tiers, so that its state and its message are those of a
running experiment; then its next visit is repeated, in turns with the visits of the other methods, so that each ratio
compares the same process at the same time.

Operations are those of `shared.training.flops`, counted while the visit runs; seconds are those of the whole visit.
Both are divided by the number of local training steps, which therefore include the visit's other work: the passes in
which LAFL-CPN learns W, and loading a state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.by_hooks import ByHooks
from benchmarks.turns import in_turns
from shared.federation.experiment import Experiment
from shared.federation.hooks import Local
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_spec
from shared.training.data.dataset import Dataset
from shared.training.description import Classes, Sample
from shared.training.flops import Operations
from shared.training.models import Shape

WARM_ROUNDS = 2
"""Rounds of training before the measured visit, so that it has a previous model, controls and a drift."""


@dataclass(frozen=True)
class Case:
    """A model and the random images that it trains on in a visit."""

    model: str
    shape: Shape
    batch_size: int
    n_batches: int
    projection: int | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of one step.

    Attributes:
        operations: operations as a multiple of FedAvg's.
        seconds: seconds in each turn.
        ratio: the median over the turns of seconds divided by FedAvg's in the same turn.
    """

    name: str
    operations: float
    seconds: list[float]
    ratio: float


def random_samples(case: Case) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns images and labels of one epoch."""
    n = case.batch_size * case.n_batches
    size = case.shape[1:] if case.shape[0] == 1 else (*case.shape[1:], case.shape[0])
    return np.random.default_rng(0).integers(0, 256, (n, *size), dtype=np.uint8), np.arange(n) % 10


def costs(methods: Mapping[str, Any], case: Case, n_turns: int) -> list[Cost]:
    """Measure methods, the values of a spec's `algorithm` by name; one of them is `fedavg`."""
    visits = {name: _visit(algorithm, case) for name, algorithm in methods.items()}
    operations = {name: _operations(visit) for name, visit in visits.items()}
    seconds = in_turns({name: partial(_seconds, visit) for name, visit in visits.items()}, n_turns)
    plain = seconds["fedavg"]
    return [
        Cost(
            name,
            operations[name] / operations["fedavg"],
            spent,
            statistics.median(mine / theirs for mine, theirs in zip(spent, plain, strict=True)),
        )
        for name, spent in seconds.items()
    ]


def _visit(algorithm: Any, case: Case) -> Callable[[], Local]:
    """A visit of the only device in the middle of a run; it can be repeated any number of times."""
    run, n_trained = ByHooks(experiment_of(algorithm, case)), 0
    while n_trained < WARM_ROUNDS:
        run.round()
        n_trained += not run.collecting(run.round_no)
    (visit,) = run.visits().values()
    return visit


def _operations(visit: Callable[[], Local]) -> float:
    with Operations() as counter:
        done = visit()
    return float(counter.n) / _steps(done)


def _seconds(visit: Callable[[], Local]) -> float:
    began = time.perf_counter()
    done = visit()
    return (time.perf_counter() - began) / _steps(done)


def _steps(done: Local) -> int:
    if done.trained is None or not done.trained.n_steps:
        raise ValueError("the visit took no step")
    return done.trained.n_steps


def experiment_of(algorithm: Any, case: Case) -> Experiment:
    """Returns the experiment of one device that trains in a case by the value of a spec's `algorithm`."""
    x, y = random_samples(case)
    data = Dataset("cifar10", x, y, x[:10], y[:10], None, None, Classes(10), Sample(case.shape, images=True), "made up")
    fields = {
        "algorithm": algorithm,
        "data": "cifar10",
        "model": {"name": case.model, "projection": case.projection},
        "batch_size": case.batch_size,
        "num_devices": 1,
        "num_edges": 1,
        "num_rounds": 100,
        "lr": 1e-4,
        **load_algorithm(algorithm if isinstance(algorithm, str) else algorithm["name"]).needs,
    }
    return Experiment(parse_spec(fields).resolved(n_devices=1, n_edges=1), data)
