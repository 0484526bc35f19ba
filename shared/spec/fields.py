"""Parts of an experiment's description that several of its fields share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from shared.core.bounds import BUFFER_BOUND, LARGEST_DEVICES, LARGEST_EDGES, PARAMETER_BOUND
from shared.core.formatting import counted, label_of
from shared.core.number_sets import NumberSet
from shared.core.plugins import NAME, PluginParams
from shared.core.records import LEFT_OUT, Record
from shared.core.scores import MAX_METRICS
from shared.core.validation import ID, Names, no_repeats
from shared.simulation.telemetry import TelemetrySpec

LARGEST_COUNT = 100_000
"""Most rounds of a run."""
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
DeviceCount = Annotated[int, Field(ge=1, le=LARGEST_DEVICES)]


def _number_or_list(raw: Any) -> Any:
    if isinstance(raw, str):
        raise ValueError("must be a whole number, or a list with one for each edge, such as [1, 3]")
    return raw


EdgeRoundCount = Annotated[int, Field(ge=1, le=1000)]
EdgeRounds = Annotated[
    Annotated[EdgeRoundCount, Tag("integer")]
    | Annotated[tuple[EdgeRoundCount, ...], Field(min_length=1, max_length=LARGEST_EDGES), Tag("array")],
    Discriminator(lambda raw: "array" if isinstance(raw, list | tuple) else "integer"),
    BeforeValidator(_number_or_list),
]
"""Edge rounds in a cloud round: of every edge, or of each edge in the order of their numbers."""
Twins = Annotated[
    Annotated[bool, Tag("boolean")] | Annotated[TelemetrySpec, Tag("object")],
    Discriminator(lambda raw: "object" if isinstance(raw, Mapping | TelemetrySpec) else "boolean"),
]
"""Whether edges keep digital twins, or how devices report to them."""
SELECTIONS = ("all", "random", "fastest", "power_of_choice")
"""Names of the built-in selection policies, which `shared.federation.selection` implements."""
Selection = Annotated[str, Field(pattern=NAME, json_schema_extra={"enum": list(SELECTIONS)})]
"""The name of a selection policy; plug-ins may bring others."""


Schedule = Annotated[
    Literal["own_data", "equal", "free_compute", "finish_time"],
    Field(
        description="who trains on which samples: `own_data`: each device on its own; `equal`: the chosen ones share "
        "the samples evenly; `free_compute`, `finish_time`: shares are planned by digital twins."
    ),
]
Association = Annotated[
    Literal["balanced", "latency"],
    Field(description="which edge a device belongs to: `balanced`: in turn; `latency`: the one it reaches fastest."),
]


def check_edge_rounds(edge_rounds: EdgeRounds, n_edges: int | None) -> None:
    """Check that a list of edge rounds has one entry for each edge, as far as their number is known.

    Raises:
        ValueError: it has too few or too many.
    """
    if isinstance(edge_rounds, tuple) and len(edge_rounds) != (n_edges or len(edge_rounds)):
        found = f"{counted(len(edge_rounds), 'number')} for {counted(n_edges or 0, 'edge')}"
        raise ValueError(f"edge_rounds has {found}; a list has one for each edge")


class LocalSpec(Record):
    """The algorithm whose local objective devices minimise.

    Attributes:
        name: its name.
        params: its parameters.
    """

    name: str = Field(pattern=NAME)
    params: dict[str, Any] = Field(default_factory=dict, max_length=1000)


class AlgorithmSpec(Record):
    """The algorithm of a run.

    Attributes:
        name: its name.
        params: its parameters.
        local: another algorithm whose local objective the devices minimise; None means the algorithm's own.
    """

    name: str = Field(default="fedavg", pattern=NAME)
    params: dict[str, Any] = Field(default_factory=dict, max_length=1000)
    local: LocalSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, raw: Any) -> Any:
        """Expand the short form: `local: fedser` is `local: {name: fedser}`."""
        if isinstance(raw, Mapping) and isinstance(raw.get("local"), str):
            return {**raw, "local": {"name": raw["local"]}}
        return raw

    def __str__(self) -> str:
        return self.name if self.local is None else f"{self.name}, local {self.local.name}"


class Choice(Record):
    """A loss or a metric.

    Attributes:
        name: its name.
        params: its parameters.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    params: PluginParams = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, raw: Any) -> Any:
        """Expand the short form: `loss: mae` is `loss: {name: mae}`."""
        return {"name": raw} if isinstance(raw, str) else raw

    def __str__(self) -> str:
        return label_of(self.name, self.params)


def _one_metric(raw: Any) -> Any:
    """Expand the short form: `metrics: f1` is `metrics: [f1]`."""
    return [raw] if isinstance(raw, str | Mapping) else raw


Metrics = Annotated[
    tuple[Choice, ...],
    Field(max_length=MAX_METRICS, exclude_if=lambda metrics: not metrics),
    BeforeValidator(_one_metric),
    AfterValidator(no_repeats),
]
"""The metrics of a run, left out of the spec where it names none."""


class Vectorised(Record):
    """Training of many devices at once, with their tensors stacked.

    Attributes:
        width: number of devices in a stack; places without a device are filled with dummies, so that it decides the
            shapes of all computations, whatever the number of devices is that an agent hosts.
    """

    width: int = Field(ge=1, le=4096)


class Timeouts(Record):
    """Wall-clock limits in seconds: when a wait is given up. They never change a result that arrives in time.

    Attributes:
        visit_s: limit on computing one task.
        ready_s: how long a run waits for enough edges and devices.
        reseat_after_s: how long a lost agent's devices, or a lost edge's number, stay reserved for its return.
    """

    visit_s: float = Field(default=300.0, gt=0, le=86_400)
    ready_s: float = Field(default=120.0, gt=0, le=86_400)
    reseat_after_s: float = Field(default=60.0, ge=0, le=86_400)


class LostVisits(Record):
    """Tasks that are left out of a round, to repeat the losses of another run.

    Attributes:
        round_no: the round, from 1.
        seats: the devices whose tasks are left out.
        edge_round, wave: the only edge round and dispatch concerned; None means all.
    """

    round_no: Count
    seats: NumberSet
    edge_round: Annotated[int, Field(ge=0, lt=10**6)] | None = None
    wave: Annotated[int, Field(ge=0, lt=1000)] | None = None


class SumBounds(Record):
    """The largest absolute values of elements of updates; sums over devices are exact whatever the bounds.

    A larger bound makes the steps coarser to which elements are rounded, down to 2^-14, a smaller one finer.

    Attributes:
        parameters: of parameters.
        buffers: of buffers, such as batch-norm statistics; with the usual bound they may be as large as float32 holds.
    """

    parameters: Annotated[float, Field(ge=2.0**-10, le=2.0**127)] = PARAMETER_BOUND
    buffers: Annotated[float, Field(ge=2.0**-10, le=2.0**127)] = BUFFER_BOUND


class Init(Record):
    """The model with which a run begins, in place of the seeded one: that of a run, or one in a file.

    Attributes:
        run: a run's id.
        model: the name of one of its models.
        file: a safetensors file, by its path relative to the cloud's folder of data or of results.
        skip: tensors that the run does not take over but draws by its seed: their names, or those of modules, such as
            `head`. Tensors of these names that only the file has are not used.
        prefix: with which the names of the file's tensors begin and those of the model's do not, such as `module.`;
            tensors without it are not used.
        add_prefix: with which the names of the model's tensors begin and those of the file's do not.
    """

    run: Annotated[str, Field(pattern=ID)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] = "global"
    file: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    skip: Annotated[Names, Field(exclude_if=lambda names: not names)] = ()
    prefix: Annotated[Annotated[str, Field(min_length=1, max_length=200)] | None, LEFT_OUT] = None
    add_prefix: Annotated[Annotated[str, Field(min_length=1, max_length=200)] | None, LEFT_OUT] = None

    @model_validator(mode="after")
    def _is_one_place(self) -> Init:
        if (self.run is None) == (self.file is None):
            raise ValueError("either run or file is needed")
        if self.run == "latest":
            raise ValueError("run: the id of a run is needed; which one is the latest changes")
        if self.file is not None:
            if self.model != "global":
                raise ValueError("model is that of a run; a file has one model")
            path = PurePosixPath(self.file)
            if path.is_absolute() or ".." in path.parts or "\\" in self.file or "\0" in self.file:
                raise ValueError("file: a path within the cloud's folders is needed, relative and without `..`")
        return self

    @property
    def source(self) -> str:
        """The run's id, or the first part of the file's path: the id of a run whose results it may be."""
        return self.run or PurePosixPath(self.file or "").parts[0]

    def skips(self, name: str) -> bool:
        """Return whether `skip` names a tensor, or a module that it belongs to."""
        return any(name == each or name.startswith(f"{each.removesuffix('.')}.") for each in self.skip)

    def renamed(self, name: str) -> str | None:
        """Return the name that a tensor at the place has in the run's model; None if it is not used."""
        if not name.startswith(self.prefix or ""):
            return None
        own = f"{self.add_prefix or ''}{name.removeprefix(self.prefix or '')}"
        return None if self.skips(own) or self.skips(name) else own

    @property
    def field(self) -> str:
        """The path of the field that names the place."""
        return "init.file" if self.run is None else "init.run"
