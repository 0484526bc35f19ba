"""Local SGD alone: every client trains its own model, and nothing is averaged.

The baseline "SGD" of Y. Liu, X. Wu, C. Liu (2025, see `dtpfl`), section 3.3: equation 5 without equation 7.

    w_k <- E epochs of SGD from w_k on the n_k samples of client k; all w_k start from one initial model

The client is a device, or with `client: edge` an edge: its devices train its model on shares of its samples, and it
keeps their mean. Updates hold no tensors. A client's model is tested after its training.

Deviation: the initial model is sent down in each round, for clients that join later or have lost their state.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    Fit,
    Footprint,
    GlobalModel,
    Local,
    ModelState,
    OwnBuffers,
    Score,
    TensorMap,
    Trainer,
    Training,
    Update,
    delta_of,
    own_buffers,
    starting_model,
    uploaded_names,
)


class User(EdgeModel):
    """The state of an edge that is a client: its own model; empty before it has trained one alone."""

    own: ModelState = Field(default_factory=dict)


class Own(OwnBuffers):
    """The state of a device that is a client: its own model; empty before it has trained one alone."""

    own: ModelState = Field(default_factory=dict)


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """A client sends no tensors."""
    client = "edge" if ctx.seat is None else "device"
    return {} if ctx.spec.client == client else {"delta": uploaded_names(ctx, model)}


class Cloud(CloudHooks):
    """Keeps the initial model; there is no global model to test."""

    def evaluate(self, ctx: Context, state: GlobalModel, trainer: Trainer) -> dict[str, Score]:
        return {}


class Edge(EdgeHooks[User]):
    """As a client it starts from its own model and keeps the mean of what its devices trained."""

    def _alone(self, ctx: Context) -> bool:
        """Returns whether the model trained in this round stays at this tier."""
        return ctx.spec.client == "edge"

    def init(self, ctx: Context) -> User:
        return User()

    def forms_model(self, ctx: Context) -> bool:
        return self._alone(ctx) or ctx.spec.most_edge_rounds > 1

    def begin(self, ctx: Context, state: User, broadcast: Broadcast) -> Begin[User]:
        return super().begin(ctx, state, Broadcast(model=state.own or broadcast.model))

    def finish(self, ctx: Context, state: User) -> Finish[User]:
        done = super().finish(ctx, state)
        if not self._alone(ctx):
            return done
        return Finish(done.state.replace(own=state.model), Update(delta={}))


class Device(DeviceHooks[Own]):
    """As a client it starts from its own model and keeps what it trained."""

    def _alone(self, ctx: Context) -> bool:
        """Returns whether the model trained in this round stays at this tier."""
        return ctx.spec.client == "device"

    def init(self, ctx: Context) -> Own:
        return Own()

    def training(self, ctx: Context, state: Own, message: Broadcast) -> Training:
        return Training(state.own or starting_model(state, message))

    def learned(
        self, ctx: Context, state: Own, message: Broadcast, training: Training, fit: Fit, trainer: Trainer
    ) -> Local[Own]:
        alone, buffers = self._alone(ctx), own_buffers(ctx, fit.model)
        update = Update(delta={} if alone else delta_of(ctx, fit.model, training.start))
        return Local(Own(buffers=buffers, own=fit.model if alone else {}), update, fit.model, fit.trained)

    def personalise(
        self, ctx: Context, state: Own, message: Broadcast, local: Local[Own] | None, trainer: Trainer
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
    personal=lambda ctx: frozenset(ctx.model.trainable_names) | ctx.model.buffer_names,
    headline="mean over clients",
    footprint=Footprint(sends=sends),
)
