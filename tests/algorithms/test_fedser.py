"""FedSER: Zhang et al., algorithms 1 and 2, the loss of section 2.3."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.algorithms._hooks import Broadcast
from shared.context import Ctx
from shared.errors import BadInput
from shared.lab import Lab
from shared.messages import Work
from shared.records import TensorMap
from shared.spec import parse_spec
from shared.training.loop import Objective
from shared.training.models import Classifier, build, read_state
from shared.training.slices import Statistics, narrowed
from tests.algorithms import flat, plain_fedser
from tests.algorithms.ways import resolved, run


def spec_of(algorithm: Any, **more: Any) -> dict[str, Any]:
    spec = {
        "algorithm": algorithm,
        "data": {"name": "digits", "n_train": 240, "n_test": 60},
        "num_devices": 4,
        "num_edges": 2,
        "num_rounds": 2,
        "lr": 0.1,
    }
    return {**spec, **more}


def ser(**params: Any) -> dict[str, Any]:
    return {"name": "fedser", "params": params}


def objective_of(folder: Path, seat: int = 0, **params: Any) -> Objective:
    """L for a seat in its first visit."""
    lab = resolved(folder, **spec_of(ser(**params)))
    ctx = lab.ctx(phase="train", round_no=1, n_clients=4, edge=0).at(seat=seat)
    found = lab.objective(ctx, None)
    assert found is not None
    return found


def batch(model: str, side: int, n: int = 6) -> tuple[Classifier, Tensor, Tensor]:
    made = build(model, (3, side, side), 5, seed=3).train()
    generator = torch.Generator().manual_seed(4)
    return made, torch.randn(n, 3, side, side, generator=generator), torch.arange(n) % 5


# ---- oracle


async def test_a_round_is_softmax_regression_on_the_loss_by_hand(tmp_path: Path) -> None:
    """Numpy alone: cross-entropy, KL, bilinear images; sub-networks of one layer are the network itself."""
    spec = spec_of(ser(mu=3.0), model="linear", batch_size=1000, local_epochs=4, num_rounds=1)
    done = await run(tmp_path, spec, rooms=(3, 1))
    plain = await run(tmp_path, {**spec, "algorithm": "fedavg"}, rooms=(3, 1))
    sums: TensorMap = {"head.weight": torch.zeros(10, 64).double(), "head.bias": torch.zeros(10).double()}
    for seat in done.lab.members.seats:
        for name, found in zip(sums, plain_fedser.softmax_regression(done.lab, seat.number), strict=True):
            sums[name] += len(seat.train) / 240 * torch.from_numpy(found)
    assert flat.distance(done.model, sums) < 1e-6
    assert flat.distance(done.model, plain.model) > 1e-4


@pytest.mark.parametrize("params", [{}, {"n": 1, "alpha": 0.3, "mu": 0.5}, {"n": 3, "transforms": []}])
def test_local_training_is_that_of_smaller_networks_which_share_weights(params: Any, tmp_path: Path) -> None:
    model = {"name": "conv_bn", "projection": 9}
    more = {"batch_size": 25, "momentum": 0.9, "weight_decay": 1e-3, "local_epochs": 2, "lr": 0.02}
    lab = resolved(tmp_path, **spec_of(ser(**params), model=model, **more))
    seen = local(lab, 1)
    if params.get("transforms") == []:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain_fedser, "_seen", lambda x, _: x)
            wanted = plain_fedser.local(lab, 1)
    else:
        wanted = plain_fedser.local(lab, 1)
    assert seen.keys() == wanted.keys()
    assert flat.distance(seen, wanted) < 2e-5
    bare = local(resolved(tmp_path, **spec_of("fedavg", model=model, **more)), 1)
    assert flat.distance(seen, bare) > 1e-3


def local(lab: Lab, number: int) -> TensorMap:
    """What a seat's first visit trains."""
    seat, hooks = lab.members.seats[number], lab.algorithm.device
    ctx = lab.ctx(phase="train", round_no=1, n_clients=4, edge=seat.home).at(seat=number)
    bench = lab.bench(Work(epochs=lab.spec.local_epochs, batch_size=lab.spec.batch_size), seat.train, seat.test)
    found = hooks.local_update(ctx, hooks.init(ctx), Broadcast(model=lab.initial), bench).model
    assert found is not None
    return found


# ---- reduction


@pytest.mark.parametrize("null", [{"mu": 0}, {"n": 0}])
async def test_null_parameters_are_fedavg_bit_for_bit(null: dict[str, Any], tmp_path: Path) -> None:
    specs = [spec_of(algorithm, model="conv_bn", batch_size=25) for algorithm in ("fedavg", ser(**null), ser())]
    plain, nothing, other = [await run(tmp_path, spec, rooms=(2, 2)) for spec in specs]
    assert nothing.info.model_sha256 == plain.info.model_sha256
    assert other.info.model_sha256 != plain.info.model_sha256


@pytest.mark.parametrize("model", ["cnn_6_16", "resnet18"])
def test_whole_width_and_no_transform_add_nothing(model: str, tmp_path: Path) -> None:
    """KL and its gradient are 0."""
    found = gradients(objective_of(tmp_path, alpha=1.0, transforms=[]), *batch(model, 16))
    plain = gradients(cross_entropy, *batch(model, 16))
    assert found["loss"].item() == pytest.approx(plain["loss"].item(), abs=1e-6)
    scale = max(float(tensor.abs().max()) for tensor in plain.values())
    assert flat.distance(found, plain) < 1e-6 * scale


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(x)
    return functional.cross_entropy(logits, y), logits


def gradients(objective: Objective, model: Classifier, x: Tensor, y: Tensor) -> TensorMap:
    """The loss, and its gradients by name."""
    value, _ = objective(model, x, y)
    if value.requires_grad:
        value.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == dict(model.named_parameters()).keys()
    return {"loss": value.detach(), **found}


# ---- what a step touches


@pytest.mark.parametrize("bn", ["batch", "running"])
@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v1"])
def test_running_statistics_after_a_step_are_those_of_a_plain_step(model: str, bn: str, tmp_path: Path) -> None:
    ours, x, y = batch(model, 16)
    theirs, _, _ = batch(model, 16)
    before = read_state(ours)
    objective_of(tmp_path, bn=bn)(ours, x, y)
    cross_entropy(theirs, x, y)
    assert flat.same_bits(read_state(ours), read_state(theirs))
    assert not flat.same_bits(read_state(ours), before)


def test_kl_reaches_kept_channels_only_and_nothing_flows_through_the_full_network(tmp_path: Path) -> None:
    """Beyond the kept channels the gradient is the cross-entropy's alone."""
    with_kl = gradients(objective_of(tmp_path, seat=1, alpha=0.5, n=1), *batch("cnn_6_16", 16))
    without = gradients(cross_entropy, *batch("cnn_6_16", 16))
    draw = plain_fedser.stream(resolved(tmp_path, **spec_of(ser())), 1, "widths")
    width = 0.5 + 0.5 * torch.rand((), generator=draw, dtype=torch.float64).item()
    for name, channels in (("features.0.weight", 6), ("features.3.weight", 16), ("features.9.weight", 84)):
        n = int(np.ceil(width * channels))
        assert n < channels
        difference = with_kl[name] - without[name]
        assert difference[n:].abs().max() < 1e-7
        assert difference[:n].abs().max() > 1e-5


def test_of_a_network_that_pools_the_images_change_size_and_of_one_that_flattens_only_their_content(
    tmp_path: Path,
) -> None:
    for name, sides in (("mobilenet_v1", {10, 12, 14, 16}), ("cnn_6_16", {16})):
        model, x, y = batch(name, 16, n=2)
        seen: list[Tensor] = []

        def noted(_: nn.Module, inputs: tuple[Tensor], seen: list[Tensor] = seen) -> None:
            if not inputs[0].is_meta:
                seen.append(inputs[0])

        model.register_forward_pre_hook(noted)
        objective_of(tmp_path, n=20)(model, x, y)
        assert len(seen) == 21
        assert {images.shape[-1] for images in seen} == sides
        assert len({float(images.std()) for images in seen}) == 4


def test_widths_are_uniform_between_alpha_and_one(tmp_path: Path) -> None:
    drawn: list[float] = []
    model, x, y = batch("cnn_6_16", 8, n=2)

    def noted(model: nn.Module, width: float, statistics: Statistics) -> AbstractContextManager[None]:
        drawn.append(width)
        return narrowed(model, width, statistics)

    objective = objective_of(tmp_path, n=100, alpha=0.6, transforms=[])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shared.algorithms.fedser.narrowed", noted)
        for _ in range(3):
            objective(model, x, y)
    counts = np.histogram(drawn, bins=4, range=(0.6, 1.0))[0]
    assert counts.sum() == len(drawn) == 300
    assert counts.min() > 50


# ---- with other algorithms


async def test_devices_of_other_algorithms_minimise_it_too(tmp_path: Path) -> None:
    """FedProx at its null value and BOFL with margins so wide that nobody is refused are FedAvg: so here FedSER."""
    wide = {"phi": 1e6, "omega": 1e6, "weighting": "samples", "optimiser": "sgd"}
    local = ser(n=1)
    alone = await run(tmp_path, spec_of(local), rooms=(4,))
    prox, pull, bofl, plain = [
        await run(tmp_path, spec_of(algorithm), rooms=(4,))
        for algorithm in (
            {"name": "fedprox", "params": {"mu": 0}, "local": local},
            {"name": "fedprox", "params": {"mu": 1}, "local": local},
            {"name": "bofl", "params": wide, "local": local},
            {"name": "bofl", "params": wide},
        )
    ]
    assert prox.info.model_sha256 == alone.info.model_sha256
    assert flat.distance(bofl.model, alone.model) < 1e-6
    assert flat.distance(pull.model, alone.model) > 1e-4
    assert flat.distance(plain.model, alone.model) > 1e-4


@pytest.mark.parametrize(
    ("algorithm", "field", "says"),
    [
        ({"name": "fedser", "local": "fedser"}, "algorithm.local", "fedser has a local objective of its own"),
        ({"name": "bofl", "local": "fedprox"}, "algorithm.local", "fedprox has no local objective"),
        ({"name": "bofl", "local": "fedsir"}, "algorithm.local.name", "unknown algorithm 'fedsir'"),
        ({"name": "bofl", "local": ser(alpha=0)}, "algorithm.local.params.alpha", "greater than 0"),
        ({"name": "bofl", "local": ser(nu=0)}, "algorithm.local.params.nu", "parameters of fedser: mu, n, alpha"),
        (ser(alpha=1.5), "algorithm.params.alpha", "less than or equal to 1"),
        (ser(transforms=["blur"]), "algorithm.params.transforms.0", "'resolution', 'crop', 'rotation' or 'flip'"),
        (ser(bn="frozen"), "algorithm.params.bn", "'batch' or 'running'"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_field(algorithm: Any, field: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_spec({"algorithm": algorithm})
    assert refused.value.field == field
    assert says in refused.value.detail


def test_hooks_that_hand_an_objective_leave_no_place_for_another(tmp_path: Path) -> None:
    lab = resolved(tmp_path, **spec_of({"name": "bofl", "local": "fedser"}))
    ctx: Ctx = lab.ctx(phase="train", round_no=1, n_clients=4, edge=0).at(seat=0)
    assert lab.objective(ctx, None) is not None
    with pytest.raises(BadInput, match="bofl has a local objective of its own"):
        lab.objective(ctx, cross_entropy)
