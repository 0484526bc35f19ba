"""What an algorithm is: a frozen value of three stateless hook objects and its record types.

Every hook has a default, FedAvg's or the identity; a paper's file shows only what differs. Hooks are pure: state and
message in, state and message out. They do no I/O, keep no attributes and draw randomness only from `ctx`.

Order of the hooks in a round:

    cloud    broadcast -> ... -> aggregate        evaluate (beside the next round)
    edge     begin -> (select -> schedule -> dispatch -> ... admit -> aggregate -> advance)* -> finish [-> evaluate]
    device   local_update -> [report] -> personalise -> evaluate
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from shared import policies
from shared.context import Ctx, NoParams
from shared.errors import BadInput
from shared.messages import Outcome, Work
from shared.population import Samples, Seat
from shared.records import Mean, ModelState, Nothing, Record, Score, TensorMap
from shared.spec import ExperimentSpec, explain
from shared.sums import check_update_type
from shared.tensors import add, only, overlay, subtract
from shared.training.loop import Correct, Objective, Step, Trained, Transform

# ---- FedAvg's records, the defaults


class Broadcast(Record):
    """Down: the global model (at the edge: the edge's)."""

    model: ModelState


class Update(Record):
    """Up: trained minus received, weighted by samples."""

    delta: Annotated[ModelState, Mean(weight="samples")]


class GlobalModel(Record):
    """The cloud's state: the global model."""

    model: ModelState


class EdgeModel(Record):
    """The edge's state: within a round the model from which the edge round started and the one after it.

    The default hooks keep the fields that a subclass adds.
    """

    start: ModelState = Field(default_factory=dict)
    received: ModelState = Field(default_factory=dict)
    model: ModelState = Field(default_factory=dict)


class OwnBuffers(Record):
    """The device's state: its own batch-norm statistics, where they stay local."""

    buffers: ModelState = Field(default_factory=dict)


# ---- what hooks work with


@dataclass(frozen=True)
class Fit:
    """A trained model and what the training counted."""

    model: TensorMap
    trained: Trained


class Bench(Protocol):
    """The workbench of a client: its samples, its model, the one training loop. All in torch's own memory."""

    @property
    def work(self) -> Work:
        """What the visit is to do."""
        ...

    @property
    def n_samples(self) -> int:
        """Number of training samples of this visit: the client's weight."""
        ...

    @property
    def samples(self) -> Samples:
        """The training samples of this visit."""
        ...

    def arrays(self, part: Literal["train", "test"]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Images and labels of one part of the data set; `Samples` are positions in them. Read-only."""
        ...

    def fit(
        self,
        ctx: Ctx,
        start: Mapping[str, Any],
        *,
        samples: Samples | None = None,
        purpose: str = "batches",
        objective: Objective | None = None,
        correct: Correct | None = None,
        transform: Transform | None = None,
        step: Step | None = None,
    ) -> Fit:
        """Train from `start` as the work says, on the visit's samples or on others; see `shared.training.loop.train`.

        `purpose` names the stream that shuffles.
        """
        ...

    def test(self, model: Mapping[str, Any], samples: Samples | None = None) -> Score:
        """Evaluate a model on the client's test samples, or on others."""
        ...


@dataclass(frozen=True)
class Begin:
    """How an edge's round begins.

    Attributes:
        through: the sums of the only edge round go up as they are; the edge forms no model of its own.
    """

    state: Any
    edge_rounds: int = 1
    through: bool = False


@dataclass(frozen=True)
class Verdict:
    """Whether a seat's held update is fetched, with the algorithm's word for it and figures for the record.

    Attributes:
        keep: whether a refused seat keeps the state of this visit; None = as the algorithm's `on_refusal` says.
    """

    upload: bool
    keep: bool | None = None
    label: str | None = None
    reason: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission:
    """The verdicts on the reports of a wave, by seat."""

    state: Any
    verdicts: dict[int, Verdict]


@dataclass(frozen=True)
class Advance:
    """After a wave: another one for the seats in `again`? Who is retired, and why?"""

    state: Any
    again: Sequence[int] = ()
    retire: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finish:
    """What the edge remembers and what it sends: its own update, or None for the sums of the round as they are."""

    state: Any
    update: Record | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Local:
    """What a visit leaves behind: the seat's state, its update (None: no contribution), its trained model."""

    state: Any
    update: Record | None
    model: TensorMap | None = None
    trained: Trained | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """A named stretch of rounds; in `collect` seats compute updates without training."""

    name: str
    num_rounds: int
    kind: Literal["train", "collect"] = "train"


# ---- the hooks


class CloudHooks:
    """The cloud's half: owns the global state, sees edges only."""

    def init(self, ctx: Ctx, model: TensorMap) -> Any:
        """The state before the first round, from the seeded initial model."""
        return GlobalModel(model=model)

    def broadcast(self, ctx: Ctx, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        """The message to one edge, whose `seats` sit there now; what is equal for all is sent from the same tensors."""
        return Broadcast(model=state.model)

    def aggregate(self, ctx: Ctx, state: Any, update: Any) -> Any:
        """The new state from the mean update of the round."""
        return state.but(model=add(state.model, update.delta))

    def models(self, ctx: Ctx, state: Any) -> dict[str, TensorMap]:
        """The models that can be downloaded, by name; `global` is the one whose digest is reported."""
        return {"global": state.model}

    def evaluate(self, ctx: Ctx, state: Any, bench: Bench) -> dict[str, Score]:
        """Scores by name, off the round's path; by default the global model on the global test set."""
        return {"global": bench.test(self.models(ctx, state)["global"])}


class EdgeHooks:
    """The edge's half: chooses, schedules, admits, forms an edge model where there are several edge rounds."""

    def init(self, ctx: Ctx) -> Any:
        """The state before the edge's first round."""
        return EdgeModel()

    def begin(self, ctx: Ctx, state: Any, broadcast: Any) -> Begin:
        """Take the broadcast in; says how many edge rounds follow."""
        begun = state.but(start=broadcast.model, received=broadcast.model, model=broadcast.model)
        return Begin(begun, ctx.spec.edge_rounds, through=_forms_no_model(ctx, self))

    def select(self, ctx: Ctx, state: Any, seats: Sequence[Seat]) -> list[int]:
        """Who trains in this edge round; by default as the spec's policy says. Held-out seats are not asked."""
        return policies.select(ctx, seats)

    def schedule(self, ctx: Ctx, state: Any, seats: Sequence[Seat]) -> dict[int, Work]:
        """The work of each chosen seat; by default as the spec's policy says. A seat left out is not visited."""
        return policies.schedule(ctx, seats)

    def dispatch(self, ctx: Ctx, state: Any, seat: Seat) -> Any:
        """The message to one seat; return the same object for seats that get the same."""
        return Broadcast(model=state.start)

    def admit(self, ctx: Ctx, state: Any, reports: Mapping[int, Any]) -> Admission:
        """Decide on held updates; asked only where the algorithm declares a report."""
        return Admission(state, {seat: Verdict(upload=True) for seat in reports})

    def aggregate(self, ctx: Ctx, state: Any, update: Any) -> Any:
        """After each wave: the state from the mean update of this edge round's waves so far."""
        return state.but(model=add(state.start, update.delta))

    def advance(self, ctx: Ctx, state: Any, works: Mapping[int, Work], outcomes: Sequence[Outcome[Any]]) -> Advance:
        """After each wave: another wave, or the next edge round from the present edge model.

        `works` is what `schedule` asked for; each of its seats has an outcome, a lost one with its `failure`.
        """
        return Advance(state.but(start=state.model))

    def finish(self, ctx: Ctx, state: Any) -> Finish:
        """The end of the round at this edge; by default the edge's model minus the one received."""
        between = state.but(start={}, received={}, model={})
        if _forms_no_model(ctx, self):
            return Finish(between)
        return Finish(between, Update(delta=delta_of(ctx, state.model, state.received)))

    def evaluate(self, ctx: Ctx, state: Any, bench: Bench) -> tuple[Score | None, Score | None]:
        """The model received and the client's own, where the edge is the client."""
        received = bench.test(state.received) if state.received else None
        return received, bench.test(state.model) if state.model else None


class DeviceHooks:
    """The device's half: owns data and personal state."""

    def init(self, ctx: Ctx) -> Any:
        """The state before the seat's first visit."""
        return OwnBuffers()

    def local_update(self, ctx: Ctx, state: Any, message: Any, bench: Bench) -> Local:
        """Train, or collect; by default local SGD from the model received."""
        start = starting_model(state, message)
        fit = bench.fit(ctx, start)
        return default_local(ctx, start, fit)

    def report(self, ctx: Ctx, state: Any, local: Local, message: Any) -> Any:
        """The small answer that travels before an upload, where the algorithm declares one and there is an update."""
        return Nothing()

    def personalise(self, ctx: Ctx, state: Any, message: Any, local: Local | None, bench: Bench) -> TensorMap | None:
        """The seat's own model, None if it has none; by default the one that it has just trained."""
        return local.model if local else None

    def evaluate(
        self, ctx: Ctx, state: Any, message: Any, own: TensorMap | None, bench: Bench
    ) -> tuple[Score | None, Score | None]:
        """The model received and the seat's own on the seat's test samples."""
        return bench.test(starting_model(state, message)), bench.test(own) if own is not None else None


def _forms_no_model(ctx: Ctx, hooks: EdgeHooks) -> bool:
    """Whether the sums of the only edge round may go up as they are: nothing at the edge asks for a model."""
    own = type(hooks).aggregate is not EdgeHooks.aggregate or type(hooks).finish is not EdgeHooks.finish
    return ctx.spec.edge_rounds == 1 and not own


def starting_model(state: Any, message: Any) -> TensorMap:
    """The model received, with the seat's own buffers where they stay local."""
    return overlay(message.model, getattr(state, "buffers", {}))


def default_local(ctx: Ctx, start: TensorMap, fit: Fit) -> Local:
    """FedAvg's contribution: trained minus received, without what does not travel."""
    local = {name: fit.model[name] for name in ctx.buffer_names} if ctx.buffers == "local" else {}
    return Local(OwnBuffers(buffers=local), Update(delta=delta_of(ctx, fit.model, start)), fit.model, fit.trained)


def delta_of(ctx: Ctx, trained: TensorMap, start: TensorMap) -> TensorMap:
    """Trained minus received for all that travels: parameters, and float buffers if they are averaged."""
    back = kept_back(ctx) | {name for name, tensor in trained.items() if not tensor.is_floating_point()}
    return subtract(only(trained, trained.keys() - back), start)


def kept_back(ctx: Ctx) -> frozenset[str]:
    """Names that do not travel up: all buffers, unless they are averaged."""
    return frozenset() if ctx.buffers == "average" else ctx.buffer_names


# ---- the value


def one_phase(spec: ExperimentSpec, params: Any) -> tuple[Phase, ...]:
    """The default: all rounds train."""
    return (Phase("train", spec.num_rounds),)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm, all tiers.

    Attributes:
        name: that of its module.
        paper: authors, title, venue.
        params: model of its own parameters.
        broadcast, update: its messages; `message` is what a seat gets, by default the broadcast's type.
        report: declared by algorithms that decide before an update travels.
        cloud_state, edge_state, device_state: what each tier remembers.
        phases: named stretches of rounds.
        buffers: float buffers (batch-norm statistics) are averaged, stay on the device, or are dropped;
            integer buffers are never averaged.
        on_refusal: what a seat keeps when its update was not used.
        headline: which figure is the run's accuracy.
        needs: fields of the spec that must have these values, such as `client: edge`.
    """

    name: str
    paper: str
    params: type[Record] = NoParams
    cloud: CloudHooks = field(default_factory=CloudHooks)
    edge: EdgeHooks = field(default_factory=EdgeHooks)
    device: DeviceHooks = field(default_factory=DeviceHooks)
    broadcast: type[Record] = Broadcast
    message: type[Record] | None = None
    update: type[Record] = Update
    report: type[Record] | None = None
    cloud_state: type[Record] = GlobalModel
    edge_state: type[Record] = EdgeModel
    device_state: type[Record] = OwnBuffers
    phases: Callable[[ExperimentSpec, Any], tuple[Phase, ...]] = one_phase
    buffers: Literal["average", "local", "drop"] = "average"
    on_refusal: Literal["keep", "revert"] = "keep"
    headline: Literal["global model", "mean over clients"] = "global model"
    needs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_update_type(self.update)

    @property
    def message_type(self) -> type[Record]:
        """What a seat gets."""
        return self.message or self.broadcast

    def check_spec(self, spec: ExperimentSpec) -> None:
        """Refuse a spec that does not fit.

        Raises:
            BadInput: with the path of the field.
        """
        self.parse_params(spec.algorithm.params)
        for name, value in self.needs.items():
            if getattr(spec, name) != value:
                raise BadInput(f"{self.name} needs {name}: {value}, not {getattr(spec, name)}", field=name)

    def parse_params(self, raw: Mapping[str, Any]) -> Record:
        """Validate the algorithm's own parameters.

        Raises:
            BadInput: with the path of the field.
        """
        try:
            return self.params.model_validate(dict(raw))
        except ValidationError as error:
            known = ", ".join(self.params.model_fields) or "none"
            found = explain(error, prefix=("algorithm", "params"))
            raise BadInput(f"{found.detail}; parameters of {self.name}: {known}", field=found.field) from None
