"""Optimisers that replace SGD."""

from __future__ import annotations

import pytest
import torch

from shared.training.optimizers import Adam


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_and_adamw_equal_torchs_bit_for_bit(weight_decay: float, decoupled: bool) -> None:
    """Twenty steps on parameters of several shapes; a second training starts with moments of 0."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 3), (5,), (2, 3, 2)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    for _ in range(2):
        ours, theirs = ([tensor.clone() for tensor in start] for _ in range(2))
        step, kind = Adam(0.01, weight_decay, decoupled=decoupled), torch.optim.AdamW if decoupled else torch.optim.Adam
        optimiser = kind(theirs, lr=0.01, weight_decay=weight_decay)
        for _ in range(20):
            gradients = [torch.randn(shape, generator=generator) for shape in shapes]
            for parameter, gradient in zip(theirs, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimiser.step()
            step(ours, gradients)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert not torch.equal(ours[0], start[0])
