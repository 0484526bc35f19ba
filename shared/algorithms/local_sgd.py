"""Local SGD alone: every client trains a model of its own, and nothing is averaged.

The baseline "SGD" of Y. Liu, X. Wu, C. Liu (2025, see `dtpfl`), section 3.3: equation 5 without equation 7.

    w_k <- E epochs of SGD from w_k on the n_k samples of client k; all w_k begin from one initial model

The client is a device, or with `client: edge` an edge: its devices train shares from its model, whose mean it keeps. An
update holds no tensors. (Down travels the initial model, for clients that come later or have lost their state.) Tested
is the model after its training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Finish,
    Footprint,
    Local,
    ModelState,
    OwnBuffers,
    Score,
    TensorMap,
    Trainer,
    Update,
    default_local,
    starting_model,
    travelling,
)


class User(EdgeModel):
    """The state of an edge that is a client: its own model, once it has trained one alone."""

    own: ModelState = Field(default_factory=dict)


class Own(OwnBuffers):
    """The state of a device that is a client: its own model, once it has trained one alone."""

    own: ModelState = Field(default_factory=dict)


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """Nothing from a client."""
    client = "edge" if ctx.seat is None else "device"
    return {} if ctx.spec.client == client else {"delta": travelling(ctx, model)}


class Cloud(CloudHooks):
    """Has the initial model and learns nothing."""

    def evaluate(self, ctx: Context, state: Any, trainer: Trainer) -> dict[str, Score]:
        return {}


class Edge(EdgeHooks):
    """As a client it goes on from its own model and keeps what its devices make of it."""

    def _alone(self, ctx: Context) -> bool:
        """Whether what is trained in this round stays here."""
        return ctx.spec.client == "edge"

    def init(self, ctx: Context) -> Any:
        return User()

    def forms_model(self, ctx: Context) -> bool:
        return self._alone(ctx) or ctx.spec.edge_rounds > 1

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Begin:
        return super().begin(ctx, state, Broadcast(model=state.own or broadcast.model))

    def finish(self, ctx: Context, state: Any) -> Finish:
        done = super().finish(ctx, state)
        if not self._alone(ctx):
            return done
        return Finish(done.state.replace(own=state.model), Update(delta={}))


class Device(DeviceHooks):
    """As a client it goes on from its own model and keeps it."""

    def _alone(self, ctx: Context) -> bool:
        """Whether what is trained in this round stays here."""
        return ctx.spec.client == "device"

    def init(self, ctx: Context) -> Any:
        return Own()

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start = state.own or starting_model(state, message)
        fit = trainer.fit(ctx, start)
        local = default_local(ctx, start, fit)
        if not self._alone(ctx):
            return replace(local, state=Own(buffers=local.state.buffers))
        return replace(local, state=Own(buffers=local.state.buffers, own=fit.model), update=Update(delta={}))

    def personalise(
        self, ctx: Context, state: Any, message: Any, local: Local | None, trainer: Trainer
    ) -> TensorMap | None:
        return local.model if local else state.own or None


ALGORITHM = Algorithm(
    name="local_sgd",
    paper="none; the baseline SGD of Liu et al. 2025 (see dtpfl)",
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    edge_state=User,
    device_state=Own,
    headline="mean over clients",
    footprint=Footprint(sends=sends),
)
