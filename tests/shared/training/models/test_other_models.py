"""Models of sequences and signals, and torchvision's by name."""

from __future__ import annotations

import pytest
import torch

from shared.core.errors import BadInput, UnknownName
from shared.training.description import Classes, Numbers, Sample, Target, Tokens
from shared.training.flops import training_flops
from shared.training.models import Design, build, check_name, read_state

TEXT = Sample((5,), "int64", vocabulary=7, padding=0)


def test_char_lstm_says_a_token_at_each_position_from_the_ones_before() -> None:
    model = build("char_lstm", TEXT, Tokens(7, 5), seed=0).eval()
    x = torch.tensor([[1, 2, 3, 4, 5]])
    changed = torch.tensor([[1, 2, 3, 6, 6]])
    with torch.no_grad():
        found, other = model(x), model(changed)
    assert found.shape == (1, 5, 7)
    assert torch.equal(found[:, :3], other[:, :3])
    assert not torch.equal(found[:, 3:], other[:, 3:])
    # Each layer multiplies by (1024, inputs) and (1024, 256) at each position: once forward and twice backward.
    layers, head = 1024 * (8 + 256) + 1024 * (256 + 256), 7 * 256
    assert training_flops(Design("char_lstm", TEXT, Tokens(7, 5))) == 3 * 2 * 5 * (layers + head)


def test_char_lstm_says_a_class_after_the_last_character_that_is_not_padding() -> None:
    model = build("char_lstm", TEXT, Classes(3), seed=0).eval()
    whole = build("char_lstm", Sample((2,), "int64", vocabulary=7), Classes(3), seed=0).eval()
    with torch.no_grad():
        padded, short = model(torch.tensor([[4, 2, 0, 0, 0], [1, 1, 1, 1, 1]])), whole(torch.tensor([[4, 2]]))
    assert padded.shape == (2, 3)
    torch.testing.assert_close(padded[:1], short)


@pytest.mark.parametrize(
    ("name", "sample", "target", "outputs"),
    [
        ("cnn_1d", Sample((3, 64)), Classes(4), (2, 4)),
        ("cnn_1d", Sample((64,)), Numbers((1,)), (2, 1)),
        ("autoencoder", Sample((3, 64)), Numbers((3, 64)), (2, 192)),
        ("mlp", Sample((30,)), Classes(2), (2, 2)),
        ("mlp", Sample((30,)), Numbers((2,)), (2, 2)),
    ],
)
def test_outputs_are_those_of_the_target(name: str, sample: Sample, target: Target, outputs: tuple[int, ...]) -> None:
    model = build(name, sample, target, seed=3)
    assert model(sample.example(2)).shape == outputs
    assert training_flops(Design(name, sample, target)) > 0
    again = read_state(build(name, sample, target, seed=3))
    assert all(torch.equal(tensor, again[key]) for key, tensor in read_state(model).items())


@pytest.mark.parametrize(
    ("name", "sample", "target", "message"),
    [
        ("cnn_1d", Sample((3,)), Classes(4), "too short"),
        ("cnn_1d", Sample((3, 8, 8), images=True), Classes(4), "cnn_1d takes signals"),
        ("autoencoder", Sample((8,)), Classes(4), "autoencoder says numbers"),
        ("char_lstm", Sample((8,)), Classes(4), "char_lstm takes sequences of indices"),
        ("resnet18", Sample((8,)), Classes(4), "resnet18 takes images"),
    ],
)
def test_a_model_of_other_data_is_refused(name: str, sample: Sample, target: Target, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        build(name, sample, target, seed=0)
    assert caught.value.field == "model.name"


# ---- torchvision


def test_torchvisions_models_are_built_by_name_and_repeat_grey_images_for_their_three_channels() -> None:
    colour = build("torchvision.squeezenet1_1", (3, 32, 32), 10, seed=0).eval()
    assert "features.0.weight" in read_state(colour)
    assert training_flops(Design("torchvision.squeezenet1_1", (3, 32, 32), 10)) > 0
    grey = build("torchvision.squeezenet1_1", (1, 32, 32), 10, seed=0).eval()
    x = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        found = grey(x)
        assert torch.equal(found, colour(x.expand(-1, 3, -1, -1)))
    assert found.shape == (2, 10)


def test_models_of_torchvision_that_do_not_fit_are_refused_and_further_classifiers_left_out() -> None:
    with pytest.raises(UnknownName, match=r"torchvision\.resnet18") as caught:
        check_name("torchvision.resnet17")
    assert caught.value.field == "model.name"
    with torch.device("meta"):
        model = build("torchvision.googlenet", (3, 32, 32), 10, seed=0).train()
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(BadInput, match=r"a forward pass of torchvision\.alexnet on samples \(3, 8, 8\)"):
        training_flops(Design("torchvision.alexnet", (3, 8, 8), 10))
