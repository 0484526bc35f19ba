"""A sub-network computes the same as the network with pruned units masked; its tensors return to their positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from shared.core.errors import BadInput
from shared.training.flops import training_flops
from shared.training.models import Classifier, Design, Shape, build, read_state
from shared.training.subnetworks.unit_graph import units_of
from shared.training.subnetworks.units import Units, resized

SHAPE = (3, 8, 8)
NAMES = ["mlp", "cnn_6_16", "cnn_digits", "resnet18", "resnet50", "mobilenet_v1", "vgg_mnist", "mobilenet_femnist"]
"""Each kind of network once: plain with and without batch-norm, residuals, separable convolutions."""
LARGE = ("resnet50", "mobilenet_v1", "vgg_mnist")


def made(name: str, projection: int | None = None) -> tuple[Classifier, Units]:
    """Returns a model whose batch-norms have other values than the initial ones, and its units."""
    model, units = first_made(name, projection)
    return deepcopy(model), units


@cache
def first_made(name: str, projection: int | None) -> tuple[Classifier, Units]:
    model = build(name, SHAPE, 7, seed=1, projection=projection)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    assert tensor is not None
                    tensor.add_(0.3 * torch.rand(tensor.shape, generator=generator))
    return model, units_of(model, SHAPE)


def some(units: Units, share: float, seed: int = 3) -> dict[str, Tensor]:
    """Returns randomly drawn units of each group."""
    rng = np.random.default_rng(seed)
    drawn = {group: rng.choice(n, max(round(share * n), 1), replace=False) for group, n in units.groups.items()}
    return {group: torch.from_numpy(np.sort(chosen)) for group, chosen in drawn.items()}


@contextmanager
def masked(model: nn.Module, units: Units, kept: Mapping[str, Tensor]) -> Iterator[None]:
    """Sets the outputs of units that are not kept to 0, after the batch-norm if there is one."""

    def mask(stay: Tensor, module: nn.Module, inputs: object, out: Tensor) -> Tensor:
        return out * stay.reshape(1, -1, *[1] * (out.dim() - 2))

    handles = []
    for layer in units.layers:
        if layer.group is not None:
            stay = torch.zeros(units.groups[layer.group])
            stay[kept[layer.group]] = 1
            behind = layer.scale.rpartition(".")[0] if layer.scale else layer.name
            handles.append(model.get_submodule(behind).register_forward_hook(partial(mask, stay)))
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(
    ("name", "projection"),
    [
        pytest.param(name, projection, marks=[] if first and name not in LARGE else [pytest.mark.slow])
        for number, name in enumerate(NAMES)
        for first, projection in zip((True, False), (None, 24) if number % 2 else (24, None), strict=True)
    ],
)
def test_sub_network_and_masked_network_have_equal_outputs(name: str, projection: int | None) -> None:
    model, units = made(name, projection)
    kept = some(units, 0.6)
    state = read_state(model)
    small = resized(model, units, units.cut(state, kept))
    # In 64 bits: with 32 the products of two shapes differ by a processor's order of additions.
    model.double()
    small.double()
    x = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for training in (False, True):
        model.train(training)
        small.train(training)
        with torch.no_grad(), masked(model, units, kept):
            expected = model(x)
        with torch.no_grad():
            found = small(x)
            whole = model(x)
        scale = float(expected.abs().max())
        # Rounding differs between CPUs and grows through the layers; a unit too many changes the first digits.
        assert float((found - expected).abs().max()) <= 1e-10 * max(scale, 1)
        assert float((whole - expected).abs().max()) > 1e-3 * scale
    assert sum(p.numel() for p in small.parameters()) < 0.75 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["cnn_digits", "resnet18", "mobilenet_femnist"])
def test_cut_tensors_expand_to_their_positions_as_in_plain_code(name: str) -> None:
    """Numpy's `ix_` on each tensor, positions behind a flatten written out."""
    model, units = made(name)
    state, kept = read_state(model), some(units, 0.4)
    part = units.cut(state, kept)
    back = units.spread(part, state, kept)
    ones = units.spread({key: torch.ones_like(tensor) for key, tensor in part.items()}, state, kept)
    for key, tensor in state.items():
        chosen = [list(range(n)) for n in tensor.shape]
        for axis in units.axes.get(key, ()):
            wanted = [i * axis.span + j for i in kept[axis.group].tolist() for j in range(axis.span)]
            chosen[axis.dim] = wanted
        stay = np.zeros(tuple(tensor.shape))
        stay[np.ix_(*chosen)] = 1
        assert np.array_equal(part[key].numpy(), tensor.numpy()[np.ix_(*chosen)]), key
        assert np.array_equal(ones[key].numpy(), stay), key
        assert np.array_equal(back[key].numpy(), tensor.numpy() * stay), key


def test_units_of_residuals_are_one_group_and_depthwise_convolutions_have_none_of_their_own() -> None:
    _, residual = made("resnet18")
    assert len(residual.groups) == 12  # 8 inner convolutions, and one group a stage
    found = [layer.name.removeprefix("features.") for layer in residual.makers("features.conv1")]
    assert found == ["conv1", "layer1.0.conv2", "layer1.1.conv2"]
    _, separable = made("mobilenet_femnist")
    assert list(separable.groups.values()) == [64, 128, 256, 512, 512, 1024, 1024]
    by_name = {layer.name: layer for layer in separable.layers}
    assert by_name["features.4"].kind == "depthwise"
    assert by_name["features.4"].group == "features.0"
    assert [layer.name for layer in separable.makers("features.0")] == ["features.0"]


def test_sub_network_without_pruning_is_the_network_bit_for_bit() -> None:
    model, units = made("mobilenet_femnist")
    state = read_state(model)
    whole = {group: torch.arange(n) for group, n in units.groups.items()}
    assert all(torch.equal(tensor, state[key]) for key, tensor in units.cut(state, whole).items())
    same = resized(model, units, units.cut(state, {}))
    assert all(torch.equal(tensor, state[key]) for key, tensor in read_state(same).items())
    assert {t.data_ptr() for t in same.state_dict().values()}.isdisjoint(
        t.data_ptr() for t in model.state_dict().values()
    )


def test_impossible_sizes_and_layers_whose_units_are_not_known_are_refused_by_name() -> None:
    model, units = made("cnn_6_16")
    part = units.cut(read_state(model), some(units, 0.5))
    with pytest.raises(BadInput, match=r"features.3.bias is \(63,\): no sub-network has this shape"):
        resized(model, units, {**part, "features.3.bias": torch.zeros(63)})
    model = Classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()), 784, 2)
    with pytest.raises(BadInput, match=r"not supported with GroupNorm.*features.1"):
        units_of(model, SHAPE)


@pytest.mark.parametrize("name", ["mlp", "cnn_6_16", "cnn_digits", "resnet18", "vgg_mnist"])
def test_operations_are_those_that_torch_counts(name: str) -> None:
    model, units = made(name)
    assert units.training_flops(read_state(model)) == training_flops(Design(name, SHAPE, 7))


@pytest.mark.parametrize(
    ("name", "shape", "n_classes", "total"),
    [
        ("vgg_mnist", (1, 28, 28), 10, 34_606_080),
        pytest.param("vgg_cifar10", (3, 32, 32), 10, 187_901_952, marks=pytest.mark.slow),
        ("mobilenet_femnist", (1, 28, 28), 62, 19_734_912),
        ("resnet18", SHAPE, 7, None),
        ("cnn_6_16", SHAPE, 7, None),
    ],
)
def test_multiply_adds_are_torchs_layer_by_layer(name: str, shape: Shape, n_classes: int, total: int | None) -> None:
    """One sample forward through the supernet, through half its units, and through a ragged share of each group.

    The totals of the supernets are those of ES-AFL, table 1, in which a multiply-add is one operation.
    """
    model = build(name, shape, n_classes, seed=1)
    units, state = units_of(model, shape), read_state(model)
    rng = np.random.default_rng(5)
    ragged = {group: torch.arange(int(rng.integers(1, n))) for group, n in units.groups.items()}
    totals = []
    for kept in ({}, some(units, 0.5), ragged):
        part = units.cut(state, kept)
        small = resized(model, units, part).eval()
        with torch.no_grad(), FlopCounterMode(display=False, depth=99) as counter:
            small(torch.zeros(1, *shape))
        counts = {key.partition(".")[2]: sum(kinds.values()) for key, kinds in counter.get_flop_counts().items()}
        found = units.multiply_adds(part)
        assert {layer: 2 * n for layer, n in found.items()} == {layer: counts[layer] for layer in found}
        assert 2 * sum(found.values()) == counter.get_total_flops()
        totals.append(sum(found.values()))
    assert total in (None, totals[0])
    assert max(totals[1:]) < totals[0]


def test_a_buffer_that_is_not_saved_stays_with_a_sub_network() -> None:
    model, units = made("mlp")
    model.register_buffer("calls", torch.tensor(3), persistent=False)
    state = units.cut(read_state(model), some(units, 0.5))
    small = resized(model, units, state)
    assert small.calls == 3
    assert small.calls is not model.calls
    assert read_state(small).keys() == state.keys()
