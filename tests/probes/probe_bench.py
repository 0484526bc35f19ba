"""Trainer features beyond local training: training part of a model, augmented batches, transformed tests.

A device first trains its head alone for an epoch, with a separate random stream, and discards the result; then it
trains as in FedAvg. It makes its own test images black and all others white, so that the scores show for which client
`prepare` was called.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    GlobalModel,
    Local,
    OwnBuffers,
    Tensor,
    Trainer,
    Transform,
    Update,
    delta_of,
    subtract,
)


def black(x: Tensor) -> Tensor:
    return torch.full_like(x, -1.0)


def white(x: Tensor) -> Tensor:
    return torch.full_like(x, 1.0)


class Cloud(CloudHooks):
    def prepare(self, ctx: Context, state: GlobalModel, owner: str | None) -> Transform | None:
        return white if owner == "device-1" else None


class Device(DeviceHooks):
    def local_update(self, ctx: Context, state: OwnBuffers, message: Broadcast, trainer: Trainer) -> Local:
        seen: list[int] = []

        def step(parameters: list[Tensor], gradients: list[Tensor]) -> None:
            seen.append(len(parameters))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)

        head = [name for name in message.model if name.startswith("head.")]
        part = trainer.fit(ctx, message.model, purpose="head", epochs=1, trains=head, step=step)
        moved = [name for name, change in subtract(part.model, message.model).items() if change.any()]
        whole = trainer.fit(ctx, message.model)
        batches = list(trainer.batches(ctx))
        figures = {
            "parameters": float(max(seen)),
            "head_steps": float(part.trained.n_steps),
            "moved_others": float(len(set(moved) - set(head))),
            "moved_head": float(len(set(moved) & set(head))),
            "batches": float(len(batches)),
            "pixels": float(sum(x.double().sum() for x, _ in batches)),
            "union": float(sum(len(part.samples) for part in trainer.test_sets["union"])),
        }
        update = Update(delta=delta_of(ctx, whole.model, message.model))
        return replace(Local(OwnBuffers(), update, whole.model, whole.trained), figures=figures)

    def prepare(self, ctx: Context, state: OwnBuffers, message: Broadcast, owner: str | None) -> Transform | None:
        return black if owner == ctx.client_id else white


ALGORITHM = Algorithm(name="probe_bench", paper="none: a probe", cloud=Cloud(), device=Device())
