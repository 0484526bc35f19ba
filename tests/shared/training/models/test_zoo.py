"""Models have the published sizes and depend on their arguments only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shared.core.errors import BadInput, UnknownName
from shared.training.models import (
    MODELS,
    Design,
    Layer,
    Shape,
    buffer_names,
    build,
    check_name,
    layers,
    least_batch,
    parameter_names,
    read_state,
    write_state,
)


@pytest.mark.parametrize(
    ("name", "shape", "n_classes", "n_parameters"),
    [
        ("mlp", (1, 28, 28), 10, 784 * 64 + 64 + 640 + 10),
        ("cnn_mnist", (1, 28, 28), 10, 582_026),
        ("cnn_mnist", (1, 8, 8), 10, 832 + 51_264 + 256 * 512 + 512 + 5_130),
        ("cnn_cifar10", (3, 32, 32), 10, 2_432 + 51_264 + 1_600 * 512 + 512 + 5_130),
        ("cnn_6_12", (3, 32, 32), 10, 456 + 1_812 + 36_120 + 10_164 + 850),
        ("cnn_6_16", (3, 32, 32), 10, 456 + 2_416 + 48_120 + 10_164 + 850),
        ("cnn_digits", (3, 28, 28), 10, 4_992 + 102_592 + 205_184 + 12_851_200 + 1_050_112 + 5_130),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet34", (3, 32, 32), 100, 21_328_292),
        ("resnet50", (3, 32, 32), 10, 23_520_842),
        ("mobilenet_v1", (3, 32, 32), 10, 3_217_226),
        ("vgg_mnist", (1, 28, 28), 10, 5_622_336 + 448 + 2 * 448 + 2_058),
        ("vgg_cifar10", (3, 32, 32), 10, 23_232_192 + 1_152 + 2 * 1_152 + 5_130),
        ("mobilenet_femnist", (1, 28, 28), 62, 9_944_064 + 2_432 + 2 * 2_432 + 2_110),
    ],
)
def test_models_have_their_published_sizes(name: str, shape: Shape, n_classes: int, n_parameters: int) -> None:
    with torch.device("meta"):
        model = build(name, shape, n_classes, seed=0)
    assert sum(p.numel() for p in model.parameters()) == n_parameters


def test_a_narrower_supernet_has_that_share_of_each_hidden_layer() -> None:
    """A quarter of 64, 128 and 256 channels and of twice 1024 units; 4 x 4 pixels reach the linear layers."""
    model = build("vgg_mnist", (1, 28, 28), 10, seed=0, width=0.25)
    weights = [p.shape for p in model.parameters() if p.dim() > 1]
    assert weights == [(16, 1, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3), (256, 1024), (256, 256), (10, 256)]
    assert least_batch(Design("vgg_mnist", (1, 28, 28), 10, width=0.001)) == 1
    with pytest.raises(BadInput, match="mlp has width 1 only") as refused:
        build("mlp", (1, 28, 28), 10, seed=0, width=0.5)
    assert refused.value.field == "model.width"


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize(
    "shape", [(1, 8, 8), *(pytest.param((1, side, side), marks=pytest.mark.slow) for side in (16, 28))]
)
def test_every_model_accepts_every_input_and_its_head_gets_the_features(name: str, shape: Shape) -> None:
    with torch.device("meta"):
        model, x = build(name, shape, 7, seed=0).eval(), torch.zeros(2, *shape)
    assert model.features(x).shape == (2, model.head.in_features)
    assert model(x).shape == (2, 7)


@pytest.mark.parametrize("name", ["mlp", "cnn_6_16", "mobilenet_v1"])
def test_projection_head_stands_between_the_encoder_and_the_last_layer(name: str) -> None:
    plain, model = (build(name, (3, 16, 16), 7, seed=0, projection=n) for n in (None, 256))
    width, x = plain.head.in_features, torch.randn(2, 3, 16, 16)
    kinds = [type(module) for module in model.get_submodule("features.projection").children()]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear]
    assert [layer.name for layer in layers(model)[-3:]] == ["features.projection.0", "features.projection.2", "head"]
    shapes = [tuple(p.shape) for p in model.parameters()][-6:]
    assert shapes == [(width, width), (width,), (256, width), (256,), (7, 256), (7,)]
    plain.eval()
    model.eval()
    assert torch.equal(model.get_submodule("features.encoder")(x), plain.features(x))  # with the same weights
    assert torch.equal(model(x), model.head(model.features(x)))
    assert model.features(x).shape == (2, 256)


@pytest.mark.parametrize(
    ("name", "side", "least"),
    # The last stage of a ResNet sees an eighth of the side.
    [("cnn_mnist", 28, 1), ("cnn_digits", 8, 2), ("resnet18", 16, 1), ("resnet18", 8, 2)],
)
def test_batch_norm_with_one_value_per_channel_needs_two_samples(name: str, side: int, least: int) -> None:
    assert least_batch(Design(name, (3, side, side), 10)) == least
    model = build(name, (3, side, side), 10, seed=0).train()
    model(torch.zeros(least, 3, side, side))
    if least > 1:
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            model(torch.zeros(1, 3, side, side))


@pytest.mark.parametrize("name", ["mlp", "cnn_mnist", "mobilenet_v1"])
def test_the_seed_alone_determines_the_weights_and_the_generator_is_restored(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = read_state(build(name, (3, 32, 32), 10, seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = (read_state(build(name, (3, 32, 32), 10, seed=s)) for s in (5, 6))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_an_unknown_model_lists_the_known_ones_and_an_image_too_small_for_two_pools_is_refused() -> None:
    known = r"unknown model 'lenet'.* known: autoencoder, char_lstm, cnn_1d, cnn_6_12, cnn_6_16"
    with pytest.raises(UnknownName, match=known):
        check_name("lenet")
    with pytest.raises(UnknownName):
        build("lenet", (1, 8, 8), 10, seed=0)
    for name in ("cnn_mnist", "cnn_digits"):
        with pytest.raises(BadInput, match="3x8 are too small") as refused:
            build(name, (1, 3, 8), 10, seed=0)
        assert refused.value.field == "model.name"


def test_layers_are_the_modules_in_order_each_with_its_batch_norm() -> None:
    plain = layers(build("cnn_6_12", (3, 32, 32), 10, seed=0))
    assert [layer.name for layer in plain] == ["features.0", "features.3", "features.7", "features.9", "head"]
    assert plain[-1] == Layer("head", ("head.weight", "head.bias"))
    first, *_, last = layers(build("mobilenet_v1", (3, 32, 32), 10, seed=0))
    statistics = tuple(f"features.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))
    assert first == Layer("features.0", ("features.0.weight", "features.1.weight", "features.1.bias"), statistics)
    assert last.name == "head"


@pytest.mark.parametrize(("name", "n_layers"), [("resnet18", 21), ("resnet34", 37), ("mobilenet_v1", 28)])
def test_layers_cover_the_state_once(name: str, n_layers: int) -> None:
    with torch.device("meta"):
        model = build(name, (3, 32, 32), 10, seed=0)
    found = layers(model)
    assert len(found) == n_layers
    assert [n for layer in found for n in layer.parameters] == parameter_names(model)
    assert [n for layer in found for n in layer.buffers] == buffer_names(model)
    assert sorted(parameter_names(model) + buffer_names(model)) == sorted(model.state_dict())


def test_states_are_contiguous_copies_and_are_written_into_the_models_own_memory() -> None:
    source, target = (build("mobilenet_v1", (3, 8, 8), 4, seed=s) for s in (1, 2))
    module: nn.Module = source.to(memory_format=torch.channels_last)
    places = [tensor.data_ptr() for tensor in target.state_dict().values()]
    state = read_state(module)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in state.values())
    write_state(target, state)
    assert [tensor.data_ptr() for tensor in target.state_dict().values()] == places
    assert all(torch.equal(tensor, state[name]) for name, tensor in read_state(target).items())
    state["head.weight"].fill_(9)
    assert max(model.head.weight.max() for model in (source, target)) < 9


def test_mismatched_state_is_refused_and_nothing_written() -> None:
    model = build("mlp", (1, 8, 8), 10, seed=0)
    state = {name: torch.zeros_like(tensor) for name, tensor in read_state(model).items()}
    before = read_state(model)
    with pytest.raises(BadInput, match=r"missing \['head.bias'\], unknown \['bias'\]"):
        write_state(model, {**{k: v for k, v in state.items() if k != "head.bias"}, "bias": state["head.bias"]})
    with pytest.raises(BadInput, match=r"head.bias is torch.float32 \(11,\), the model's is torch.float32 \(10,\)"):
        write_state(model, {**state, "head.bias": torch.zeros(11)})
    with pytest.raises(BadInput, match=r"head.bias is torch.float64"):
        write_state(model, {**state, "head.bias": torch.zeros(10, dtype=torch.float64)})
    assert all(torch.equal(tensor, before[name]) for name, tensor in read_state(model).items())
