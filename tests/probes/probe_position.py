"""Averages the model per position, and a tensor and a number by group; nothing is trained.

Seat i sends (i + 1) / 64 at every position p of a flattened tensor with p divisible by i + 2, and its number of
samples to the group of its parity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    Footprint,
    GlobalModel,
    Local,
    MaskOf,
    Mean,
    ModelState,
    OwnBuffers,
    Record,
    Tensor,
    TensorMap,
    Trainer,
)


class Masked(Record):
    delta: Annotated[ModelState, Mean(per_position="mask")]
    mask: Annotated[ModelState, MaskOf()]
    heads: Annotated[dict[str, TensorMap], Mean(by_group=True)]
    sizes: Annotated[dict[str, float], Mean(weight="one", by_group=True)]


class Merged(GlobalModel):
    heads: dict[str, TensorMap] = Field(default_factory=dict)
    sizes: dict[str, float] = Field(default_factory=dict)
    touched: TensorMap = Field(default_factory=dict)


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    return {"delta": frozenset(model), "heads": frozenset({"head.bias"})}


class Cloud(CloudHooks[Merged, Broadcast, Masked]):
    def init(self, ctx: Context, model: TensorMap) -> Merged:
        return Merged(model=model)

    def aggregate(self, ctx: Context, state: Merged, update: Masked) -> Merged:
        after = super().aggregate(ctx, state, update)
        return after.replace(heads=update.heads, sizes=update.sizes, touched=update.mask)


class Device(DeviceHooks[OwnBuffers, Broadcast, Masked]):
    def local_update(
        self, ctx: Context, state: OwnBuffers, message: Broadcast, trainer: Trainer
    ) -> Local[OwnBuffers, Masked]:
        seat, start = ctx.seat or 0, message.model
        masks = {name: _every(seat + 2, tensor) for name, tensor in start.items()}
        delta = {name: torch.full_like(tensor, (seat + 1) / 64) for name, tensor in start.items()}
        group = "odd" if seat % 2 else "even"
        heads = {group: {"head.bias": delta["head.bias"]}}
        return Local(state, Masked(delta=delta, mask=masks, heads=heads, sizes={group: float(trainer.n_samples)}))


def _every(step: int, like: Tensor) -> Tensor:
    return (torch.arange(like.numel()) % step == 0).to(torch.float32).reshape(like.shape)


ALGORITHM = Algorithm(
    name="probe_position",
    paper="none: a probe",
    cloud=Cloud(),
    device=Device(),
    update=Masked,
    cloud_state=Merged,
    footprint=Footprint(sends=sends),
)
