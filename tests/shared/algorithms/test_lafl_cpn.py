"""LAFL-CPN: channel statistics, the learned mix of top layers, and augmentation, alone and together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from shared.algorithms.lafl_cpn import Mixing, Own, Params, _drawn, _mixed_start, converged
from shared.core.errors import BadInput
from shared.core.tensor_records import TensorMap
from shared.core.tensors import digest
from shared.federation.messages import Task
from shared.federation.visits.trainer import trainer_for
from shared.training import models
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import four, ran, resolved, tried
from tests.shared.algorithms.plain_lafl import Plain

ROOMS = (2, 1)
FEDAVG = {"p": 0, "normalise": "fixed"}
EXPAND = {"name": "randaugment", "magnitude": 3, "when": "expand"}
FEW = {"name": "digits", "n_train": 60, "n_test": 30}


def spec_of(params: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Returns a spec of three clients of handwritten digits; without parameters FedAvg's."""
    lafl = {"name": "lafl_cpn", "params": params}
    return {
        **four(),
        "algorithm": {"name": "fedavg"} if params is None else lafl,
        "num_devices": 3,
        "num_rounds": 3,
        "batch_size": 16,
        **more,
    }


# ---- the reference


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("params", "plain", "augment"),
    [
        ({"p": 1, "eta": 10, "stats": "raw"}, {"p": 1, "eta": 10}, None),
        (
            {"p": 9, "normalise": "fixed", "clamp": False, "s": 50},
            {"p": 2, "own_statistics": False, "clamp": False, "s": 50},
            None,
        ),
        ({"p": 1, "eta": 10, "stats": "raw"}, {"p": 1, "eta": 10}, EXPAND),
    ],
)
async def test_a_run_equals_the_plain_implementation(params: Any, plain: Any, augment: Any) -> None:
    done = await ran(spec_of(params, augment=augment), agent_devices=ROOMS)
    expected = Plain(done.experiment, **plain)
    assert flat.distance(done.model, expected.run(3)) < 2e-5
    for seat, client in expected.clients.items():
        assert done.figures("visit")[seat] == [1, 2, 3]
        assert done.figures("passes")[seat] == [0, *client.passes]
        assert client.passes[0] >= 10
        mean = sum(float(w.sum()) for w in client.weights.values()) / sum(w.numel() for w in client.weights.values())
        assert done.figures("weights_mean")[seat][-1] == pytest.approx(mean, abs=1e-5)
        assert abs(mean - 1) > 2e-5
        assert done.figures("relative_shift")[seat] == pytest.approx(client.shifts, rel=1e-2, abs=1e-6)
        assert min(client.shifts) > 1e-4
    assert done.rounds[0].figures == {}
    home = {seat.number: str(seat.home_edge) for seat in done.experiment.population.seats}
    for detail in done.rounds[1:]:
        for edge, figures in detail.figures.items():
            shifts = [row.figures["relative_shift"] for row in detail.seats if home[row.seat] == edge]
            assert figures["relative_shift"] == pytest.approx(sum(shifts) / len(shifts), rel=1e-12)
        assert detail.figures.keys() == set(home.values())


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize(("augment", "versions"), [(None, 1), (EXPAND, 2)])
async def test_passes_that_learn_w_cost_simulated_time_like_training(augment: Any, versions: int) -> None:
    """A set expanded by copies has twice as many samples in each pass, and its client the same weight."""
    done = await ran(spec_of({"p": 1}, augment=augment), agent_devices=ROOMS)
    rows = [row for detail in done.rounds for row in detail.seats]
    assert [row.n_samples for row in rows] == [80] * 9
    drawn = {row.figures["weights_n_samples"] / row.figures["passes"] for row in rows if row.figures["passes"]}
    assert drawn == {64 * versions}
    passed = [row.n_samples * versions + row.figures["weights_n_samples"] for row in rows]
    assert max(passed) >= 9 * min(passed)  # a second visit: ten passes over four fifths, and the training
    a_sample = rows[0].compute_s / passed[0]
    assert [row.compute_s for row in rows] == pytest.approx([n * a_sample for n in passed])


def test_gradient_of_w_equals_autograds_through_the_mix() -> None:
    """Equation 8's gradient by the chain rule, on a network of two layers, in float64."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
    names = [name for name, _ in net.named_parameters()]

    def draw() -> TensorMap:
        return {n: torch.randn(p.shape, generator=generator, dtype=torch.float64) for n, p in net.named_parameters()}

    own, received, weights = draw(), draw(), {n: torch.rand_like(t) for n, t in draw().items()}
    x = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (7,), generator=generator)
    mixing = Mixing(own, received, dict(weights), eta=0.5, clamp=False)
    parameters = [tensor.clone().requires_grad_(True) for tensor in mixing.mixed().values()]
    loss = functional.cross_entropy(functional_call(net, dict(zip(names, parameters, strict=True)), (x,)), y)
    gradients = list(torch.autograd.grad(loss, parameters))
    with torch.no_grad():
        mixing.learn(parameters, gradients)

    free = {name: tensor.clone().requires_grad_(True) for name, tensor in weights.items()}
    init = {name: own[name] + (received[name] - own[name]) * free[name] for name in names}
    slopes = torch.autograd.grad(functional.cross_entropy(functional_call(net, init, (x,)), y), list(free.values()))
    for name, slope, parameter in zip(names, slopes, parameters, strict=True):
        assert torch.allclose(mixing.weights[name], weights[name] - 0.5 * slope, atol=1e-12)
        assert torch.equal(parameter, own[name] + (received[name] - own[name]) * mixing.weights[name])
    assert all(slope.abs().max() > 1e-3 for slope in slopes)


@pytest.mark.parametrize("clamp", [True, False])
def test_w_stays_between_the_two_models_only_if_it_is_clamped(clamp: bool) -> None:
    own, received = {"w": torch.zeros(4)}, {"w": torch.ones(4)}
    mixing = Mixing(own, received, {"w": torch.ones(4)}, eta=1.0, clamp=clamp)
    parameters = [torch.ones(4)]
    mixing.learn(parameters, [torch.tensor([-3.0, 0.0, 0.25, 3.0])])
    expected = [1.0, 1.0, 0.75, 0.0] if clamp else [4.0, 1.0, 0.75, -2.0]
    assert mixing.weights["w"].tolist() == expected
    assert parameters[0].tolist() == expected


def test_the_shift_of_a_mix_is_relative_to_the_distance_between_the_models() -> None:
    """A mean of W near 1 says little: here W is 1 but for the one element in which the models differ."""
    own, received = {"w": torch.zeros(1000)}, {"w": torch.zeros(1000).index_fill(0, torch.tensor(3), 2.0)}
    weights = torch.ones(1000).index_fill(0, torch.tensor(3), 0.25)
    assert Mixing(own, received, {"w": weights}, eta=1.0, clamp=True).relative_shift() == 0.75
    assert Mixing(own, own, {"w": weights}, eta=1.0, clamp=True).relative_shift() == 0
    assert Mixing(own, received, {"w": torch.ones(1000)}, eta=1.0, clamp=True).relative_shift() == 0


def test_w_stops_changing_when_ten_losses_hardly_differ() -> None:
    assert not converged([1.0] * 9)
    assert converged([1.0] * 10)
    assert converged([9.0, *[1.0] * 10])
    assert not converged([1.0, 2.0] * 5)


@pytest.mark.parametrize(("p", "mixed"), [(1, {"head.weight", "head.bias"}), (2, None), (7, None), (0, set())])
def test_top_layers_are_mixed_and_all_else_is_the_global_model(p: int, mixed: set[str] | None) -> None:
    spec = spec_of({"p": p, "normalise": "fixed"}, model="conv_bn")
    experiment = resolved(**spec)
    seat = experiment.seat(0)
    ctx = experiment.ctx(phase="train", round_no=2, n_clients=3, edge=0).at(seat=0)
    other = models.read_state(models.build("conv_bn", experiment.data.sample, 10, seed=99))
    received = {name: tensor + 1 if "running" in name else tensor for name, tensor in experiment.initial.items()}
    trainer = trainer_for(experiment, Task(batch_size=16), seat.train, seat.test)
    start, weights, figures = _mixed_start(ctx, Own(previous=other, participations=1), received, trainer, None)
    parameters = {name for name in received if name not in experiment.buffer_names}
    expected = parameters if mixed is None else mixed
    assert weights.keys() == expected
    assert {name for name in start if not torch.equal(start[name], received[name])} <= expected
    assert all(torch.equal(start[name], received[name]) for name in received.keys() - expected)
    for name in expected:
        low, high = torch.minimum(other[name], received[name]), torch.maximum(other[name], received[name])
        assert ((start[name] >= low - 1e-6) & (start[name] <= high + 1e-6)).all()
    if expected:
        n = round(0.8 * len(seat.train))
        assert figures["weights_n_samples"] == figures["passes"] * n
        assert 10 <= figures["passes"] <= 50
        assert flat.distance({"w": start["head.weight"]}, {"w": received["head.weight"]}) > 1e-3


def test_w_is_learned_on_augmented_images_as_they_are_trained_on() -> None:
    experiment = resolved(**spec_of({"s": 100}, augment="randaugment", data=FEW))
    seat = experiment.seat(0)
    ctx = experiment.ctx(phase="train", round_no=3, n_clients=3, edge=0).at(seat=0)
    trainer = trainer_for(experiment, Task(batch_size=16), seat.train, seat.test)
    seen: list[torch.Tensor] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        return x

    _, _, figures = _mixed_start(
        ctx, Own(previous=experiment.initial, participations=2), experiment.initial, trainer, look
    )
    assert figures["passes"] == 1
    drawn = _drawn(ctx, trainer)
    augmented, bare = [
        torch.cat([x for x, _ in trainer.batches(ctx, samples=drawn, purpose="weights 0", epochs=1, augment=augment)])
        for augment in (True, False)
    ]
    assert torch.equal(torch.cat(seen), augmented)
    assert not torch.equal(augmented, bare)


# ---- the reduction


def test_w_that_stays_at_one_is_fedavg_but_for_rounding() -> None:
    lafl, fedavg = [tried(**spec_of(params)).model for params in ({"p": 9, "eta": 0, "normalise": "fixed"}, None)]
    assert flat.distance(lafl, fedavg) < 1e-6


def test_augmentation_mix_and_statistics_switch_independently() -> None:
    digests = set()
    more = {"num_devices": 2, "num_edges": 1, "num_rounds": 2, "data": FEW}
    for augment, p, normalise in (
        (None, 0, "fixed"),
        ("randaugment", 0, "fixed"),
        (None, 1, "fixed"),
        (None, 0, "own"),
    ):
        done = tried(**spec_of({"p": p, "normalise": normalise, "max_passes": 2}, augment=augment, **more))
        digests.add(digest(done.model))
        assert (len(done.state.known) == 2) == (normalise == "own")
    assert len(digests) == 4


# ---- the digits network


def test_a_remaining_single_image_joins_the_previous_batch() -> None:
    experiment = resolved(**spec_of({}, model="cnn_digits"))
    seat, ctx = experiment.seat(0), experiment.ctx(phase="train", round_no=1, n_clients=3, edge=0).at(seat=0)
    trainer = trainer_for(experiment, Task(batch_size=16), seat.train[:33], seat.test)
    trained = trainer.fit(ctx, experiment.initial, epochs=1).trained
    assert (trained.n_samples, trained.n_steps) == (33, 2)
    with pytest.raises(BadInput, match="batch_size 1: the batch-norm of cnn_digits trains on 2 samples or more"):
        resolved(**spec_of({}, model="cnn_digits", batch_size=1))


# ---- state of a device


def test_parameters_default_to_those_of_the_paper() -> None:
    assert (Params().p, Params().eta, Params().s) == (5, 1.0, 80.0)
