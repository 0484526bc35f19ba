"""FedNova: normalised averaging of Wang et al."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shared.federation.experiment import Experiment
from tests.shared.algorithms import flat, plain_linear
from tests.shared.algorithms.layouts import Ended, four, ran
from tests.shared.algorithms.plain_linear import Array

STRAGGLERS = {
    "straggler_ratio": 0.5,
    "straggler_slowdown": 2000,
    "straggler_slows": "compute",
    "edge_latency_s": 0.0,
}


def spec_of(name: str, **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices with two classes each; two are so slow that they take fewer steps."""
    return {
        **four(),
        "algorithm": name,
        "partition": {"name": "shards", "classes_per_device": 2},
        **plain_linear.in_one_batch(local_epochs=20),
        "num_rounds": 3,
        "lr": 0.05,
        "devices": STRAGGLERS,
        "partial_work": True,
        "round_deadline_s": 0.2,
        **more,
    }


def steps_of(done: Ended) -> list[dict[int, int]]:
    """Returns, by edge round of the run, the number of steps that each seat took."""
    found: list[dict[int, int]] = []
    for detail in done.rounds:
        for edge_round in range(done.experiment.spec.most_edge_rounds):
            rows = [row for row in detail.seats if row.edge_round == edge_round and row.outcome == "used"]
            full = done.experiment.spec.local_epochs
            found.append({row.seat: round(row.work_share * full) for row in rows})
    return found


def step(moved: list[Array], lengths: list[float], sizes: list[int]) -> tuple[Array, float]:
    """Returns tau_eff sum_i p_i d_i, and tau_eff."""
    p = np.array(sizes) / sum(sizes)
    tau_eff = float(np.dot(p, lengths))
    return tau_eff * sum(w * m / a for w, m, a in zip(p, moved, lengths, strict=True)), tau_eff


def plain(done: Ended, *, normalise: bool = True) -> Array:
    """Computes the rounds in numpy with the steps that each seat took; edges form models if there are edge rounds."""
    experiment, taken = done.experiment, iter(steps_of(done))
    x = plain_linear.joined(experiment.initial)
    sizes = {seat.number: len(seat.train) for seat in experiment.population.seats}
    groups = [[s.number for s in experiment.population.seats if s.home_edge == edge] for edge in range(2)]
    inner = experiment.spec.most_edge_rounds > 1
    for _ in done.rounds:
        steps = [next(taken) for _ in range(experiment.spec.most_edge_rounds)]
        found = []
        for edge, seats in enumerate(groups if inner else [groups[0] + groups[1]]):
            w, length = x, 0.0
            for at in steps[: experiment.spec.edge_rounds_at(edge)]:
                here = [seat for seat in seats if seat in at]
                lengths = [plain_linear.reach(experiment, at[seat]) if normalise else 1.0 for seat in here]  # |a_i|
                moved = [plain_linear.trained(experiment, seat, w, at[seat]) - w for seat in here]
                change, far = step(moved, lengths, [sizes[seat] for seat in here])
                w, length = w + change, length + far
            found.append((w - x, length, sum(sizes[seat] for seat in seats)))
        if inner:
            x = x + step([f[0] for f in found], [f[1] for f in found], [f[2] for f in found])[0]
        else:
            x = x + found[0][0]
    return x


@pytest.mark.matrix
@pytest.mark.parametrize(("momentum", "edge_rounds"), [(0.0, 1), (0.9, 2), (0.9, 1), (0.0, 2), (0.0, [1, 3])], ids=str)
async def test_rounds_are_those_of_the_paper_with_unequal_steps(momentum: float, edge_rounds: int | list[int]) -> None:
    lost = [{"round_no": 2, "seats": [0], "edge_round": 0}] if edge_rounds == 2 else []
    spec = spec_of("fednova", momentum=momentum, edge_rounds=edge_rounds, losses=lost)
    done = await ran(spec, agent_devices=(3, 1))
    taken = steps_of(done)
    devices = {1: [4] * 3, 2: [4, 4, 3, 4, 4, 4]}.get(edge_rounds if isinstance(edge_rounds, int) else 0, [4, 2, 2] * 3)
    assert [len(at) for at in taken] == devices
    assert all(min(at.values()) < max(at.values()) == 20 for at in taken if len(at) == 4)
    rows = [row for detail in done.rounds for row in detail.seats if row.outcome == "used"]
    assert all(4 * 650 < row.up_bytes < 1.5 * 4 * 650 for row in rows)  # as FedAvg's
    assert flat.distance(done.model, plain_linear.parted(plain(done))) < 2e-5
    assert flat.distance(done.model, plain_linear.parted(plain(done, normalise=False))) > 1e-2


def optimum(experiment: Experiment) -> Array:
    """Returns the minimum of the mean loss over all samples, with weight decay so that there is one."""
    x, seats = plain_linear.joined(experiment.initial), experiment.population.seats
    gradients, sizes = [plain_linear.gradient_of(experiment, s.number) for s in seats], [len(s.train) for s in seats]
    decay = experiment.spec.weight_decay
    for _ in range(300):  # each of which takes a fifth of the way at least
        x = x - 0.2 * (np.average([g(x) for g in gradients], axis=0, weights=sizes) + decay * x)
    return x


@pytest.mark.slow
async def test_the_objective_inconsistency_vanishes() -> None:
    """The paper's claim: with unequal steps FedAvg ends far from the optimum of the objective, FedNova close to it."""
    fields: dict[str, Any] = {"num_rounds": 60, "lr": 0.01, "weight_decay": 1.0, "num_edges": 1, "eval_every": 60}
    far = {}
    for name in ("fedavg", "fednova"):
        done = await ran(spec_of(name, **fields), agent_devices=(4,), n_edges=1)
        far[name] = float(np.linalg.norm(plain_linear.joined(done.model) - optimum(done.experiment)))
    assert far["fednova"] < 0.35 * far["fedavg"]
