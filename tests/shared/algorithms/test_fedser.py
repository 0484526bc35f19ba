"""FedSER: Zhang et al., algorithms 1 and 2, the loss of section 2.3."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.algorithms.fedser import Params, mean_operations, structure_enhanced
from shared.core.errors import BadInput
from shared.core.tensor_records import TensorMap
from shared.core.tensors import digest
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import Broadcast
from shared.federation.messages import Task
from shared.federation.visits.trainer import objective_for, trainer_for
from shared.spec.experiment import ExperimentSpec
from shared.training.flops import Operations, model_and_batch, training_flops
from shared.training.loop import Objective
from shared.training.models import Classifier, Design, build, read_state
from shared.training.subnetworks.width_slices import Statistics, narrowed
from tests.narrow_copy import pixels_read
from tests.shared.algorithms import flat, plain_fedser
from tests.shared.algorithms.layouts import four, ran, resolved, tried


def spec_of(algorithm: Any, **more: Any) -> dict[str, Any]:
    return {**four(), "algorithm": algorithm, **more}


def ser(**params: Any) -> dict[str, Any]:
    return {"name": "fedser", "params": params}


def objective_of(seat: int = 0, **params: Any) -> Objective:
    """Returns the loss L for a seat in its first visit."""
    experiment = resolved(**spec_of(ser(**params)))
    ctx = experiment.ctx(phase="train", round_no=1, n_clients=4, edge=0).at(seat=seat)
    found = objective_for(experiment, ctx, None)
    assert found is not None
    return found


def batch(model: str, side: int, n: int = 6) -> tuple[Classifier, Tensor, Tensor]:
    made = build(model, (3, side, side), 5, seed=3).train()
    generator = torch.Generator().manual_seed(4)
    return made, torch.randn(n, 3, side, side, generator=generator), torch.arange(n) % 5


POOLING = [("mobilenet_v1", "batch"), ("resnet18", "running")]
"""Networks that pool, with both ways of batch-norm."""

# ---- reference


@pytest.mark.parametrize("align_corners", [False, True])
def test_a_round_is_softmax_regression_on_the_loss_by_hand(align_corners: bool) -> None:
    """The reference uses numpy only: cross-entropy, KL, bilinear images; one-layer sub-networks equal the network."""
    more = {"model": "linear", "batch_size": 1000, "local_epochs": 4, "num_rounds": 1}
    done = tried(**spec_of(ser(mu=3.0, align_corners=align_corners), **more))
    assert flat.distance(done.model, by_hand(done.experiment)) < 1e-6
    other = resolved(**spec_of(ser(mu=3.0, align_corners=not align_corners), **more))
    assert flat.distance(done.model, by_hand(other)) > 1e-4
    assert flat.distance(done.model, by_hand(resolved(**spec_of(ser(n=0), **more)))) > 1e-4


def by_hand(experiment: Experiment) -> TensorMap:
    """Returns the mean by samples of the models that the seats train."""
    sums: TensorMap = {"head.weight": torch.zeros(10, 64).double(), "head.bias": torch.zeros(10).double()}
    for seat in experiment.population.seats:
        for name, found in zip(sums, plain_fedser.softmax_regression(experiment, seat.number), strict=True):
            sums[name] += len(seat.train) / 240 * torch.from_numpy(found)
    return sums


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n": 1, "alpha": 0.3, "mu": 0.5},
        {"n": 3, "transforms": []},
        {"n": 3, "widths": "sandwich", "alpha": 0.5, "align_corners": True},
    ],
)
def test_local_training_is_that_of_smaller_networks_which_share_weights(params: Any) -> None:
    model = {"name": "conv_bn", "projection": 9}
    more = {"batch_size": 25, "momentum": 0.9, "weight_decay": 1e-3, "local_epochs": 1, "lr": 0.02}
    experiment = resolved(**spec_of(ser(**params), model=model, **more))
    seen = local(experiment, 1)
    if params.get("transforms") == []:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain_fedser, "_seen", lambda x, _, **how: x)
            wanted = plain_fedser.local(experiment, 1)
    else:
        wanted = plain_fedser.local(experiment, 1)
    assert seen.keys() == wanted.keys()
    assert flat.distance(seen, wanted) < 2e-5
    bare = local(resolved(**spec_of("fedavg", model=model, **more)), 1)
    assert flat.distance(seen, bare) > 1e-4


@pytest.mark.matrix
@pytest.mark.parametrize(("model", "bn"), POOLING)
def test_a_step_of_networks_that_pool_is_that_of_smaller_networks_on_smaller_images(model: str, bn: str) -> None:
    """Gradients are compared in float64: over few pixels, batch-norm amplifies float32's rounding."""
    experiment = resolved(**spec_of(ser(bn=bn), model=model))
    made, x, y = batch(model, 16, n=3)
    made, x = made.double(), x.double()
    widths, views = (plain_fedser.stream(experiment, 0, name) for name in ("widths", "views"))
    pixels = pixels_read(made.eval(), x)
    wanted = gradients(plain_fedser.objective(experiment, pixels, widths, views, bn), copy.deepcopy(made).train(), x, y)
    found = gradients(objective_of(bn=bn), made.train(), x, y)
    scale = max(float(tensor.abs().max()) for tensor in wanted.values())
    assert flat.distance(found, wanted) < 1e-9 * scale


def local(experiment: Experiment, number: int) -> TensorMap:
    """Returns the model that a seat's first visit trains."""
    seat, hooks = experiment.population.seats[number], experiment.algorithm.device
    ctx = experiment.ctx(phase="train", round_no=1, n_clients=4, edge=seat.home_edge).at(seat=number)
    trainer = trainer_for(
        experiment,
        Task(epochs=experiment.spec.local_epochs, batch_size=experiment.spec.batch_size),
        seat.train,
        seat.test,
    )
    found = hooks.local_update(ctx, hooks.init(ctx), Broadcast(model=experiment.initial), trainer).model
    assert found is not None
    return found


# ---- reduction


def test_without_sub_networks_a_sample_costs_what_fedavgs_does() -> None:
    plain, weightless, without = [resolved(**spec_of(one)).flops for one in ("fedavg", ser(mu=0), ser(n=0))]
    assert plain == weightless == without


def test_crop_and_flip_are_for_every_method() -> None:
    """The full network of FedSER learns from cropped images, too: without sub-networks it is FedAvg with the same."""
    bare, moved = [
        [digest(tried(**spec_of(one, **more)).model) for one in ("fedavg", ser(n=0), ser(), "moon")]
        for more in ({"num_rounds": 1}, {"num_rounds": 1, "augment": "crop_flip"})
    ]
    assert all(one != other for one, other in zip(bare, moved, strict=True))
    assert moved[0] == moved[1] != moved[2]


@pytest.mark.matrix
@pytest.mark.parametrize("model", ["cnn_6_16", "resnet18"])
def test_full_width_without_transform_adds_nothing(model: str) -> None:
    """KL and its gradient are then 0."""
    found = gradients(objective_of(alpha=1.0, transforms=[]), *batch(model, 16))
    plain = gradients(cross_entropy, *batch(model, 16))
    assert found["loss"].item() == pytest.approx(plain["loss"].item(), abs=1e-6)
    scale = max(float(tensor.abs().max()) for tensor in plain.values())
    assert flat.distance(found, plain) < 1e-6 * scale


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(x)
    return functional.cross_entropy(logits, y), logits


def gradients(objective: Objective, model: Classifier, x: Tensor, y: Tensor) -> TensorMap:
    """Returns the loss and its gradients by name."""
    value, _ = objective(model, x, y)
    if value.requires_grad:
        value.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == dict(model.named_parameters()).keys()
    return {"loss": value.detach(), **found}


# ---- effects of a step


@pytest.mark.matrix
@pytest.mark.parametrize(("model", "bn"), POOLING)
def test_running_statistics_after_a_step_are_those_of_a_plain_step(model: str, bn: str) -> None:
    ours, x, y = batch(model, 16)
    theirs, _, _ = batch(model, 16)
    before = read_state(ours)
    objective_of(bn=bn)(ours, x, y)
    cross_entropy(theirs, x, y)
    assert flat.same_bits(read_state(ours), read_state(theirs))
    assert not flat.same_bits(read_state(ours), before)


def test_kl_reaches_kept_channels_only_and_nothing_flows_through_the_full_network() -> None:
    """Outside the kept channels the gradient is that of the cross-entropy."""
    with_kl = gradients(objective_of(seat=1, alpha=0.5, n=1), *batch("cnn_6_16", 16))
    without = gradients(cross_entropy, *batch("cnn_6_16", 16))
    draw = plain_fedser.stream(resolved(**spec_of(ser())), 1, "widths")
    width = 0.5 + 0.5 * torch.rand((), generator=draw, dtype=torch.float64).item()
    for name, channels in (("features.0.weight", 6), ("features.3.weight", 16), ("features.9.weight", 84)):
        n = int(np.ceil(width * channels))
        assert n < channels
        difference = with_kl[name] - without[name]
        assert difference[n:].abs().max() < 1e-7
        assert difference[:n].abs().max() > 1e-5


@pytest.mark.whole
def test_images_change_size_for_pooling_networks_and_only_content_for_flattening_ones() -> None:
    for name, sides in (("mobilenet_v1", {10, 12, 14, 16}), ("cnn_6_16", {16})):
        model, x, y = batch(name, 16, n=2)
        seen: list[Tensor] = []

        def noted(_: nn.Module, inputs: tuple[Tensor], seen: list[Tensor] = seen) -> None:
            if torch.is_grad_enabled():  # not while a size is tried
                seen.append(inputs[0])

        model.register_forward_pre_hook(noted)
        objective_of(n=20)(model, x, y)
        assert len(seen) == 21
        assert {images.shape[-1] for images in seen} == sides
        assert len({float(images.std()) for images in seen}) == 4


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("bn", ["batch", "running"])
def test_a_view_on_which_batch_norm_cannot_train_is_scaled_back(bn: str) -> None:
    """An image of 20 pixels has one pixel per channel at the end of MobileNet; one of 15 pixels would have none."""
    model, x, y = batch("mobilenet_v1", 20, n=1)
    value, _ = objective_of(n=20, bn=bn)(model, x, y)
    assert torch.isfinite(value)


@pytest.mark.parametrize("widths", ["uniform", "sandwich"])
def test_widths_are_uniform_between_alpha_and_one_and_with_sandwich_one_is_alpha(widths: str) -> None:
    drawn: list[float] = []
    model, x, y = batch("cnn_6_16", 8, n=2)

    def noted(model: nn.Module, width: float, statistics: Statistics) -> AbstractContextManager[None]:
        drawn.append(width)
        return narrowed(model, width, statistics)

    objective = objective_of(n=60, alpha=0.6, transforms=[], widths=widths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shared.algorithms.fedser.narrowed", noted)
        for _ in range(2):
            objective(model, x, y)
    assert [width == 0.6 for width in drawn] == ([widths == "sandwich"] + [False] * 59) * 2
    counts = np.histogram(drawn, bins=4, range=(0.6, 1.0))[0]
    assert counts.sum() == len(drawn) == 120
    assert counts.min() > 20


# ---- costs


def test_each_sub_network_of_softmax_regression_costs_as_much_as_the_network() -> None:
    """Forward 2 x 64 x 10 operations, backward to the weights as many; its input is an image, to which none go back."""
    experiment = resolved(**spec_of(ser(n=3), model="linear"))
    assert experiment.flops == 4 * 2 * 2 * 64 * 10


@pytest.mark.parametrize(
    ("model", "alpha", "n"),
    [("mlp", 0.2, 100), ("cnn_6_16", 0.8, 100), pytest.param("resnet18", 0.5, 30, marks=pytest.mark.slow)],
)
def test_operations_are_the_mean_over_the_widths_drawn(model: str, alpha: float, n: int) -> None:
    """The mean is compared with steps on shapes only, counted one by one."""
    made, x, y = model_and_batch(Design(model, (3, 16, 16), 5))
    ctx = Context(
        spec=ExperimentSpec(), params=Params(n=n, alpha=alpha), phase="train", round_no=1, n_clients=1, seat=0, edge=0
    )
    objective = structure_enhanced(ctx)
    assert objective is not None
    with Operations() as counter:
        objective(made, x, y)
    sandwich = [mean_operations(Params(n=k, alpha=alpha, widths="sandwich"), made, x, y) for k in (0, 1, n)]
    uniform = [mean_operations(Params(n=k, alpha=alpha), made, x, y) for k in (0, 1, n)]
    assert uniform[2] == pytest.approx(counter.n, rel=0.1)
    assert sandwich[0] == uniform[0]
    assert sandwich[1] < uniform[1]
    assert sandwich[2] - sandwich[1] == pytest.approx(uniform[2] - uniform[1])
    plain = mean_operations(Params(n=0), made, x, y)
    assert plain == len(y) * training_flops(Design(model, (3, 16, 16), 5))
    assert mean_operations(Params(n=100, alpha=1.0, transforms=("flip",)), made, x, y) == 101 * plain


@pytest.mark.whole
async def test_simulated_seconds_count_what_sub_networks_cost() -> None:
    """Devices of another algorithm minimise it too."""
    prox = {"name": "fedprox", "params": {"mu": 0}, "local": ser()}
    plain, local = [
        await ran(spec_of(one, model="linear", num_rounds=1), agent_devices=(4,)) for one in ("fedavg", prox)
    ]
    once, thrice = [[row.compute_s for row in done.rounds[0].seats] for done in (plain, local)]
    assert thrice == pytest.approx([3 * compute_s for compute_s in once])
    assert local.experiment.flops == resolved(**spec_of(ser(), model="linear")).flops


# ---- with other algorithms


@pytest.mark.whole
def test_devices_of_other_algorithms_minimise_it_too() -> None:
    """FedProx with mu 0, and BOFL with margins that admit all, are FedAvg; with FedSER's objective they are FedSER."""
    wide = {"phi": 1e6, "omega": 1e6, "weighting": "samples", "optimiser": "sgd"}
    local = ser(n=1)
    algorithms = (
        local,
        {"name": "fedprox", "params": {"mu": 0}, "local": local},
        {"name": "fedprox", "params": {"mu": 1}, "local": local},
        {"name": "bofl", "params": wide, "local": local},
        {"name": "bofl", "params": wide},
    )
    alone, prox, pull, bofl, plain = [tried(**spec_of(algorithm, num_rounds=1)).model for algorithm in algorithms]
    assert flat.same_bits(prox, alone)
    assert flat.distance(bofl, alone) < 1e-6
    assert flat.distance(pull, alone) > 1e-4
    assert flat.distance(plain, alone) > 1e-4


@pytest.mark.parametrize(
    ("name", "params"), [("moon", {"mu": 0}), ("fedmix", {"lam": 0}), ("scaffold", {"option": "II"})]
)
def test_objective_may_be_added_to_hooks_without_one(name: str, params: dict[str, Any]) -> None:
    experiment = resolved(**spec_of({"name": name, "params": params, "local": "fedser"}))
    alone = resolved(**spec_of(ser()))
    assert experiment.flops == alone.flops > resolved(**spec_of("fedavg")).flops


def test_second_objective_is_refused_for_hooks_with_one() -> None:
    experiment = resolved(**spec_of({"name": "bofl", "local": "fedser"}))
    ctx: Context = experiment.ctx(phase="train", round_no=1, n_clients=4, edge=0).at(seat=0)
    assert objective_for(experiment, ctx, None) is not None
    with pytest.raises(BadInput, match="bofl has a local objective of its own"):
        objective_for(experiment, ctx, cross_entropy)
