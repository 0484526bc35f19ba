"""The hooks of the three tiers: what an algorithm may decide, with FedAvg's answer as the default.

An algorithm's file overrides only the hooks in which its paper differs from FedAvg. Hooks are pure: they take state and
message and return a new state and message. They do no I/O, keep no attributes and draw randomness only from `ctx`.

What a hook takes and returns are the algorithm's own records, which the class names once:
`CloudHooks[CloudState, Down, Up]`, `EdgeHooks[EdgeState, Down, Up, Message, Report]` and
`DeviceHooks[DeviceState, Down, Up, Report]`. FedAvg's record stands for each that is left out. A default hook makes
FedAvg's record (hence the casts), so an algorithm with another one overrides the hooks that make it. `Context[Params]`
types `ctx.params`, the algorithm's own parameters.

    CloudState, EdgeState, DeviceState    what each tier remembers between rounds
    Down       the broadcast: cloud to edge, and edge to device unless the edge's `Message` is another record
    Up         a device's update; also its mean over devices, which edge and cloud aggregate, and an edge's own update
    Report     the small answer that is sent before the update, where the algorithm declares one

A model (`TensorMap`) maps the names of its parameters and buffers to their tensors. Some parameters may be frozen: what
concerns training goes by `ctx.model.trainable_names`, what travels up by `uploaded_names`. A device's hooks find all
tensors on one processor, the CPU or a GPU: those of state and message, and what the trainer returns. New tensors have
to be made there (`zeros_like`, `.to(x.device)`). At edges and cloud all tensors are on the CPU.

The hooks in the order of a round:

    cloud    broadcast -> ... -> aggregate -> figures        evaluate (beside the next round)
    edge     begin -> (select -> (schedule -> dispatch -> ... [admit] -> aggregate -> advance)*)* -> finish
             [-> evaluate]
    device   local_update -> [report] -> personalise -> evaluate

In a dispatch (a `wave`) the edge sends out tasks and collects the answers. One or more dispatches make an edge round,
which ends in one edge model; a round of the cloud has `edge_rounds` of them. A device of a run (a `seat`) is a virtual
client, hosted by some agent.

In models that are split by layers, base layers are near the input and personal layers near the output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, cast

from shared.core.errors import BadInput, UnknownName
from shared.core.records import Nothing, Record
from shared.core.scores import Score
from shared.core.tensor_records import TensorMap
from shared.core.tensors import add, only, overlay, subtract
from shared.federation import scheduling, selection
from shared.federation.context import Context, EdgeView
from shared.federation.hooks.records import (
    Broadcast,
    CloudState,
    DeviceState,
    Down,
    EdgeModel,
    EdgeState,
    GlobalModel,
    Message,
    OwnBuffers,
    PersonalParams,
    Report,
    Up,
    Update,
)
from shared.federation.hooks.results import Admission, Advance, Begin, Finish, Local, Verdict
from shared.federation.hooks.trainer import Fit, Trainer, Training
from shared.federation.messages import Outcome, Task
from shared.federation.population import Seat
from shared.federation.test_sets import TestSet
from shared.training.loop import Transform


class CloudHooks(Generic[CloudState, Down, Up]):
    """The cloud: owns the global state and exchanges messages with edges only.

    The default state is `GlobalModel`; an algorithm with a state of its own overrides `init`, and so on for messages.
    """

    def init(self, ctx: Context, model: TensorMap) -> CloudState:
        """Returns the state before the first round; `model` is the seeded initial model, parameters and buffers."""
        return cast("CloudState", GlobalModel(model=model))

    def broadcast(self, ctx: Context, state: CloudState, edge: int, seats: Sequence[Seat]) -> Down:
        """Returns the round's message to one edge; `seats` are the devices assigned to it, held-out ones included.

        Tensors that are the same objects for all edges are encoded once.
        """
        return cast("Down", Broadcast(model=state.model))

    def aggregate(self, ctx: Context, state: CloudState, update: Up) -> CloudState:
        """Returns the new state; `update` is the mean over the round's updates, weighted as its fields declare.

        `ctx.n_updates` says how many updates the mean is of, `ctx.n_samples` how many training samples they had. By
        default the step is `ctx.staleness_weight` times the mean, which is shorter the older the updates are.
        """
        return state.replace(model=add(state.model, damped(ctx, cast("Update", update).delta)))

    def models(self, ctx: Context, state: CloudState) -> dict[str, TensorMap]:
        """Returns the models that users can download, by name; the digest of `global` is reported with each round."""
        return {"global": state.model}

    def figures(self, ctx: Context, state: CloudState) -> dict[str, Any]:
        """Returns figures about the new state for the round's record, as JSON values.

        They are sent to every reader of the run, so they have to be small.
        """
        return {}

    def prepare(self, ctx: Context, state: CloudState, owner: str | None) -> Transform | None:
        """Returns the transform of test images before the global model, None for none.

        `owner` is the client to which the images belong; None for images of no client.
        """
        return None

    def evaluate(self, ctx: Context, state: CloudState, trainer: Trainer) -> dict[str, Score]:
        """Returns scores by name; by default `global`, the global model on the global test set.

        It runs beside the next round. With `global` among the scores, the global model is also tested on the test sets
        in the spec's `test_on`; without it no global accuracy is reported.
        """
        return {"global": trainer.evaluate(self.models(ctx, state)["global"], transform=self.prepare(ctx, state, None))}


class EdgeHooks(Generic[EdgeState, Down, Up, Message, Report]):
    """An edge: selects devices, schedules their work, admits their updates and forms an edge model if one is needed.

    The default state is `EdgeModel`.
    """

    def init(self, ctx: Context) -> EdgeState:
        """Returns the state before the edge's first round."""
        return cast("EdgeState", EdgeModel())

    def forms_model(self, ctx: Context) -> bool:
        """Returns whether the edge forms a model of its own.

        Otherwise the exact sum of its devices' updates goes to the cloud unchanged, and `aggregate` is not called. By
        default an edge forms a model if the spec needs one, or if the algorithm overrides `aggregate` or `finish`.
        """
        own = type(self).aggregate is not EdgeHooks.aggregate or type(self).finish is not EdgeHooks.finish
        return own or self.spec_forms_model(ctx)

    @staticmethod
    def spec_forms_model(ctx: Context) -> bool:
        """Returns whether the spec needs edge models: several edge rounds at any edge, or means of parts of a task."""
        return ctx.spec.most_edge_rounds > 1 or ctx.spec.average_every != "visit"

    def begin(self, ctx: Context, state: EdgeState, broadcast: Down) -> Begin[EdgeState]:
        """Takes the broadcast into the state; returns that state and the number of edge rounds."""
        begun = state.replace(start=broadcast.model, received=broadcast.model, model=broadcast.model)
        return Begin(begun, ctx.spec.edge_rounds_at(ctx.edge or 0), forward_sum=not self.forms_model(ctx))

    def select(self, ctx: Context, state: EdgeState, seats: Sequence[Seat], view: EdgeView) -> list[int]:
        """Returns the numbers of the devices that train in this edge round; by default as the spec's `select` says.

        `seats` are the edge's devices with training samples; held-out devices are not among them. `view` holds the
        training losses of their last tasks.
        """
        return selection.select(ctx, seats, view)

    def schedule(self, ctx: Context, state: EdgeState, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
        """Returns the task of each selected device, by device number; by default as the spec's `schedule` says.

        A device without a task is left alone. `view` holds, besides the losses, the digital twins of an edge that keeps
        them, and in a further dispatch of planned shares the samples that are left.
        """
        return scheduling.schedule(ctx, seats, view)

    def dispatch(self, ctx: Context, state: EdgeState, seat: Seat) -> Message:
        """Returns the message to one device that trains or evaluates; called once for each of them, in each dispatch.

        Devices that get equal messages should get the same tensors: then the message is encoded once.
        """
        return cast("Message", Broadcast(model=state.start))

    def admit(self, ctx: Context, state: EdgeState, reports: Mapping[int, Report]) -> Admission[EdgeState]:
        """Returns a verdict for each report, by device; only admitted updates are uploaded.

        Called after each dispatch, if the algorithm declares a report.
        """
        return Admission(state, {seat: Verdict(upload=True) for seat in reports})

    def aggregate(self, ctx: Context, state: EdgeState, update: Up) -> EdgeState:
        """Returns the state after a dispatch; `update` is the mean over all dispatches of this edge round so far.

        `ctx.n_updates` and `ctx.n_samples` are as in `CloudHooks.aggregate`. Not called while no device has uploaded.
        """
        return state.replace(model=add(state.start, damped(ctx, cast("Update", update).delta)))

    def advance(
        self, ctx: Context, state: EdgeState, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Report]]
    ) -> Advance[EdgeState]:
        """Called at the end of a dispatch; returns which devices get a task in a further one, and which are retired.

        By default there is no further dispatch, and the next edge round starts from the present edge model. `tasks` are
        those that `schedule` returned; each of their devices has an outcome, with a `failure` if its update was lost.
        """
        return Advance(state.replace(start=state.model))

    def finish(self, ctx: Context, state: EdgeState) -> Finish[EdgeState, Up]:
        """Ends the round; returns the state to keep and the edge's update.

        By default the update is the edge's model minus the model received, or None if the edge forms no model.
        """
        between = state.replace(start={}, received={}, model={})
        if not self.forms_model(ctx):
            return Finish(between)
        update = Update(delta=delta_of(ctx, state.model, state.received))
        return Finish(between, cast("Up", update))

    def own_model(self, ctx: Context, state: EdgeState) -> TensorMap | None:
        """With `client: edge`, returns the client's own model, None if it has none; by default the edge's model."""
        return state.model or None

    def evaluate(self, ctx: Context, state: EdgeState, trainer: Trainer) -> tuple[Score | None, Score | None]:
        """With `client: edge`, returns the scores of the received and of the own model on the client's test samples.

        The own model is also tested on the test sets in the spec's `test_on`.
        """
        own = self.own_model(ctx, state)
        received = trainer.evaluate(state.received) if state.received else None
        if own is state.received:
            return received, received
        return received, trainer.evaluate(own) if own else None


class DeviceHooks(Generic[DeviceState, Down, Up, Report]):
    """A device: owns samples and personal state.

    The default state is `OwnBuffers`.
    """

    def init(self, ctx: Context) -> DeviceState:
        """Returns the state before the device's first task."""
        return cast("DeviceState", OwnBuffers())

    def local_update(self, ctx: Context, state: DeviceState, message: Down, trainer: Trainer) -> Local[DeviceState, Up]:
        """Trains, or computes statistics in a `collect` phase; returns the new state, the update and the trained model.

        By default the device trains once: as `training` says, and `learned` returns what comes of it. Only devices
        that do so can be trained many at once (the spec's `vectorised`).
        """
        training = self.training(ctx, state, message)
        fit = trainer.fit(ctx, training.start, correct=training.correct)
        return self.learned(ctx, state, message, training, fit, trainer)

    def training(self, ctx: Context, state: DeviceState, message: Down) -> Training:
        """Returns where the device's training starts, and its correction; by default SGD from the model received."""
        return Training(starting_model(state, message))

    def learned(
        self, ctx: Context, state: DeviceState, message: Down, training: Training, fit: Fit, trainer: Trainer
    ) -> Local[DeviceState, Up]:
        """Returns the new state, the update and the trained model after a training; by default FedAvg's."""
        return cast("Local[DeviceState, Up]", default_local(ctx, training.start, fit))

    def report(self, ctx: Context, state: DeviceState, local: Local[DeviceState, Up], message: Down) -> Report:
        """Returns the report on which `EdgeHooks.admit` decides.

        Called if the algorithm declares a report and the task made an update.
        """
        return cast("Report", Nothing())

    def personalise(
        self, ctx: Context, state: DeviceState, message: Down, local: Local[DeviceState, Up] | None, trainer: Trainer
    ) -> TensorMap | None:
        """Returns the device's own model, None if it has none; by default the model that it has just trained.

        `local` is None in a task that only evaluates.
        """
        return local.model if local else None

    def prepare(self, ctx: Context, state: DeviceState, message: Down, owner: str | None) -> Transform | None:
        """Returns the transform of test images before a model; `owner` is the client to which they belong, if any."""
        return None

    def evaluate(
        self, ctx: Context, state: DeviceState, message: Down, own: TensorMap | None, trainer: Trainer
    ) -> tuple[Score | None, Score | None]:
        """Returns the scores of the model received and of the own model, on the device's test samples.

        `own` is what `personalise` returned. It is also tested on the test sets in the spec's `test_on`, each client's
        images transformed by `prepare`.
        """
        prepared = self.prepare(ctx, state, message, ctx.client_id)
        received = trainer.evaluate(starting_model(state, message), transform=prepared)
        return received, trainer.evaluate(own, transform=prepared) if own is not None else None


def test_by_owner(
    trainer: Trainer, model: TensorMap, parts: TestSet, prepare: Callable[[str | None], Transform | None]
) -> Score:
    """Returns a model's score on a test set of several clients' parts; `prepare` gives the transform of each part."""
    scores = [trainer.evaluate(model, part.samples, transform=prepare(part.owner)) for part in parts]
    return sum(scores, Score.nothing())


def starting_model(state: Record, message: Broadcast) -> TensorMap:
    """Returns the model received, with the device's own buffers if they stay local."""
    return overlay(message.model, getattr(state, "buffers", {}))


def default_local(ctx: Context, start: TensorMap, fit: Fit) -> Local:
    """Returns what a task of FedAvg leaves behind: its update is trained minus received."""
    own = OwnBuffers(buffers=own_buffers(ctx, fit.model))
    return Local(own, Update(delta=delta_of(ctx, fit.model, start)), fit.model, fit.trained)


def own_buffers(ctx: Context, trained: TensorMap) -> TensorMap:
    """Returns the buffers that stay on the device; none unless `buffers` is `local`."""
    return {name: trained[name] for name in ctx.model.buffer_names} if ctx.buffers == "local" else {}


def damped(ctx: Context, delta: TensorMap, rate: float = 1.0) -> TensorMap:
    """Returns a mean update times its mean staleness weight and, for parameters, a rate; itself if both are 1."""
    by_name = {name: ctx.staleness_weight * (1.0 if name in ctx.model.buffer_names else rate) for name in delta}
    return {name: tensor if by_name[name] == 1 else tensor * by_name[name] for name, tensor in delta.items()}


def delta_of(ctx: Context, trained: TensorMap, start: TensorMap) -> TensorMap:
    """Returns trained minus received, for all tensors that are sent up."""
    return subtract(only(trained, uploaded_names(ctx, trained)), start)


def uploaded_names(ctx: Context, model: TensorMap) -> frozenset[str]:
    """Returns the names of the tensors that are sent up: all trainable parameters, and float buffers if averaged."""
    floats = frozenset(name for name, tensor in model.items() if tensor.is_floating_point())
    return floats - ctx.model.frozen_names - local_names(ctx)


def local_names(ctx: Context) -> frozenset[str]:
    """Returns the names of the tensors that are not sent up: all buffers, unless they are averaged."""
    return frozenset() if ctx.buffers == "average" else ctx.model.buffer_names


def last_layers(ctx: Context, n: int) -> frozenset[str]:
    """Returns the names of the trainable parameters and the buffers of the last `n` layers with parameters.

    Raises:
        BadInput: the model has fewer layers, or all parameters of these are frozen.
    """
    return _layers_or_named(ctx, n, None, "personal_layers")


def personal_tensors(ctx: Context, n: int | None = None) -> frozenset[str]:
    """Returns the names of the trainable parameters and the buffers that are personal, by `PersonalParams`.

    Args:
        ctx: of the run.
        n: the number of layers unless they are named; None means that of the parameters.

    Raises:
        BadInput: the model has fewer layers, or nothing of such a name; or all that is meant is frozen.
    """
    params = cast("PersonalParams", ctx.params)
    return _layers_or_named(ctx, getattr(params, params.count) if n is None else n, params.personal, params.count)


def _layers_or_named(ctx: Context, n: int, named: Sequence[str] | None, count: str) -> frozenset[str]:
    """Returns the names of what is trained or buffered in the last n layers, or else in what is `named`."""
    layers, model = ctx.model.layers, ctx.spec.model.name
    field, what = (count, f"the last {n} layers") if named is None else ("personal", ", ".join(named))
    path = f"algorithm.params.{field}"
    if named is None and n > len(layers):
        raise BadInput(f"{field} {n}: {model} has {len(layers)} layers with parameters", field=path)
    last = layers[len(layers) - n :] if named is None else layers
    names = frozenset(name for layer in last for name in (*layer.parameters, *layer.buffers))
    tied = {name: first for layer in last for name, first in layer.tied.items()}
    if named is not None:
        names = frozenset(name for each in named for name in _named(names | tied.keys(), each, model, path))
    open_names = sorted(name for name in tied if tied[name] not in names and (named is None or name in names))
    if open_names:
        name, first = open_names[0], tied[open_names[0]]
        why = f"{name} of {model} is the tensor {first} too: name what is personal, this tensor by {first}"
        raise BadInput(f"{field}: {why}", field=path)
    if names and names.isdisjoint(ctx.model.trainable_names):
        raise BadInput(f"{field}: nothing is trained of {what} in {model}: all parameters are frozen", field=path)
    return names - tied.keys() - ctx.model.frozen_names


def _named(names: Collection[str], wanted: str, model: str, path: str) -> set[str]:
    """Returns the tensor of this name, or those in the module of this name.

    Raises:
        UnknownName: there is none; lists the modules with tensors.
    """
    found = {name for name in names if name == wanted or name.startswith(f"{wanted}.")}
    if not found:
        known = {name.rpartition(".")[0] or name for name in names}
        raise UnknownName(f"module or tensor of {model}", wanted, sorted(known), field=path)
    return found
