"""Parts of an experiment's description that several of its fields share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import Field, model_validator

from shared.core.bounds import BUFFER_BOUND, LARGEST_DEVICES, PARAMETER_BOUND
from shared.core.number_sets import NumberSet
from shared.core.plugins import NAME
from shared.core.records import Record
from shared.core.validation import ID

LARGEST_COUNT = 100_000
"""Most rounds of a run."""
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
DeviceCount = Annotated[int, Field(ge=1, le=LARGEST_DEVICES)]
SELECTIONS = ("all", "random", "fastest", "power_of_choice")
"""Names of the built-in selection policies, which `shared.federation.selection` implements."""
Selection = Annotated[str, Field(pattern=NAME, json_schema_extra={"enum": list(SELECTIONS)})]
"""The name of a selection policy; plug-ins may bring others."""


class LocalSpec(Record):
    """The algorithm whose local objective devices minimise, and its parameters."""

    name: str = Field(pattern=NAME)
    params: dict[str, Any] = Field(default_factory=dict, max_length=1000)


class AlgorithmSpec(Record):
    """The algorithm and its parameters; `local` names another algorithm whose local objective its devices minimise."""

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
        visit_s: limit on computing one visit.
        ready_s: how long a run waits for enough edges and devices.
        reseat_after_s: how long a lost agent's seats, or a lost edge's place, stay reserved for its return.
    """

    visit_s: float = Field(default=300.0, gt=0, le=86_400)
    ready_s: float = Field(default=120.0, gt=0, le=86_400)
    reseat_after_s: float = Field(default=60.0, ge=0, le=86_400)


class LostVisits(Record):
    """Visits that are left out of a round as if they had failed, to repeat the losses of another run.

    Attributes:
        round_no: the round, from 1.
        seats: the seats whose visits are left out.
        edge_round, wave: the only edge round and wave concerned; None means all.
    """

    round_no: Count
    seats: NumberSet
    edge_round: Annotated[int, Field(ge=0, lt=10**6)] | None = None
    wave: Annotated[int, Field(ge=0, lt=1000)] | None = None


class SumBounds(Record):
    """The largest absolute values of elements of updates, up to which sums over devices are exact.

    A larger bound makes the steps coarser to which elements are rounded, a smaller one finer.

    Attributes:
        parameters: of parameters.
        buffers: of buffers, such as batch-norm statistics.
    """

    parameters: Annotated[float, Field(ge=2.0**-10, le=2.0**30)] = PARAMETER_BOUND
    buffers: Annotated[float, Field(ge=2.0**-10, le=2.0**30)] = BUFFER_BOUND


class Stop(Record):
    """When a run ends before its last round; of several conditions the first that holds.

    Attributes:
        accuracy: the run's headline accuracy, in `times` evaluations one after another.
        times: number of evaluations in a row that reach `accuracy`.
        simulated_s: simulated seconds of the run.
        bytes: link bytes of the run, up and down.
        joules: energy of all visits of the run.
    """

    accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    times: Annotated[int, Field(ge=1, le=1000)] = 1
    simulated_s: Annotated[float, Field(gt=0, le=1e12)] | None = None
    bytes: Annotated[int, Field(gt=0, le=2**63 - 1)] | None = None
    joules: Annotated[float, Field(gt=0, le=1e15)] | None = None

    @model_validator(mode="after")
    def _has_a_condition(self) -> Stop:
        if all(limit is None for limit in (self.accuracy, self.simulated_s, self.bytes, self.joules)):
            raise ValueError("at least one of accuracy, simulated_s, bytes and joules is needed")
        if self.times > 1 and self.accuracy is None:
            raise ValueError("times counts evaluations that reach accuracy, which is missing")
        return self


class Init(Record):
    """The model with which a run begins, in place of the seeded one: that of a run, or one in a file.

    Attributes:
        run: a run's id.
        model: the name of one of its models.
        file: a safetensors file, by its path relative to the cloud's folder of data or of results.
    """

    run: Annotated[str, Field(pattern=ID)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] = "global"
    file: Annotated[str, Field(min_length=1, max_length=500)] | None = None

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
    def field(self) -> str:
        """The path of the field that names the place."""
        return "init.file" if self.run is None else "init.run"
