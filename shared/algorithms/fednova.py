"""FedNova.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020: normalised averaging, equation (1) below, with the reach of momentum SGD of section 4.1.

    Delta_i  = y_i - x                             y_i: model of client i after its local steps from x
    d_i      = Delta_i / |a_i|                     |a_i|: its number of local steps; with momentum its reach
    x       <- x + tau_eff sum_i p_i d_i           p_i: the client's share of the samples                (1)
    tau_eff  = sum_i p_i |a_i|

Clients that take more steps do not pull the model further than their share p_i of the objective. Where all take equally
many steps, it is FedAvg, bit for bit.

Deviations and readings:

- Lengths are relative to that of a client with the mean number of samples, which cancels out: a client sends Delta_i /
  r_i and r_i = |a_i| / |a|. So nothing is rounded where all r_i are 1.
- An edge that forms a model (`edge_rounds` above 1) takes step (1) in each edge round. Towards the cloud it is a
  client whose length is the sum of its tau_eff, so that edges do not count for more whose devices take many steps, or
  that have more edge rounds.
- Only parameters are normalised; buffers follow `buffers` and are averaged as in FedAvg.
- The paper's local proximal term and its server momentum are left out; weight decay counts as part of the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

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
    default_local,
    delta_of,
    momentum_step_factor,
)
from shared.training.loop import batch_sizes


class Normalised(Record):
    """Up: Delta_i / r_i, and r_i."""

    delta: Annotated[ModelState, Mean(weight="samples")]
    length: Annotated[float, Mean(weight="samples")]


class Relay(EdgeModel):
    """An edge's state within a round.

    Attributes:
        before, length: the sum of its tau_eff / |a|, before the present edge round and in total.
    """

    before: float = 0.0
    length: float = 0.0


def usual_length(ctx: Context) -> float:
    """Returns |a|, the length of a client that has the mean number of samples."""
    n = max(ctx.total_samples // ctx.total_clients, 1) * ctx.spec.versions
    n_steps = len(batch_sizes(n, ctx.spec.batch_size, ctx.model.least_batch)) * ctx.spec.local_epochs
    return momentum_step_factor(ctx.spec.local_steps or n_steps, ctx.spec.momentum)


def scaled(ctx: Context, delta: TensorMap, factor: float) -> TensorMap:
    """Returns a change of a model with that of its parameters multiplied; buffers stay as they are."""
    fixed = ctx.model.buffer_names
    return {name: tensor if name in fixed else tensor * factor for name, tensor in delta.items()}


def normalised(ctx: Context, delta: TensorMap, length: float) -> Normalised:
    """Returns the update of a client, or of an edge, that went this far; without a step it has not moved."""
    return Normalised(delta=scaled(ctx, delta, 1 / length if length else 1.0), length=length)


class Cloud(CloudHooks[GlobalModel, Broadcast, Normalised]):
    """Steps along the mean direction, as far as clients went on average."""

    def aggregate(self, ctx: Context, state: GlobalModel, update: Normalised) -> GlobalModel:
        return state.replace(model=add(state.model, scaled(ctx, update.delta, update.length)))  # (1)


class Edge(EdgeHooks[Relay, Broadcast, Normalised]):
    """If it forms a model, it steps as the cloud does, and adds up how far its steps went."""

    def init(self, ctx: Context) -> Relay:
        return Relay()

    def begin(self, ctx: Context, state: Relay, broadcast: Broadcast) -> Begin[Relay]:
        return super().begin(ctx, Relay(), broadcast)

    def forms_model(self, ctx: Context) -> bool:
        return self.spec_forms_model(ctx)

    def aggregate(self, ctx: Context, state: Relay, update: Normalised) -> Relay:
        model = add(state.start, scaled(ctx, update.delta, update.length))  # (1)
        return state.replace(model=model, length=state.before + update.length)

    def advance(
        self, ctx: Context, state: Relay, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance[Relay]:
        return super().advance(ctx, state.replace(before=state.length), tasks, outcomes)

    def finish(self, ctx: Context, state: Relay) -> Finish[Relay, Normalised]:
        if not self.forms_model(ctx):
            return Finish(Relay())
        length = state.length / ctx.spec.most_edge_rounds
        return Finish(Relay(), normalised(ctx, delta_of(ctx, state.model, state.received), length))


class Device(DeviceHooks[OwnBuffers, Broadcast, Normalised]):
    """Sends its change per step."""

    def learned(
        self,
        ctx: Context,
        state: OwnBuffers,
        message: Broadcast,
        training: Training,
        fit: Fit,
        trainer: Trainer,
    ) -> Local[OwnBuffers, Normalised]:
        done = default_local(ctx, training.start, fit)
        length = momentum_step_factor(fit.trained.n_steps, ctx.spec.momentum) / usual_length(ctx)
        update = normalised(ctx, delta_of(ctx, fit.model, training.start), length)
        return Local(done.state, update, fit.model, fit.trained)


ALGORITHM = Algorithm(
    name="fednova",
    paper="Wang et al.: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization. "
    "NeurIPS 2020",
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    update=Normalised,
    edge_state=Relay,
    needs={"client": "device", "optimizer": "sgd", "average_every": "visit"},
)
