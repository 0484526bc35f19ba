"""Models that are split by layers: base layers near the input, personal layers near the output."""

from __future__ import annotations

from shared.context import Ctx
from shared.core.errors import BadInput


def last_layers(ctx: Ctx, n: int) -> frozenset[str]:
    """Names of what belongs to the last `n` layers with parameters: these, and buffers, which go with their layer.

    Raises:
        BadInput: the model has fewer layers.
    """
    if n > len(ctx.layers):
        there = f"{ctx.spec.model.name} has {len(ctx.layers)} layers with parameters"
        raise BadInput(f"personal_layers {n}: {there}", field="algorithm.params.personal_layers")
    last = ctx.layers[len(ctx.layers) - n :]
    return frozenset(name for layer in last for name in (*layer.parameters, *layer.buffers))
