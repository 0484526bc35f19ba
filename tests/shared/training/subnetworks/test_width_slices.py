"""A sub-network is the physically smaller network with the same first weights."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared.core.errors import BadInput
from shared.training.models import MODELS, Classifier, build, read_state
from shared.training.subnetworks.width_slices import Statistics, accepts_shape, n_kept, narrowed
from tests.narrow_copy import POOLING, leading, narrow_copy, pixels_read

KINDS = ["mlp", "cnn_6_16", "cnn_digits", "resnet18", "mobilenet_v1"]
"""Each kind of network once: plain with and without batch-norm, residuals, separable convolutions."""
WAYS: list[tuple[torch.dtype, float, int | None, Statistics]] = [
    (torch.float32, 1e-5, None, "batch"),
    (torch.float64, 1e-10, 24, "running"),
    (torch.float32, 1e-5, None, "running"),
    (torch.float64, 1e-10, 24, "batch"),
]
PAIRS = [*zip(KINDS, [*WAYS, WAYS[0]], strict=True), ("cnn_6_16", WAYS[0]), ("cnn_digits", WAYS[3])]
OTHERS = [name for name in sorted(MODELS) if name not in KINDS]
CASES = [*product(KINDS, WAYS), *zip(OTHERS, cycle(WAYS[1::2]), strict=False)]
"""Networks of no new kind are tried in one way each."""


def of_kinds(name: str) -> Any:
    """A case of a network, which is slow if it is of no new kind."""
    return pytest.param(name, marks=[] if name in KINDS else [pytest.mark.slow])


def made(name: str, dtype: torch.dtype, projection: int | None = None, side: int = 16) -> tuple[Classifier, Tensor]:
    """Returns a model whose batch-norms have other values than the initial ones, and a batch."""
    model, x = first_made(name, dtype, projection, side)
    return deepcopy(model), x


@cache
def first_made(name: str, dtype: torch.dtype, projection: int | None, side: int) -> tuple[Classifier, Tensor]:
    shape = (3, side, side)
    model = build(name, shape, 7, seed=1, projection=projection).to(dtype)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    assert tensor is not None
                    tensor.add_(0.3 * torch.rand(tensor.shape, generator=generator, dtype=dtype))
    return model.train(), torch.randn(4, *shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "dtype", "most", "projection", "statistics"),
    [*(pytest.param(name, *way, marks=[] if (name, way) in PAIRS else pytest.mark.slow) for name, way in CASES)],
)
def test_forward_equals_that_of_a_physically_sliced_copy(
    name: str, dtype: torch.dtype, most: float, projection: int | None, statistics: Statistics
) -> None:
    model, x = made(name, dtype, projection)
    small = narrow_copy(model, 0.83, pixels_read(model, x))
    small.train(statistics == "batch")
    with torch.no_grad():
        with narrowed(model, 0.83, statistics):
            found = model(x)
        assert float((found - small(x)).abs().max()) <= most
        assert float((found - model(x)).abs().max()) > 1e-3


@pytest.mark.parametrize(
    "name", ["cnn_6_16", "cnn_digits", *(pytest.param(each, marks=pytest.mark.slow) for each in KINDS[3:])]
)
def test_gradients_equal_the_copys_and_reach_kept_channels_only(name: str) -> None:
    model, x = made(name, torch.float64, projection=24)
    small = narrow_copy(model, 0.8, pixels_read(model, x))
    with narrowed(model, 0.8):
        model(x).square().sum().backward()
    small(x).square().sum().backward()
    theirs = dict(small.named_parameters())
    n_left_out = 0
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None
        part = theirs[key].grad
        assert part is not None
        scale = float(part.abs().max()) + 1
        assert torch.allclose(leading(parameter.grad, part), part, rtol=1e-9, atol=1e-9 * scale), key
        rest = parameter.grad.clone()
        leading(rest, part).zero_()
        assert not rest.any(), key
        n_left_out += parameter.numel() - part.numel()
    assert n_left_out > 0.2 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "statistics"), [("cnn_digits", "batch"), ("mobilenet_v1", "running")])
def test_running_statistics_and_their_counter_are_not_changed(name: str, statistics: Statistics) -> None:
    model, x = made(name, torch.float32)
    before = read_state(model)
    with narrowed(model, 0.9, statistics):
        model(x)
    assert all(torch.equal(tensor, before[key]) for key, tensor in read_state(model).items())
    model(x)
    assert any(not torch.equal(tensor, before[key]) for key, tensor in read_state(model).items())


def test_the_network_is_restored_also_after_an_error_and_is_itself_at_whole_width() -> None:
    assert [n_kept(width, n) for width, n in ((0.8, 6), (0.8, 5), (0.28, 25), (1.0, 7), (0.01, 3))] == [5, 4, 7, 7, 1]
    model, x = made("cnn_digits", torch.float32)
    before = model(x)
    with narrowed(model, 1.0):
        assert torch.equal(model(x), before)
    with pytest.raises(KeyError), narrowed(model, 0.5):
        raise KeyError
    assert torch.equal(model(x), before)
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("groups", [2, 4, 8])
@pytest.mark.parametrize("width", [0.3, 0.5, 0.9])
def test_groups_follow_the_channels_that_arrive(groups: int, width: float) -> None:
    """The result is the same as if the channels that are cut off were present and 0."""
    grouped = nn.Conv2d(8, 16, 3, groups=groups).double()
    model = Classifier(nn.Sequential(nn.Conv2d(1, 8, 1).double(), grouped), 16, 2)
    x = torch.randn(2, 1, 5, 5, dtype=torch.float64)
    arrives = model.get_submodule("features.0")(x)
    arrives[:, n_kept(width, 8) :] = 0
    with narrowed(model, width):
        found = model.features(x)
    assert torch.allclose(found, grouped(arrives)[:, : n_kept(width, 16)], atol=1e-12)


def test_layers_that_cannot_be_sliced_are_refused_by_name() -> None:
    model = Classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()), 16, 2)
    with pytest.raises(BadInput, match=r"not supported with GroupNorm.*features\.1") as refused, narrowed(model, 0.5):
        pass
    assert refused.value.field == "model.name"
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", [*map(of_kinds, sorted(MODELS))])
def test_a_network_that_pools_to_a_point_takes_other_sizes(name: str) -> None:
    model, x = made(name, torch.float32)
    before, drawn = read_state(model), torch.get_rng_state()
    assert accepts_shape(model, (2, 3, 16, 16))
    # At 10x10 pools that round up come to 2x2 as from 16x16.
    assert accepts_shape(model, (2, 3, 8, 8)) is (name in POOLING)
    assert all(torch.equal(tensor, before[key]) for key, tensor in read_state(model).items())
    assert torch.equal(torch.get_rng_state(), drawn)  # dropout's draws too
    assert model(x).device.type == "cpu"


@pytest.mark.parametrize("name", [*map(of_kinds, sorted(POOLING))])
def test_a_network_at_another_size_is_sliced_too(name: str) -> None:
    model, _ = made(name, torch.float64)
    x = torch.randn(4, 3, 10, 10, dtype=torch.float64)
    with torch.no_grad(), narrowed(model, 0.8):
        found = model(x)
    assert torch.allclose(found, narrow_copy(model, 0.8, pixels_read(model, x))(x), atol=1e-10)
