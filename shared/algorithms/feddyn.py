"""FedDyn.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama: Federated Learning Based on Dynamic
Regularization. ICLR 2021, algorithm 1.

    theta_k <- argmin L_k(theta) - <grad_k, theta> + alpha/2 |theta - theta^(t-1)|^2                     (1)
    grad_k  <- grad_k - alpha (theta_k - theta^(t-1))                       initially 0
    h       <- h - alpha / m sum_P (theta_k - theta^(t-1))                  m: all clients, P: participants
    theta^t  = 1 / |P| sum_P theta_k - h / alpha

Here grad_k = -alpha h_k and h = -alpha H: h_k is the sum of the client's changes theta_k - theta^(t-1), and H the mean
of all h_k. (1) then adds alpha (h_k + theta - theta^(t-1)) to the gradient, and theta^t is the mean of the theta_k plus
H. Devices keep h_k, the cloud keeps H. A client whose update was not used restores its previous h_k, so that H stays
the mean. alpha = 0 keeps all h_k at 0, which is FedAvg with plain means, bit for bit.

Deviations and readings:

- (1) is minimised by the spec's local SGD, as in the paper's experiments.
- Clients have equal weights, as in the paper; so have edges that form models of their own (`edge_rounds` above 1). Such
  an edge averages the theta_k of each edge round, in which h_k changes by theta_k minus the edge's model, and sends the
  total change of H; H itself is added at the cloud.
- Regulariser and drifts concern parameters only; buffers follow `buffers`.
- A client that has lost its state starts with h_k = 0 again, while H still contains its previous one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from shared.algorithms.fedprox import pull_towards
from shared.algorithms.scaffold import plus
from shared.federation.hooks import (
    Advance,
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
    Mean,
    ModelState,
    Nothing,
    Outcome,
    OwnBuffers,
    Record,
    Task,
    TensorMap,
    Trainer,
    Training,
    add,
    delta_of,
    only,
    own_buffers,
    starting_model,
    subtract,
    uploaded_names,
)


class Params(Record):
    """alpha: weight of the regulariser; the paper tries 0.001, 0.01 and 0.1."""

    alpha: Annotated[float, Field(ge=0, le=1e3)] = 0.01


class Moved(Record):
    """Up: theta_k - theta^(t-1); from an edge that forms a model also the change of H."""

    delta: Annotated[ModelState, Mean(weight="one")]
    drift: Annotated[ModelState, Mean(weight="one")] = Field(default_factory=dict)


class Federation(GlobalModel):
    """The cloud's state: theta and H (`drift`)."""

    drift: ModelState = Field(default_factory=dict)


class Relay(EdgeModel):
    """An edge's state within a round.

    Attributes:
        before, changed: by how much its devices changed H, before the present edge round and in total.
    """

    before: ModelState = Field(default_factory=dict)
    changed: ModelState = Field(default_factory=dict)


class Own(OwnBuffers):
    """A device's state: h_k; empty while it is 0."""

    drift: ModelState = Field(default_factory=dict)


def drifted(ctx: Context[Params], before: TensorMap, update: Moved) -> TensorMap:
    """Returns H, or its change so far, after the visits behind a mean update."""
    if not ctx.params.alpha:
        return before
    if update.drift:
        return plus(before, update.drift, ctx.n_updates)
    return plus(before, only(update.delta, ctx.model.trainable_names), ctx.n_updates / ctx.total_clients)


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """The change of H, which only edges send, has all trainable parameters."""
    own = {"delta": uploaded_names(ctx, model)}
    if ctx.seat is None and ctx.params.alpha:
        own["drift"] = frozenset(ctx.model.trainable_names)
    return own


class Cloud(CloudHooks[Federation, Broadcast, Moved]):
    """The new global model is the mean of the models plus H."""

    def init(self, ctx: Context[Params], model: TensorMap) -> Federation:
        return Federation(model=model)

    def aggregate(self, ctx: Context[Params], state: Federation, update: Moved) -> Federation:
        drift = drifted(ctx, state.drift, update)
        return Federation(model=add(add(state.model, update.delta), drift), drift=drift)


class Edge(EdgeHooks[Relay, Broadcast, Moved]):
    """If it forms a model, it adds up its devices' changes of H."""

    def init(self, ctx: Context[Params]) -> Relay:
        return Relay()

    def begin(self, ctx: Context[Params], state: Relay, broadcast: Broadcast) -> Begin[Relay]:
        return super().begin(ctx, Relay(), broadcast)

    def forms_model(self, ctx: Context[Params]) -> bool:
        return self.spec_forms_model(ctx)

    def aggregate(self, ctx: Context[Params], state: Relay, update: Moved) -> Relay:
        return super().aggregate(ctx, state, update).replace(changed=drifted(ctx, state.before, update))

    def advance(
        self, ctx: Context[Params], state: Relay, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance[Relay]:
        return super().advance(ctx, state.replace(before=state.changed), tasks, outcomes)

    def finish(self, ctx: Context[Params], state: Relay) -> Finish[Relay, Moved]:
        if not self.forms_model(ctx):
            return Finish(Relay())
        return Finish(Relay(), Moved(delta=delta_of(ctx, state.model, state.received), drift=state.changed))


class Device(DeviceHooks[Own, Broadcast, Moved]):
    """Trains on (1) and adds its change to h_k."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def training(self, ctx: Context[Params], state: Own, message: Broadcast) -> Training:
        start = starting_model(state, message)
        if not ctx.params.alpha:
            return Training(start)
        anchor = add(start, plus({}, state.drift, -1.0))  # theta^(t-1) - h_k
        return Training(start, pull_towards(anchor, ctx.model.trainable_names, ctx.params.alpha))

    def learned(
        self, ctx: Context[Params], state: Own, message: Broadcast, training: Training, fit: Fit, trainer: Trainer
    ) -> Local[Own, Moved]:
        gone = subtract(only(fit.model, ctx.model.trainable_names), training.start)
        own = Own(buffers=own_buffers(ctx, fit.model), drift=plus(gone, state.drift) if ctx.params.alpha else {})
        return Local(own, Moved(delta=delta_of(ctx, fit.model, training.start)), fit.model, fit.trained)


ALGORITHM = Algorithm(
    name="feddyn",
    paper="Acar et al.: Federated Learning Based on Dynamic Regularization. ICLR 2021",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    update=Moved,
    cloud_state=Federation,
    edge_state=Relay,
    device_state=Own,
    on_refusal="revert",
    needs={"client": "device", "late": "drop"},
    footprint=Footprint(sends=sends),
)
