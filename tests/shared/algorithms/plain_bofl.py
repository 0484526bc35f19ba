"""A reference BOFL without tiers: its formulas with scikit-learn's `Binarizer`, scipy's Hamming distance, torch's Adam.

It shares only `loop.py`, the population and the integer averaging of `flat.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.spatial.distance import hamming
from sklearn.preprocessing import Binarizer

from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.experiment import Experiment
from shared.training import models
from shared.training.loop import Step, batches, train
from tests.shared.algorithms import flat


@dataclass
class Row:
    """One device's accuracy, class and distances in one edge round."""

    label: str
    rho: int
    sigma: int | None
    refusals: int
    upload: bool


@dataclass
class Plain:
    """A run: its rows by (round, edge round, seat), the round in which each seat was retired, the last models."""

    model: TensorMap
    rows: dict[tuple[int, int, int], Row] = field(default_factory=dict)
    retired: dict[int, int] = field(default_factory=dict)
    refusals: dict[int, int] = field(default_factory=dict)
    edges: dict[int, TensorMap] = field(default_factory=dict)


def binarised(model: Mapping[str, Tensor], experiment: Experiment) -> npt.NDArray[Any]:
    """Algorithm 1, lines 1 to 3, on all parameters as one vector."""
    row = np.concatenate([model[name].numpy().ravel() for name in sorted(model) if name not in experiment.buffer_names])
    found: npt.NDArray[Any] = Binarizer(threshold=0.0).transform(row.reshape(1, -1))[0]
    return found


def distance(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    """Algorithm 1, lines 4 to 7."""
    return round(float(hamming(a, b)) * len(a))


def torch_adam(lr: float, weight_decay: float = 0.0) -> Step:
    """Returns torch's own optimiser as a step."""
    made: list[torch.optim.Adam] = []

    def step(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if not made:
            made.append(torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, foreach=True))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        made[0].step()

    return step


def local(
    experiment: Experiment, seat: int, stage: tuple[int, int, int], start: TensorMap
) -> tuple[TensorMap, float, float]:
    """Trains locally; returns the model, its accuracy and its loss during training."""
    spec, data, model = experiment.spec, experiment.data, experiment.model
    models.write_state(model, start)
    generator = torch.Generator().manual_seed(flat.stream(spec.seed, f"seat {seat}", *stage, "batches"))
    own = experiment.population.seats[seat].train
    drawn = batches(data.train_x, data.train_y, own, batch_size=spec.batch_size, generator=generator, epochs=1)
    step = torch_adam(spec.lr) if experiment.params.optimiser == "adam" else None  # type: ignore[attr-defined]
    done = train(model, drawn, lr=spec.lr, step=step)
    return models.read_state(model), done.n_correct / done.n_samples, done.loss


def mean(experiment: Experiment, deltas: Sequence[TensorMap], sizes: Sequence[int]) -> TensorMap:
    """Returns the mean of updates, plain or by samples, as the run's `weighting` says."""
    p: Any = experiment.params
    weights = list(sizes) if p.weighting == "samples" else [1] * len(sizes)
    return flat.exact_mean(list(deltas), weights, experiment.population.total_samples)


def minus(a: TensorMap, b: TensorMap) -> TensorMap:
    return {name: a[name] - b[name] for name in a}


def plus(a: TensorMap, b: TensorMap) -> TensorMap:
    return {name: a[name] + b[name] for name in a}


def bofl(experiment: Experiment) -> Plain:
    """Runs all rounds of algorithm 2 with the run's parameters; class C starts from its edge model."""
    run = Plain(experiment.initial)
    behind: dict[int, TensorMap] = {}  # class C: the edge model to start from
    moved: TensorMap | None = None
    for round_no in range(1, experiment.spec.num_rounds + 1):
        sent, weights, before = [], [], run.model
        for home in range(experiment.spec.num_edges or 1):
            seats = [
                s.number for s in experiment.population.seats if s.home_edge == home and s.number not in run.retired
            ]
            edge, used = _environment(experiment, run, round_no, seats, behind, moved)
            run.edges[home] = edge
            sent.append(minus(edge, before))
            weights.append(sum(len(experiment.population.seats[seat].train) for seat in used))
        moved = mean(experiment, sent, weights)
        run.model = plus(before, moved)
    return run


def _environment(
    experiment: Experiment,
    run: Plain,
    round_no: int,
    seats: list[int],
    behind: dict[int, TensorMap],
    moved: TensorMap | None,
) -> tuple[TensorMap, set[int]]:
    """Runs one environment's round; returns the edge model and the seats that uploaded."""
    edge, used = run.model, set[int]()
    for edge_round in range(experiment.spec.most_edge_rounds):
        live = [seat for seat in seats if seat not in run.retired]
        starts = {seat: behind.get(seat, edge) if edge_round == 0 else edge for seat in live}
        trained = {seat: local(experiment, seat, (round_no, edge_round, 0), starts[seat]) for seat in live}
        models_of = {seat: found[0] for seat, found in trained.items()}
        top = sorted(live, key=lambda seat: (-trained[seat][1], trained[seat][2], seat))[0]
        rows = _classes(experiment, run, (round_no, edge_round), models_of, edge, top, moved)
        uploads = [seat for seat in live if rows[seat].upload]
        sizes = [len(experiment.population.seats[seat].train) for seat in uploads]
        edge = plus(edge, mean(experiment, [minus(models_of[seat], edge) for seat in uploads], sizes))
        used |= set(uploads)
        for seat in live:
            behind.pop(seat, None)
            run.rows[round_no, edge_round, seat] = rows[seat]
            run.refusals[seat] = rows[seat].refusals
            if rows[seat].refusals >= experiment.params.delta:  # type: ignore[attr-defined]
                run.retired[seat] = round_no
    last = experiment.spec.most_edge_rounds - 1
    if experiment.params.adjust == "start":  # type: ignore[attr-defined]
        behind |= {s: edge for s in seats if (row := run.rows.get((round_no, last, s))) and row.label == "C"}
    return edge, used


def _classes(
    experiment: Experiment,
    run: Plain,
    when: tuple[int, int],
    trained: Mapping[int, TensorMap],
    start: TensorMap,
    top: int,
    moved: TensorMap | None,
) -> dict[int, Row]:
    p: Any = experiment.params
    by_update = p.compare == "update"
    bits = {seat: binarised(minus(model, start) if by_update else model, experiment) for seat, model in trained.items()}
    origin = moved if by_update else start if p.sigma_against == "round" else experiment.initial
    sigma = None if origin is None else distance(bits[top], binarised(origin, experiment))
    rows = {}
    for seat in trained:
        rho = distance(bits[seat], bits[top])
        label = "leader" if seat == top else "A" if sigma is None else _class(p, rho, sigma)
        wins = (
            np.random.default_rng(flat.stream(experiment.spec.seed, f"seat {seat}", *when, 0, "swing")).random() < 0.5
        )
        upload = label in ("leader", "A") or (label == "B" and bool(wins))
        count = run.refusals.get(seat, 0)
        if upload and p.refusals == "consecutive":
            count = 0
        elif label == "C" or (label == "B" and not upload and p.count_b):
            count += 1
        rows[seat] = Row(label, rho, sigma, count, upload)
    return rows


def _class(p: Any, rho: int, sigma: int) -> str:
    steady, swing = ((1 + p.phi), (1 + p.omega)) if p.margin == "expanded" else (p.phi, p.omega)
    return "A" if rho <= steady * sigma + 1e-7 else "B" if rho <= swing * sigma + 1e-7 else "C"
