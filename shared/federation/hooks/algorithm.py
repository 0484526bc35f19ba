"""`Algorithm`: all tiers of one paper as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError
from torch import nn

from shared.core.aggregation_rules import PerClient, coded_fields, fields_with
from shared.core.errors import BadInput
from shared.core.records import Record, Tensor, TensorMap
from shared.core.validation import explain
from shared.federation.aggregation import check_update_type
from shared.federation.context import Context, NoParams
from shared.federation.hooks.hooks import CloudHooks, DeviceHooks, EdgeHooks, travelling
from shared.federation.hooks.values import Broadcast, EdgeModel, GlobalModel, OwnBuffers, Phase, Update
from shared.plots.declared import Pictures, no_pictures
from shared.simulation.cost_model import Passes
from shared.spec.experiment import ExperimentSpec
from shared.training.loop import Objective
from shared.wire.compression import CodecSpec


def one_phase(spec: ExperimentSpec, params: Any) -> tuple[Phase, ...]:
    """The default: all rounds train."""
    return (Phase("train", spec.num_rounds),)


def delta_alone(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """The default: `delta` holds all that travels."""
    return {"delta": travelling(ctx, model)}


def nothing_more(ctx: Context, update: Any) -> None:
    """The default: an update that holds what it should may be any."""


def gathers_nothing(ctx: Context) -> Mapping[str, int]:
    """The default: nobody holds what all clients say."""
    return {}


def training_alone(params: Any) -> Passes:
    """The default: a visit passes each sample of its steps once."""
    return Passes()


Direction = Literal["up", "down"]
"""From devices, or to them."""


def codes_nothing(ctx: Context, model: TensorMap, way: Direction) -> Mapping[str, CodecSpec]:
    """The default: what is coded is the spec's to say."""
    return {}


def no_objective(params: Any) -> bool:
    """The default: hooks hand `fit` none."""
    return False


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
        objective: what training minimises in place of the cross-entropy where hooks hand `fit` nothing, None where it
            is that; a spec may have devices of another algorithm minimise it (`algorithm.local`).
        own_objective: by its parameters, whether hooks hand `fit` an objective: then no other can stand in
            `algorithm.local`.
        flops: operations of a step of what it minimises, in the mean of what it draws, from its parameters, and a
            model, images and labels of which there are the shapes alone; None: those of the cross-entropy.
        needs: fields of the spec that must have these values, such as `client: edge`.
        sends: by field, the names that an averaged map of tensors holds in an update, of a model of which there are the
            shapes alone: in a visit's where the context has a seat, else in the edge's own. What is not named is empty.
        check: raises a `WireError` with the field if an update, or a stand-in of several in which only what is said of
            single clients has its values, cannot be from here. Its types and names are right by then.
        gathers: by the parameter that decides it, bytes at least that one process holds at a time of what all clients
            say, beside tensors by name.
        passes: by its parameters, how many samples a visit passes through the model: what is expected of its time
            goes by that, and how long it is waited for.
        codes: by name, the codec in which it sends a tensor itself, up or down; of a model of which there
            are the shapes alone. What is expected of a transfer goes by that.
        pictures: what it has to show of a run, beside what every run shows.
    """

    name: str
    paper: str
    params: type[Record] = NoParams
    cloud: CloudHooks[Any, Any, Any] = field(default_factory=CloudHooks)
    edge: EdgeHooks[Any, Any, Any, Any, Any] = field(default_factory=EdgeHooks)
    device: DeviceHooks[Any, Any, Any, Any] = field(default_factory=DeviceHooks)
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
    sends: Callable[[Context, TensorMap], Mapping[str, frozenset[str]]] = delta_alone
    check: Callable[[Context, Any], None] = nothing_more
    gathers: Callable[[Context], Mapping[str, int]] = gathers_nothing
    passes: Callable[[Any], Passes] = training_alone
    codes: Callable[[Context, TensorMap, Direction], Mapping[str, CodecSpec]] = codes_nothing
    pictures: Pictures = no_pictures
    objective: Callable[[Context], Objective | None] | None = None
    own_objective: Callable[[Any], bool] = no_objective
    flops: Callable[[Any, nn.Module, Tensor, Tensor], float] | None = None

    def __post_init__(self) -> None:
        check_update_type(self.update)

    @property
    def message_type(self) -> type[Record]:
        """What a seat gets."""
        return self.message or self.broadcast

    @property
    def reports(self) -> bool:
        """Whether a visit reports first, and its update waits for the edge's verdict on that."""
        return self.report is not None

    @property
    def device_remembers(self) -> bool:
        """Whether a seat keeps anything from visit to visit: the default state holds just buffers that stay local."""
        return self.device_state is not OwnBuffers or self.buffers == "local"

    def check_spec(self, spec: ExperimentSpec) -> None:
        """Refuse a spec that does not fit.

        Raises:
            BadInput: with the path of the field.
        """
        self.parse_params(spec.algorithm.params)
        for name, value in self.needs.items():
            if getattr(spec, name) != value:
                raise BadInput(f"{self.name} needs {name}: {value}, not {getattr(spec, name)}", field=name)
        if spec.report_deadline_s is not None and not self.reports:
            raise BadInput(f"report_deadline_s: {self.name} has no reports", field="report_deadline_s")
        if spec.plans and self.report is not None:
            raise BadInput(
                f"schedule: {self.name} decides by reports: of planned shares none is refused", field="schedule"
            )
        if spec.compression.up is not None and not coded_fields(self.update):
            told = f"compression.up: {self.name} sends up no tensors that a codec could shorten"
            raise BadInput(told, field="compression.up")
        alone = fields_with(self.update, PerClient)
        if spec.late == "next_round" and (self.reports or alone):
            why = f"its updates speak of single clients ({', '.join(alone)})" if alone else "it decides by reports"
            raise BadInput(f"late: next_round: {self.name} cannot use updates of other rounds, {why}", field="late")

    def parse_params(self, raw: Mapping[str, Any], field: str = "algorithm.params") -> Record:
        """Validate the algorithm's own parameters, which stand in this field of the spec.

        Raises:
            BadInput: with the path of the field.
        """
        try:
            return self.params.model_validate(dict(raw))
        except ValidationError as error:
            known = ", ".join(self.params.model_fields) or "none"
            found = explain(error, self.params, prefix=field.split("."))
            raise BadInput(f"{found.detail}; parameters of {self.name}: {known}", field=found.field) from None
