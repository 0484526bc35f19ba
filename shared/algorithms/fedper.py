"""FedPer.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated Learning with Personalization Layers.
arXiv, 2019 (1912.00818), algorithms 1 and 2.

    (W_B, W_P)     a model: base layers near the input, K_P personalization layers near the output
    (B_j, P_j)    <- SGD on client j's samples from (W_B, P_j)                                   algorithm 1 (client)
    W_B           <- sum_j gamma_j B_j, gamma_j = n_j / n                                        algorithm 2 (server)

P_j stays with client j. `personal_layers` 0 is FedAvg, bit for bit.

The client is a device (its personal layers are in the device's state), or with `client: edge` an edge: its devices
train shares of the whole model from (W_B, P_j), the edge averages them by share, keeps P_j and sends B_j.

Deviations and readings:

- Every client begins from the same personal layers, those of the initial model. They travel down with the base, so
  that a client that comes later, or has lost its state, begins from them too; the paper's message is smaller by them.
- A layer is a convolution or linear module with the batch-norm that follows it; buffers go with their layer.
- Tested is the model that a client holds before it trains on: the base received and its own personal layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

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
    Record,
    Score,
    TensorMap,
    Trainer,
    Update,
    default_local,
    last_layers,
    only,
    overlay,
    starting_model,
    travelling,
    without,
)


class Params(Record):
    """personal_layers: K_P, how many of the last layers are personal; the paper tries 1 to 4 for its networks."""

    personal_layers: Annotated[int, Field(ge=0, le=1000)] = 1


class User(EdgeModel):
    """The state of an edge that is a client: its personal layers, once it has trained."""

    personal: ModelState = Field(default_factory=dict)


class Own(OwnBuffers):
    """The state of a device that is a client: its personal layers, once it has trained."""

    personal: ModelState = Field(default_factory=dict)


def stays_here(ctx: Context) -> frozenset[str]:
    """Names of the personal layers where the client is, at an edge or at a device; none elsewhere."""
    here = "edge" if ctx.seat is None else "device"
    return last_layers(ctx, ctx.params.personal_layers) if ctx.spec.client == here else frozenset()


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """All that travels but the client's personal layers."""
    return {"delta": travelling(ctx, model) - stays_here(ctx)}


class Cloud(CloudHooks):
    """Averages base layers; its personal layers stay the initial ones, so that it has no model to test."""

    def init(self, ctx: Context, model: TensorMap) -> Any:
        last_layers(ctx, ctx.params.personal_layers)  # refuses more than there are
        return super().init(ctx, model)

    def evaluate(self, ctx: Context, state: Any, trainer: Trainer) -> dict[str, Score]:
        return {} if ctx.params.personal_layers else super().evaluate(ctx, state, trainer)


class Edge(EdgeHooks):
    """Between cloud and devices FedAvg's; as a client it keeps its personal layers back."""

    def init(self, ctx: Context) -> Any:
        return User()

    def forms_model(self, ctx: Context) -> bool:
        return ctx.spec.edge_rounds > 1 or bool(stays_here(ctx))

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Begin:
        held = overlay(broadcast.model, state.personal)  # (W_B, P_j)
        return super().begin(ctx, state, Broadcast(model=held))

    def finish(self, ctx: Context, state: Any) -> Finish:
        done, mine = super().finish(ctx, state), stays_here(ctx)
        if not mine:
            return done
        delta = without(cast("Update", done.update).delta, mine)
        return Finish(done.state.replace(personal=only(state.model, mine)), Update(delta=delta))

    def own_model(self, ctx: Context, state: Any) -> TensorMap | None:
        return state.received or None


class Device(DeviceHooks):
    """Trains the whole model; as a client it keeps its personal layers back."""

    def init(self, ctx: Context) -> Any:
        return Own()

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start, mine = _held(state, message), stays_here(ctx)
        fit = trainer.fit(ctx, start)  # algorithm 1 (client)
        local = default_local(ctx, start, fit)
        own = Own(buffers=local.state.buffers, personal=only(fit.model, mine))
        update = Update(delta=without(cast("Update", local.update).delta, mine))
        return replace(local, state=own, update=update, model=start)

    def personalise(
        self, ctx: Context, state: Any, message: Any, local: Local | None, trainer: Trainer
    ) -> TensorMap | None:
        return local.model if local else _held(state, message)

    def evaluate(
        self, ctx: Context, state: Any, message: Any, own: TensorMap | None, trainer: Trainer
    ) -> tuple[Score | None, Score | None]:
        held = trainer.evaluate(own or _held(state, message))
        return held, held


def _held(state: Any, message: Any) -> TensorMap:
    """(W_B, P_j): the model received with the personal layers of the client, and its own buffers if they stay local."""
    return overlay(starting_model(state, message), state.personal)


ALGORITHM = Algorithm(
    name="fedper",
    paper="Arivazhagan et al.: Federated Learning with Personalization Layers. arXiv 2019",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    edge_state=User,
    device_state=Own,
    headline="mean over clients",
    footprint=Footprint(sends=sends),
)
