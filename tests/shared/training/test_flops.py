"""Counted operations of training equal formulas worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shared.algorithms.fedprox import Params
from shared.training.flops import step_flops, training_flops
from shared.training.models import MODELS, Design, build


def test_each_layer_costs_two_operations_per_weight_position_and_pass() -> None:
    """Forward and weight gradient for each layer, input gradient for all but the first."""
    assert training_flops(Design("mlp", (1, 28, 28), 10)) == 2 * (2 * 784 * 64 + 3 * 64 * 10)
    plain = 2 * (2 * 64 * 64 + 3 * 64 * 10)
    assert training_flops(Design("mlp", (1, 8, 8), 10)) == plain
    projection = 64 * 64 + 64 * 256 + 256 * 10 - 64 * 10
    assert training_flops(Design("mlp", (1, 8, 8), 10, 256)) == plain + 2 * 3 * projection
    first, later = 24 * 24 * 32 * 25, 8 * 8 * 64 * 25 * 32 + 1024 * 512 + 512 * 10
    assert training_flops(Design("cnn_mnist", (1, 28, 28), 10)) == 2 * (2 * first + 3 * later)


SLOW = ("resnet", "vgg", "mobilenet")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith(SLOW) else []) for name in sorted(MODELS)]
)
def test_every_model_can_be_counted_without_random_numbers(name: str) -> None:
    before = torch.default_generator.get_state()
    small, large = training_flops(Design(name, (3, 16, 16), 10)), training_flops(Design(name, (3, 32, 32), 10))
    assert torch.equal(torch.default_generator.get_state(), before)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build(name, (3, 16, 16), 10, 0).parameters() if p.dim() > 1)
    assert 2 * 2 * parameters <= small < large


def test_what_an_algorithm_counts_is_counted_once_for_parameters_and_design() -> None:
    asked: list[float] = []

    def count(params: Params, model: nn.Module, x: Tensor, y: Tensor) -> float:
        asked.append(params.mu)
        return params.mu * len(y) * sum(p.numel() for p in model.parameters())

    designs = [Design("mlp", (1, 8, 8), n_classes) for n_classes in (7, 10)]
    found = [step_flops(count, Params, f'{{"mu":{mu}}}', design) for mu in (2, 3, 2) for design in designs]
    assert found == [mu * (65 * 64 + 65 * n_classes) for mu in (2, 3, 2) for n_classes in (7, 10)]
    assert asked == [2, 2, 3, 3]
