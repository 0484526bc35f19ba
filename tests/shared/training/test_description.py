"""Each kind of target decides loss, hits and number of predictions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from shared.training.description import IGNORED, Classes, Numbers, Target, Tokens


def test_classes_have_the_cross_entropy_of_torch_bit_for_bit() -> None:
    logits, y = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 5
    target = Classes(5)
    assert torch.equal(target.loss(logits, y), functional.cross_entropy(logits, y))
    assert torch.equal(target.loss_sum(logits, y), functional.cross_entropy(logits, y, reduction="sum"))
    assert target.n_predictions(y) == 7
    assert int(target.hits(logits, y).sum()) == int((logits.argmax(1) == y).sum())
    y[1] = IGNORED
    assert target.losses(logits, y)[1] == 0
    assert target.weights(y).tolist() == [1.0, 0.0, *[1.0] * 5]


def test_numbers_have_the_mean_squared_error_over_all_their_elements() -> None:
    outputs, y = torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 4.0]]), torch.zeros(2, 2, 2)
    target = Numbers((2, 2))
    assert target.losses(outputs, y).tolist() == [5 / 4, 4.0]
    assert target.loss(outputs, y).item() == functional.mse_loss(outputs.view(2, 2, 2), y).item() == 21 / 8
    assert target.loss_sum(outputs, y).item() == 21 / 4
    assert not target.hits(outputs, y).any()
    column, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
    assert Numbers((1,)).losses(column, y).tolist() == [0.0, 4.0], "nothing is broadcast"


def test_tokens_ignore_padding_in_loss_hits_and_counts() -> None:
    target = Tokens(n=3, length=4, padding=0)
    y = torch.tensor([[1, 2, 0, 0], [2, 0, 0, 0]])
    outputs = torch.zeros(2, 4, 3)
    outputs[:, :, 2] = math.log(2)  # softmax 1/4, 1/4, 1/2
    four, two = math.log(4), math.log(2)
    assert target.n_predictions(y) == 3
    assert target.loss_sum(outputs, y).item() == pytest.approx(four + two + two)
    assert target.loss(outputs, y).item() == pytest.approx((four + two + two) / 3)
    assert target.weights(y).tolist() == [2.0, 1.0]
    assert target.hits(outputs, y).tolist() == [[False, True, False, False], [True, False, False, False]]
    outputs[:, 2:] = torch.randn(2, 2, 3)
    assert target.loss_sum(outputs, y).item() == pytest.approx(four + two + two)
    assert target.loss(outputs, torch.zeros_like(y)).item() == 0.0, "a batch of padding alone"
    every = functional.cross_entropy(outputs.flatten(0, 1), y.flatten()).item()
    assert Tokens(3, 4).loss(outputs, y).item() == pytest.approx(every), "without padding all positions count"


@pytest.mark.parametrize(
    ("target", "right", "wrong"),
    [(Classes(3), (2, 3), (2, 4)), (Numbers((2, 2)), (2, 4), (2, 2)), (Tokens(3, 4), (2, 4, 3), (2, 3))],
)
def test_outputs_of_another_shape_do_not_fit(target: Target, right: tuple[int, ...], wrong: tuple[int, ...]) -> None:
    assert target.fits(right, 2)
    assert not target.fits(wrong, 2)
    assert target.n_predictions(target.example(2)) == 2 * target.per_sample
