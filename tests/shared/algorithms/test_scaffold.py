"""SCAFFOLD: Karimireddy et al., algorithm 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.by_hooks import ByHooks
from shared.federation.experiment import Experiment
from shared.training.loop import batches, train
from shared.training.models import build
from shared.training.optimizers import momentum_step_factor
from tests.shared.algorithms import flat, plain_linear
from tests.shared.algorithms.layouts import four, ran, resolved, tried
from tests.shared.algorithms.plain_linear import Array, in_one_batch

LOST = [{"round_no": 2, "seats": [1]}]


def spec_of(option: str | None, server_lr: float = 1.0, **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices with 60 samples of two classes each; without an option FedAvg's."""
    params = {"option": option, "server_lr": server_lr}
    return {
        **four(),
        "algorithm": {"name": "fedavg"} if option is None else {"name": "scaffold", "params": params},
        "partition": {"name": "shards", "classes_per_device": 2},
        "num_rounds": 3,
        **more,
    }


def plain(experiment: Experiment, chosen: dict[int, list[int]]) -> tuple[Array, Array, dict[int, Array]]:
    """Computes algorithm 1 in numpy; returns x, c and the c_i after the spec's rounds."""
    p: Any = experiment.params
    x = plain_linear.joined(experiment.initial)
    n, far = len(experiment.population.seats), plain_linear.reach(experiment)
    c, own = np.zeros_like(x), {seat: np.zeros_like(x) for seat in range(n)}
    for round_no in range(1, experiment.spec.num_rounds + 1):
        eta, moved, changed = experiment.spec.lr_at(round_no), [], []
        for seat in chosen.get(round_no, list(range(n))):
            y = plain_linear.trained(experiment, seat, x, round_no=round_no, shift=c - own[seat])
            at_x = plain_linear.gradient_of(experiment, seat)(x)
            after = at_x if p.option == "I" else own[seat] - c + (x - y) / (far * eta)
            moved.append(y - x)
            changed.append(after - own[seat])
            own[seat] = after
        x = x + p.server_lr * np.mean(moved, axis=0)
        c = c + len(moved) / n * np.mean(changed, axis=0)
    return x, c, own


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("option", "server_lr", "momentum"), [("I", 1.0, 0.0), ("II", 0.5, 0.9), ("I", 1.0, 0.9), ("II", 0.5, 0.0)]
)
async def test_rounds_are_those_of_algorithm_1_also_with_a_client_missing(
    option: str, server_lr: float, momentum: float
) -> None:
    """c is a mean over all clients, x over participants: seat 1 misses round 2 and keeps its control."""
    spec = spec_of(option, server_lr, losses=LOST, **in_one_batch(momentum=momentum))
    done = await ran(spec, agent_devices=(3, 1))
    x, c, own = plain(done.experiment, {2: [0, 2, 3]})
    assert flat.distance(done.model, plain_linear.parted(x)) < 1e-5
    assert flat.distance(done.state.control, plain_linear.parted(c)) < 1e-5
    assert np.allclose(c, np.mean(list(own.values()), axis=0))
    other, _, _ = plain(done.experiment, {})
    assert flat.distance(done.model, plain_linear.parted(other)) > 1e-3


async def test_empty_seats_count_in_the_mean_of_controls() -> None:
    """With three of four seats taken, c is the mean of four c_i, one of them 0; also after the fourth has joined."""
    done = await ran(spec_of("II", num_devices=3, max_devices=4, **in_one_batch()), agent_devices=(3,))
    x, c, _ = plain(done.experiment, {round_no: [0, 1, 2] for round_no in (1, 2, 3)})
    assert flat.distance(done.model, plain_linear.parted(x)) < 1e-5
    assert flat.distance(done.state.control, plain_linear.parted(c)) < 1e-5


async def test_edge_rounds_change_the_cloud_s_control_by_the_sum_over_all_visits() -> None:
    """Two edge rounds with one device per edge: c is then the mean of the last c_i, each updated twice."""
    spec = spec_of("II", num_devices=2, edge_rounds=2, num_rounds=1, **in_one_batch())
    done = await ran(spec, agent_devices=(1, 1))
    last, models = [], []
    for seat in (0, 1):
        x, own = plain_linear.joined(done.experiment.initial), np.zeros(())
        for _ in range(2):
            y = plain_linear.trained(done.experiment, seat, x, shift=-own)
            own, x = own + (x - y) / (3 * 0.1), y
        last.append(own)
        models.append(x)
    assert flat.distance(done.state.control, plain_linear.parted(np.mean(last, axis=0))) < 1e-5
    assert flat.distance(done.model, plain_linear.parted(np.mean(models, axis=0))) < 1e-5


@pytest.mark.whole
async def test_the_pass_of_option_i_costs_an_epoch_s_time() -> None:
    seconds = {}
    for option in ("I", "II"):
        done = await ran(spec_of(option, num_rounds=1, **in_one_batch()), agent_devices=(4,))
        seconds[option] = [row.compute_s for row in done.rounds[0].seats]
    assert seconds["I"] == pytest.approx([4 / 3 * compute_s for compute_s in seconds["II"]])


def test_controls_of_both_kinds_agree_where_local_steps_are_tiny() -> None:
    """The mean gradient along the steps is then the gradient at x."""
    controls = []
    for option in ("I", "II"):
        experiment = resolved(**spec_of(option, lr=1e-4, num_edges=1, batch_size=16))
        ran = ByHooks(experiment)
        ran.round()
        controls.append(ran.devices[0].control)
    assert flat.distance(*controls) < 0.02
    assert max(float(part.abs().max()) for part in controls[0].values()) > 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_reach_is_the_distance_of_sgd_on_a_constant_gradient(momentum: float) -> None:
    model = build("mlp", (1, 8, 8), 10, 0)
    start = next(model.parameters()).detach().clone()
    x, y = np.zeros((7, 8, 8), np.uint8), np.zeros(7, np.int64)
    drawn = batches(x, y, range(7), batch_size=1, generator=torch.Generator(), epochs=1)

    def ones(parameters: Any, gradients: list[torch.Tensor]) -> None:
        for gradient in gradients:
            gradient.fill_(1.0)

    train(model, drawn, lr=0.01, momentum=momentum, correct=ones)
    moved = (start - next(model.parameters())) / 0.01
    assert torch.allclose(moved, torch.full_like(moved, momentum_step_factor(7, momentum)), rtol=1e-4)


@pytest.mark.whole
def test_scaffold_reaches_a_low_loss_sooner_where_clients_differ_and_steps_are_many() -> None:
    """The paper's claim: local steps on different data pull FedAvg away from the global optimum, but not SCAFFOLD."""
    fields = in_one_batch(local_epochs=20, num_rounds=5)
    mine, theirs = [
        plain_linear.loss_of(done.experiment, done.model)
        for option in ("II", None)
        for done in (tried(**spec_of(option, **fields)),)
    ]
    assert mine < 0.8 * theirs
