"""`Algorithm`: what one paper does at all tiers, as a frozen value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError
from torch import nn

from shared.core.errors import BadInput
from shared.core.records import Record
from shared.core.tensor_records import Tensor, TensorMap
from shared.core.update_annotations import Mean, PerClient, can_be_mean, coded_fields, fields_with
from shared.core.validation import explain
from shared.federation.aggregation import check_update_type
from shared.federation.context import Context, NoParams
from shared.federation.hooks.records import Broadcast, EdgeModel, GlobalModel, OwnBuffers, Update
from shared.federation.hooks.results import Phase
from shared.federation.hooks.tiers import CloudHooks, DeviceHooks, EdgeHooks, uploaded_names
from shared.simulation.cost_model import Passes
from shared.spec.experiment import ExperimentSpec
from shared.training.loop import Objective
from shared.wire.codec_settings import TopKSettings
from shared.wire.compression import Codec


def one_phase(spec: ExperimentSpec, params: Any) -> tuple[Phase, ...]:
    """The default of `phases`: all rounds train."""
    return (Phase("train", spec.num_rounds),)


def delta_alone(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """The default of `sends`: `delta` holds all tensors that travel."""
    return {"delta": uploaded_names(ctx, model)}


def accepts_all(ctx: Context, update: Any) -> None:
    """The default of `check`: every update is valid whose types and tensor names are."""


def gathers_nothing(ctx: Context) -> Mapping[str, int]:
    """The default of `gathers`: no process holds the data of all clients."""
    return {}


def keeps_nothing(ctx: Context) -> frozenset[str]:
    """The default of `personal`: clients share the whole model."""
    return frozenset()


def training_alone(params: Any) -> Passes:
    """The default of `passes`: a task passes each sample of its steps once."""
    return Passes()


Direction = Literal["up", "down"]
"""From devices to the cloud, or from the cloud to devices."""


def codes_nothing(ctx: Context, model: TensorMap, direction: Direction) -> Mapping[str, Codec]:
    """The default of `codes`: only the spec decides what is compressed."""
    return {}


def no_objective(params: Any) -> bool:
    """The default of `own_objective`: hooks pass no objective to `Trainer.fit`."""
    return False


def nothing_forbids(params: Any) -> str | None:
    """The default of `one_by_one`: no parameter keeps devices from being trained many at once."""
    return None


@dataclass(frozen=True)
class Footprint:
    """What an algorithm sends, gathers and computes, as far as its parameters and the model's shapes decide it.

    Estimates of bytes, memory and time go by it, and updates are checked against it. The defaults are FedAvg's. Each
    `model` in it has shapes alone, no values.

    Attributes:
        sends: from context and model, by field of the update, the names of the tensors in an averaged map: of a task's
            update if the context has a device, otherwise of the edge's own. A field that is not named is empty.
        codes: from context, model and direction, by tensor name, the codec that the algorithm itself applies.
        gathers: a lower bound, in bytes, of the per-client data that one process holds at once, by the name of the
            parameter that determines it; tensors by name are not counted here.
        passes: from the algorithm's parameters, how many samples a task passes through the model.
        flops: operations of one training step, from the algorithm's parameters, and a model, images and labels that
            have shapes alone; the mean, if the objective draws at random what it computes. None means those of the
            cross-entropy.
    """

    sends: Callable[[Context, TensorMap], Mapping[str, frozenset[str]]] = delta_alone
    codes: Callable[[Context, TensorMap, Direction], Mapping[str, Codec]] = codes_nothing
    gathers: Callable[[Context], Mapping[str, int]] = gathers_nothing
    passes: Callable[[Any], Passes] = training_alone
    flops: Callable[[Any, nn.Module, Tensor, Tensor], float] | None = None


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: parameters, hooks of the three tiers, types of its messages and states, and its footprint.

    Attributes:
        name: the name of its module.
        paper: authors, title, venue.
        params: record type of the algorithm's own parameters.
        cloud: the hooks of the cloud.
        edge: the hooks of edges.
        device: the hooks of devices.
        broadcast: record type of the message from cloud to edges.
        message: record type of the message from an edge to a device; None means that of the broadcast.
        update: record type of the update; the annotations of its fields decide how it is aggregated.
        report: record type of the small answer that is sent before an update; None unless the algorithm decides by
            reports which updates it admits.
        cloud_state: record type of what the cloud remembers between rounds.
        edge_state: that of an edge.
        device_state: that of a device.
        phases: from spec and parameters, the named stretches of rounds.
        samples: what it is defined for: `any` samples, `numbers` (float32, images too), or `images` alone.
        targets: the kinds of targets that it is defined for; None means all.
        dtypes: the dtypes of parameters that it is defined for: `any` floats, or `float32` alone.
        buffers: whether float buffers (batch-norm statistics) are averaged, stay on the device, or are dropped;
            integer buffers are never averaged.
        on_refusal: whether a device whose update was not used keeps the state of that task.
        personal: from the context of a client's tier, the names of the tensors that clients do not share as in FedAvg.
        headline: which score is the run's accuracy.
        needs: fields of the spec that must have these values, such as `client: edge`.
        asynchronous: whether tiers may aggregate its updates as they come, with constant staleness weights or with any.
        check: validates an update (or, for a sum, a stand-in that has real values only in its per-client fields);
            raises `WireError` naming the field. Called after types and tensor names have been checked.
        objective: from the context, the loss that training minimises where hooks pass none to `Trainer.fit`; None means
            the cross-entropy. A spec may let the devices of another algorithm minimise it (`algorithm.local`).
        adds_delta: whether an `aggregate` of its own only adds the update's `delta`, perhaps times a rate, to a model;
            a server optimiser may then put its step in the place of `delta`. The default hooks do.
        sends_models: whether updates hold models, or weights of them, in place of changes.
        own_objective: from the parameters, whether hooks pass an objective to `Trainer.fit`; `algorithm.local` is then
            refused.
        one_by_one: from the parameters, why devices that train once cannot be trained many at once; None if they can.
        footprint: what it sends, gathers and computes, from which bytes, memory and times are estimated.
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
    samples: Literal["any", "numbers", "images"] = "any"
    targets: tuple[Literal["classes", "numbers", "tokens"], ...] | None = None
    dtypes: Literal["any", "float32"] = "any"
    buffers: Literal["average", "local", "drop"] = "average"
    on_refusal: Literal["keep", "revert"] = "keep"
    personal: Callable[[Context], frozenset[str]] = keeps_nothing
    headline: Literal["global model", "mean over clients"] = "global model"
    needs: Mapping[str, Any] = field(default_factory=dict)
    asynchronous: Literal["no", "unweighted", "yes"] = "no"
    check: Callable[[Context, Any], None] = accepts_all
    objective: Callable[[Context], Objective | None] | None = None
    adds_delta: bool = False
    sends_models: bool = False
    own_objective: Callable[[Any], bool] = no_objective
    one_by_one: Callable[[Any], str | None] = nothing_forbids
    footprint: Footprint = field(default_factory=Footprint)

    def __post_init__(self) -> None:
        check_update_type(self.update)

    @property
    def message_type(self) -> type[Record]:
        """Record type of the message to a device."""
        return self.message or self.broadcast

    @property
    def reports(self) -> bool:
        """Whether tasks send a report first, and their update only after the edge has admitted it."""
        return self.report is not None

    @property
    def device_remembers(self) -> bool:
        """Whether a device has a state to keep between tasks; the default state has buffers only if they stay local."""
        return self.device_state is not OwnBuffers or self.buffers == "local"

    @property
    def takes_server_optimizer(self) -> bool:
        """Whether an optimiser at cloud or edge can change the step that a mean update makes."""
        hooks = (getattr(type(self.cloud), "aggregate", None), getattr(type(self.edge), "aggregate", None))
        return self.adds_delta or hooks == (CloudHooks.aggregate, EdgeHooks.aggregate)

    @property
    def trains_by_default(self) -> bool:
        """Whether its devices train as FedAvg's do: on all samples of their task, and in no other way."""
        return self.trains_once and getattr(type(self.device), "learned", None) is DeviceHooks.learned

    @property
    def trains_once(self) -> bool:
        """Whether a task trains once, as `DeviceHooks.training` says, so that tasks can train many at once."""
        return getattr(type(self.device), "local_update", None) is DeviceHooks.local_update

    def check_spec(self, spec: ExperimentSpec) -> None:
        """Check that a spec is one that this algorithm can run.

        Raises:
            BadInput: with the path of the field.
        """
        params = self.parse_params(spec.algorithm.params)
        for name, value in self.needs.items():
            given = getattr(spec, name)
            if given != value:
                given = [*given] if isinstance(given, tuple) else given
                raise BadInput(f"{self.name} needs {name}: {value}, not {given}", field=name)
        own = f"the devices of {self.name} train in a `local_update` of their own, which can be run one by one only"
        why = self.one_by_one(params) if self.trains_once else own
        if spec.vectorised is not None and why is not None:
            raise BadInput(f"vectorised: {why}", field="vectorised")
        self._check_sync(spec)
        if spec.report_deadline_s is not None and not self.reports:
            raise BadInput(
                f"report_deadline_s: devices of {self.name} announce nothing before they send their updates",
                field="report_deadline_s",
            )
        if spec.plans and self.report is not None:
            why = f"{self.name} decides by reports, but no update of a planned share may be refused"
            raise BadInput(f"schedule: {why}", field="schedule")
        if spec.collected == "travels" and self.report is not None:
            why = f"{self.name} decides by reports, which would wait behind samples"
            raise BadInput(f"collected: {why}", field="collected")
        self._check_compression(spec)
        per_client = fields_with(self.update, PerClient)
        if spec.late == "next_round" and (self.reports or per_client):
            why = "it decides by reports"
            if per_client:
                why = f"fields of its updates are collected per client ({', '.join(per_client)})"
            raise BadInput(f"late: next_round: {self.name} cannot use updates of other rounds, {why}", field="late")

    def _check_compression(self, spec: ExperimentSpec) -> None:
        """Check that codecs can compress what devices and edges of this algorithm send up."""
        found = {"compression.up": spec.compression.up, "edge_compression.up": spec.edge_compression.up}
        fields = [name for name, codec in found.items() if codec is not None]
        if fields and not coded_fields(self.update):
            why = f"{self.name} sends up no tensors that a codec could compress"
            raise BadInput(f"{fields[0]}: {why}", field=fields[0])
        for name in fields if self.sends_models else ():
            own = name == "compression.up" and self.footprint.codes is not codes_nothing
            if isinstance(found[name], TopKSettings) and not own:
                why = f"{self.name} sends up models, not changes of them: topk would set most of their weights to 0"
                raise BadInput(f"{name}: {why}", field=name)
        if "edge_compression.up" in fields and not can_be_mean(self.update) and not self.edges_form_models(spec):
            summed = [name for name, how in fields_with(self.update, Mean).items() if how.per_position or how.by_group]
            why = f"edges send exact sums, since {', '.join(summed)} of its updates are averaged by position or group"
            raise BadInput(f"edge_compression.up: {self.name}: {why}", field="edge_compression.up")

    def edges_form_models(self, spec: ExperimentSpec) -> bool:
        """Whether edges form models of their own in the last phase."""
        params = self.parse_params(spec.algorithm.params)
        phase = self.phases(spec, params)[-1].name
        ctx: Context[Any] = Context(spec=spec, params=params, phase=phase, round_no=1, n_clients=1, edge=0)
        try:
            return self.edge.forms_model(ctx)
        except BadInput:  # it asks for the layers that an edge keeps, which are not known here
            return True

    def _check_sync(self, spec: ExperimentSpec) -> None:
        """Check that this algorithm is defined for tiers that do not wait for all answers."""
        devices, edges = spec.sync.devices, spec.sync.edges
        loose = {"sync.devices": devices.asynchronous, "sync.edges": edges.mode != "synchronous"}
        for name, sync in (("sync.devices", devices), ("sync.edges", edges)):
            if not loose[name]:
                continue
            if self.asynchronous == "no":
                raise BadInput(f"{self.name} is not defined for {name}: {sync.mode}", field=name)
            self._check_loose_update(name)
            if self.asynchronous == "unweighted" and sync.staleness.name != "constant":
                why = f"{self.name} adds up changes, whose weights have to be equal"
                raise BadInput(f"{name}.staleness: {why}", field=f"{name}.staleness")

    def _check_loose_update(self, tier: str) -> None:
        """Check that updates can count as they come, whatever the algorithm says of itself."""
        per_client = ", ".join(fields_with(self.update, PerClient))
        if self.reports or per_client:
            why = "devices send reports first" if self.reports else f"{per_client} of its updates come once per client"
            raise BadInput(f"{tier}: {self.name} needs tiers that wait for all: {why}", field=tier)

    def parse_params(self, raw: Mapping[str, Any], field: str = "algorithm.params") -> Record:
        """The algorithm's own parameters, validated; `field` is their path in the spec.

        Raises:
            BadInput: with the path of the wrong field.
        """
        try:
            return self.params.model_validate(dict(raw))
        except ValidationError as error:
            known = ", ".join(self.params.model_fields) or "none"
            found = explain(error, self.params, prefix=field.split("."))
            raise BadInput(f"{found.detail}; parameters of {self.name}: {known}", field=found.field) from None
