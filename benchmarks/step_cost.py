"""`python -m benchmarks.step_cost [ALGORITHM...]`: what each algorithm's device does in a step, beside FedAvg's.

Every algorithm whose device has a `local_update` of its own is measured, packages of one's own (`STRATA_ALGORITHMS`)
too. One device goes through some rounds by the hooks of all tiers, so that its state and messages are those of a run
under way; then its last visit is made again and again, in turn with FedAvg's: the ratio is of one process and one time.

A step's operations are those of `shared.training.flops`, counted while the visit runs; its seconds are the visit's
over its steps of training. What a visit does beside its steps is so shared out among them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.by_hooks import ByHooks
from shared.algorithms import all_algorithms, load_algorithm
from shared.algorithms._hooks import DeviceHooks, Local
from shared.lab import Lab
from shared.spec import ExperimentSpec
from shared.training.data import Dataset
from shared.training.flops import Operations
from shared.training.models import Shape

WARM_ROUNDS = 2
"""Rounds of training before the visit that is measured."""


@dataclass(frozen=True)
class Case:
    """What is trained: a model on made-up images, some batches a visit."""

    model: str = "cnn_mnist"
    shape: Shape = (1, 28, 28)
    batch_size: int = 32
    n_batches: int = 4


@dataclass(frozen=True)
class Cost:
    """Of one step, beside FedAvg's: operations, and the median of the ratios of seconds, with the quartiles."""

    name: str
    flops: float
    seconds: float
    low: float
    high: float


def names() -> list[str]:
    """The algorithms that do something of their own on the device."""
    own = (name for name, one in all_algorithms().items() if type(one.device).local_update != DeviceHooks.local_update)
    return sorted(own)


def visit_of(name: str, case: Case) -> Callable[[], Local]:
    """A visit of an algorithm's device in a run that is under way, to be made as often as one likes."""
    run, n_trained = ByHooks(_lab(name, case)), 0
    while n_trained < WARM_ROUNDS:
        run.round()
        n_trained += not run.collecting(run.round_no)
    (visit,) = run.visits().values()
    return visit


def costs(wanted: Sequence[str], case: Case, n_turns: int) -> list[Cost]:
    """Measure these algorithms, in turns."""
    visits = {name: visit_of(name, case) for name in ["fedavg", *wanted]}
    flops = {name: _flops(visit) for name, visit in visits.items()}
    ratios: dict[str, list[float]] = {name: [] for name in wanted}
    for _ in range(n_turns):
        seconds = {name: _seconds(visit) for name, visit in visits.items()}
        for name in wanted:
            ratios[name].append(seconds[name] / seconds["fedavg"])
    return [_cost(name, flops[name] / flops["fedavg"], ratios[name]) for name in wanted]


def _cost(name: str, flops: float, ratios: list[float]) -> Cost:
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios * 3)[:3]
    return Cost(name, flops, median, low, high)


def _flops(visit: Callable[[], Local]) -> float:
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


def _lab(name: str, case: Case) -> Lab:
    n = case.batch_size * case.n_batches
    rng = np.random.default_rng(0)
    size = case.shape[1:] if case.shape[0] == 1 else (*case.shape[1:], case.shape[0])
    x, y = rng.integers(0, 256, (n, *size), dtype=np.uint8), np.arange(n) % 10
    data = Dataset("mnist", x, y, x[:10], y[:10], None, None, 10, case.shape, "made up")
    fields = {
        "algorithm": name,
        "data": "mnist",
        "model": case.model,
        "batch_size": case.batch_size,
        "num_devices": 1,
        "num_edges": 1,
        "num_rounds": 100,
        "edge_worker": False,
        **load_algorithm(name).needs,
    }
    return Lab(ExperimentSpec.model_validate(fields).resolved(n_devices=1, n_edges=1), data)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.step_cost", description=__doc__.splitlines()[0])
    parser.add_argument("algorithms", nargs="*", help="none: all that differ from FedAvg on the device")
    parser.add_argument("--model", default=Case.model)
    parser.add_argument("--shape", default="1x28x28", help="of an image: channels, height, width")
    parser.add_argument("--batch-size", type=int, default=Case.batch_size)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    channels, height, width = (int(side) for side in options.shape.split("x"))
    case = Case(options.model, (channels, height, width), options.batch_size)
    print(f"{options.model}, {options.shape}, batches of {options.batch_size}; of FedAvg's step, {options.turns} turns")
    print(f"{'algorithm':12} {'operations':>10} {'seconds':>8}  quartiles")
    for cost in costs(options.algorithms or names(), case, options.turns):
        print(f"{cost.name:12} {cost.flops:10.2f} {cost.seconds:8.2f}  {cost.low:.2f} to {cost.high:.2f}")


if __name__ == "__main__":
    main()
