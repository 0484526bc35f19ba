"""FedPer.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated Learning with Personalization Layers.
arXiv, 2019 (1912.00818), algorithms 1 and 2.

    (W_B, W_P)     a model: base layers near the input, K_P personalization layers near the output
    (B_j, P_j)    <- SGD on client j's samples from (W_B, P_j)                                   algorithm 1 (client)
    W_B           <- sum_j gamma_j B_j, gamma_j = n_j / n                                        algorithm 2 (server)

P_j stays with client j. `personal_layers: 0` is FedAvg, bit for bit.

The client is a device, which keeps its personal layers in its state, or with `client: edge` an edge: its devices train
the whole model from (W_B, P_j) on shares of its samples, and the edge averages them, keeps P_j and sends B_j.

Deviations and readings:

- All clients start from the same personal layers, those of the initial model. These are sent down with the base, so
  that a client that joins later, or has lost its state, starts from them too; the paper's message is smaller by them.
- A layer is a convolution or linear module with the batch-norm that follows it; buffers belong to their layer. The last
  layers are those that the forward pass uses last.
- A client's model is tested before it trains: the base received with its own personal layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

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
    PersonalParams,
    Score,
    TensorMap,
    Trainer,
    Training,
    Update,
    delta_of,
    only,
    overlay,
    own_buffers,
    personal_tensors,
    starting_model,
    uploaded_names,
    without,
)


class Params(PersonalParams):
    """Which layers are personal.

    Attributes:
        personal_layers: K_P, the number of personal layers, counted from the output; the paper tries 1 to 4.
    """

    personal_layers: Annotated[int, Field(ge=0, le=1000)] = 1


class User(EdgeModel):
    """The state of an edge that is a client: its personal layers; empty before its first training."""

    personal: ModelState = Field(default_factory=dict)


class Own(OwnBuffers):
    """The state of a device that is a client: its personal layers; empty before its first training."""

    personal: ModelState = Field(default_factory=dict)


def personal_names(ctx: Context[Params]) -> frozenset[str]:
    """Returns the names of the personal layers at the tier that is the client; none at the other tier."""
    here = "edge" if ctx.seat is None else "device"
    return personal_tensors(ctx) if ctx.spec.client == here else frozenset()


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """A client sends all but its personal layers."""
    return {"delta": uploaded_names(ctx, model) - personal_names(ctx)}


class Cloud(CloudHooks):
    """Averages base layers. Its personal layers stay the initial ones, so there is no global model to test."""

    def evaluate(self, ctx: Context[Params], state: GlobalModel, trainer: Trainer) -> dict[str, Score]:
        return {} if personal_tensors(ctx) else super().evaluate(ctx, state, trainer)


class Edge(EdgeHooks[User]):
    """As a client it keeps its personal layers; otherwise it is FedAvg's edge."""

    def init(self, ctx: Context[Params]) -> User:
        return User()

    def forms_model(self, ctx: Context[Params]) -> bool:
        return ctx.spec.most_edge_rounds > 1 or bool(personal_names(ctx))

    def begin(self, ctx: Context[Params], state: User, broadcast: Broadcast) -> Begin[User]:
        held = overlay(broadcast.model, state.personal)  # (W_B, P_j)
        return super().begin(ctx, state, Broadcast(model=held))

    def finish(self, ctx: Context[Params], state: User) -> Finish[User]:
        done, mine = super().finish(ctx, state), personal_names(ctx)
        if not mine:
            return done
        delta = without(delta_of(ctx, state.model, state.received), mine)
        return Finish(done.state.replace(personal=only(state.model, mine)), Update(delta=delta))

    def own_model(self, ctx: Context[Params], state: User) -> TensorMap | None:
        return state.received or None


class Device(DeviceHooks[Own]):
    """Trains the whole model; as a client it keeps its personal layers."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def training(self, ctx: Context[Params], state: Own, message: Broadcast) -> Training:
        return Training(_held(state, message))  # algorithm 1 (client)

    def learned(
        self, ctx: Context[Params], state: Own, message: Broadcast, training: Training, fit: Fit, trainer: Trainer
    ) -> Local[Own]:
        start, mine = training.start, personal_names(ctx)
        own = Own(buffers=own_buffers(ctx, fit.model), personal=only(fit.model, mine))
        update = Update(delta=without(delta_of(ctx, fit.model, start), mine))
        return Local(own, update, start, fit.trained)

    def personalise(
        self, ctx: Context[Params], state: Own, message: Broadcast, local: Local[Own] | None, trainer: Trainer
    ) -> TensorMap | None:
        return local.model if local else _held(state, message)

    def evaluate(
        self, ctx: Context[Params], state: Own, message: Broadcast, own: TensorMap | None, trainer: Trainer
    ) -> tuple[Score | None, Score | None]:
        held = trainer.evaluate(own or _held(state, message))
        return held, held


def _held(state: Own, message: Broadcast) -> TensorMap:
    """Returns (W_B, P_j): the model received with the client's personal layers, and its buffers if they stay local."""
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
    personal=personal_tensors,
    headline="mean over clients",
    footprint=Footprint(sends=sends),
)
