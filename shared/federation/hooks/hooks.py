"""The hooks of the three tiers.

Every hook has a default, FedAvg's or the identity; a paper's file shows only what differs. Hooks are pure: state and
message in, state and message out. They do no I/O, keep no attributes and draw randomness only from `ctx`.

A device's hooks find all tensors on one processor, the CPU or a GPU: those of state and message, and what the bench
gives. A tensor of their own is made there (`zeros_like`, `.to(x.device)`); edges and cloud are always on the CPU.

Order of the hooks in a round:

    cloud    broadcast -> ... -> aggregate -> figures        evaluate (beside the next round)
    edge     begin -> (select -> schedule -> dispatch -> ... admit -> aggregate -> advance)* -> finish [-> evaluate]
    device   local_update -> [report] -> personalise -> evaluate

Models that are split by layers: base layers near the input, personal layers near the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shared.core.errors import BadInput
from shared.core.records import Nothing, TensorMap
from shared.core.scores import Score
from shared.core.tensors import add, only, overlay, subtract
from shared.federation import scheduling, selection
from shared.federation.context import Context, EdgeView
from shared.federation.hooks.values import (
    Admission,
    Advance,
    Begin,
    Broadcast,
    EdgeModel,
    Finish,
    Fit,
    GlobalModel,
    Local,
    OwnBuffers,
    Trainer,
    Update,
    Verdict,
)
from shared.federation.messages import Outcome, Task
from shared.federation.population import Seat
from shared.federation.test_sets import TestSet
from shared.training.loop import Transform


class CloudHooks:
    """The cloud's half: owns the global state, sees edges only."""

    def init(self, ctx: Context, model: TensorMap) -> Any:
        """The state before the first round, from the seeded initial model."""
        return GlobalModel(model=model)

    def broadcast(self, ctx: Context, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        """The message to one edge, whose `seats` sit there now; what is equal for all is sent from the same tensors."""
        return Broadcast(model=state.model)

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        """The new state from the mean update of the round."""
        return state.replace(model=add(state.model, update.delta))

    def models(self, ctx: Context, state: Any) -> dict[str, TensorMap]:
        """The models that can be downloaded, by name; `global` is the one whose digest is reported."""
        return {"global": state.model}

    def figures(self, ctx: Context, state: Any) -> dict[str, Any]:
        """What the new state says in the round's record, as JSON values; small, since every reader of a run gets it."""
        return {}

    def prepare(self, ctx: Context, state: Any, owner: str | None) -> Transform | None:
        """What is done to the test images of a client (None: nobody's) before the global model sees them."""
        return None

    def evaluate(self, ctx: Context, state: Any, trainer: Trainer) -> dict[str, Score]:
        """Scores by name, off the round's path; by default the global model on the global test set.

        Where `global` is among them, the global model is tested on the spec's `test_on` too.
        """
        return {"global": trainer.evaluate(self.models(ctx, state)["global"], transform=self.prepare(ctx, state, None))}


class EdgeHooks:
    """The edge's half: chooses, schedules, admits, forms an edge model where there are several edge rounds."""

    def init(self, ctx: Context) -> Any:
        """The state before the edge's first round."""
        return EdgeModel()

    def forms_model(self, ctx: Context) -> bool:
        """Whether the edge forms a model of its own; else the sums of its only edge round go up as they are."""
        own = type(self).aggregate is not EdgeHooks.aggregate or type(self).finish is not EdgeHooks.finish
        return own or self.spec_forms_model(ctx)

    @staticmethod
    def spec_forms_model(ctx: Context) -> bool:
        """Whether the spec alone, whatever the hooks do, asks for models of the edge's own."""
        return ctx.spec.edge_rounds > 1 or ctx.spec.sync != "round"

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Begin:
        """Take the broadcast in; says how many edge rounds follow."""
        begun = state.replace(start=broadcast.model, received=broadcast.model, model=broadcast.model)
        return Begin(begun, ctx.spec.edge_rounds, through=not self.forms_model(ctx))

    def select(self, ctx: Context, state: Any, seats: Sequence[Seat], view: EdgeView) -> list[int]:
        """Who trains in this edge round; by default as the spec's policy says. Held-out seats are not asked."""
        return selection.select(ctx, seats, view)

    def schedule(self, ctx: Context, state: Any, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
        """The work of each chosen seat; by default as the spec's policy says. A seat left out is not visited."""
        return scheduling.schedule(ctx, seats, view)

    def dispatch(self, ctx: Context, state: Any, seat: Seat) -> Any:
        """The message to one seat; return the same object for seats that get the same."""
        return Broadcast(model=state.start)

    def admit(self, ctx: Context, state: Any, reports: Mapping[int, Any]) -> Admission:
        """Decide on held updates; asked only where the algorithm declares a report."""
        return Admission(state, {seat: Verdict(upload=True) for seat in reports})

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        """After each wave: the state from the mean update of this edge round's waves so far."""
        return state.replace(model=add(state.start, update.delta))

    def advance(self, ctx: Context, state: Any, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Any]]) -> Advance:
        """After each wave: another wave, or the next edge round from the present edge model.

        `works` is what `schedule` asked for; each of its seats has an outcome, a lost one with its `failure`.
        """
        return Advance(state.replace(start=state.model))

    def finish(self, ctx: Context, state: Any) -> Finish:
        """The end of the round at this edge; by default the edge's model minus the one received."""
        between = state.replace(start={}, received={}, model={})
        if not self.forms_model(ctx):
            return Finish(between)
        return Finish(between, Update(delta=delta_of(ctx, state.model, state.received)))

    def own_model(self, ctx: Context, state: Any) -> TensorMap | None:
        """The client's own model, where the edge is the client, None if it has none; by default the edge's."""
        return state.model or None

    def evaluate(self, ctx: Context, state: Any, trainer: Trainer) -> tuple[Score | None, Score | None]:
        """The model received and the client's own on its test samples, where the edge is the client.

        What `own_model` answers is tested on the spec's `test_on` too.
        """
        own = self.own_model(ctx, state)
        received = trainer.evaluate(state.received) if state.received else None
        if own is state.received:
            return received, received
        return received, trainer.evaluate(own) if own else None


class DeviceHooks:
    """The device's half: owns data and personal state."""

    def init(self, ctx: Context) -> Any:
        """The state before the seat's first visit."""
        return OwnBuffers()

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        """Train, or collect; by default local SGD from the model received."""
        start = starting_model(state, message)
        fit = trainer.fit(ctx, start)
        return default_local(ctx, start, fit)

    def report(self, ctx: Context, state: Any, local: Local, message: Any) -> Any:
        """The small answer that travels before an upload, where the algorithm declares one and there is an update."""
        return Nothing()

    def personalise(
        self, ctx: Context, state: Any, message: Any, local: Local | None, trainer: Trainer
    ) -> TensorMap | None:
        """The seat's own model, None if it has none; by default the one that it has just trained."""
        return local.model if local else None

    def prepare(self, ctx: Context, state: Any, message: Any, owner: str | None) -> Transform | None:
        """What is done to test images before a model sees them here; `owner`: the client whose they are, if any's."""
        return None

    def evaluate(
        self, ctx: Context, state: Any, message: Any, own: TensorMap | None, trainer: Trainer
    ) -> tuple[Score | None, Score | None]:
        """The model received and the seat's own on the seat's test samples.

        What `personalise` answers is tested on the spec's `test_on` too, each client's part as `prepare` says.
        """
        prepared = self.prepare(ctx, state, message, ctx.client_id)
        received = trainer.evaluate(starting_model(state, message), transform=prepared)
        return received, trainer.evaluate(own, transform=prepared) if own is not None else None


def test_by_owner(
    trainer: Trainer, model: TensorMap, parts: TestSet, prepare: Callable[[str | None], Transform | None]
) -> Score:
    """A model on a test set of several owners' parts, each prepared as it says."""
    scores = [trainer.evaluate(model, part.samples, transform=prepare(part.owner)) for part in parts]
    return sum(scores, Score(n=0, n_correct=0, loss_sum=0.0))


def starting_model(state: Any, message: Any) -> TensorMap:
    """The model received, with the seat's own buffers where they stay local."""
    return overlay(message.model, getattr(state, "buffers", {}))


def default_local(ctx: Context, start: TensorMap, fit: Fit) -> Local:
    """FedAvg's contribution: trained minus received, without what does not travel."""
    own = OwnBuffers(buffers=own_buffers(ctx, fit.model))
    return Local(own, Update(delta=delta_of(ctx, fit.model, start)), fit.model, fit.trained)


def own_buffers(ctx: Context, trained: TensorMap) -> TensorMap:
    """The buffers that stay with the device."""
    return {name: trained[name] for name in ctx.model.buffer_names} if ctx.buffers == "local" else {}


def delta_of(ctx: Context, trained: TensorMap, start: TensorMap) -> TensorMap:
    """Trained minus received for all that travels."""
    return subtract(only(trained, travelling(ctx, trained)), start)


def travelling(ctx: Context, model: TensorMap) -> frozenset[str]:
    """Names of what travels up of a model: parameters, and float buffers if they are averaged."""
    return frozenset(name for name, tensor in model.items() if tensor.is_floating_point()) - kept_back(ctx)


def kept_back(ctx: Context) -> frozenset[str]:
    """Names that do not travel up: all buffers, unless they are averaged."""
    return frozenset() if ctx.buffers == "average" else ctx.model.buffer_names


def last_layers(ctx: Context, n: int) -> frozenset[str]:
    """Names of what belongs to the last `n` layers with parameters: these, and buffers, which go with their layer.

    Raises:
        BadInput: the model has fewer layers.
    """
    if n > len(ctx.model.layers):
        there = f"{ctx.spec.model.name} has {len(ctx.model.layers)} layers with parameters"
        raise BadInput(f"personal_layers {n}: {there}", field="algorithm.params.personal_layers")
    last = ctx.model.layers[len(ctx.model.layers) - n :]
    return frozenset(name for layer in last for name in (*layer.parameters, *layer.buffers))
