"""FedAvg's records, which are the hooks' defaults, and the type variables of an algorithm's own records."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import TypeVar

from shared.core.records import LEFT_OUT, Nothing, Record
from shared.core.tensor_records import ModelState
from shared.core.update_annotations import Mean
from shared.core.validation import no_repeats

_Name = Annotated[str, Field(min_length=1, max_length=500)]
ModuleNames = Annotated[tuple[_Name, ...], Field(min_length=1, max_length=1000), AfterValidator(no_repeats)]
"""Names of modules or tensors of a model, as a parameter of an algorithm."""


class PersonalParams(Record):
    """The parameters of an algorithm with personal layers: it counts them from the output, or a spec names them.

    Attributes:
        count: name of the parameter that is their number.
        personal: in its place, names of the modules or tensors that are personal.
    """

    count: ClassVar[str] = "personal_layers"
    personal: Annotated[ModuleNames | None, LEFT_OUT] = Field(
        default=None, description="names of the modules or tensors that are personal, in place of their number."
    )

    @model_validator(mode="after")
    def _counted_or_named(self) -> Self:
        if self.personal is not None and getattr(self, self.count) != type(self).model_fields[self.count].default:
            raise ValueError(f"personal names the layers: leave out {self.count}")
        return self


class Broadcast(Record):
    """Down: the global model from the cloud, the edge's model from an edge."""

    model: ModelState


class Update(Record):
    """Up: trained minus received, averaged by number of samples."""

    delta: Annotated[ModelState, Mean(weight="samples")]


class GlobalModel(Record):
    """The cloud's state: the global model."""

    model: ModelState


class EdgeModel(Record):
    """The edge's state, empty between rounds; the default hooks keep the fields that a subclass adds.

    Attributes:
        start: the model from which the present edge round starts.
        received: the model received from the cloud in this round.
        model: the edge's model, after the last dispatch.
    """

    start: ModelState = Field(default_factory=dict)
    received: ModelState = Field(default_factory=dict)
    model: ModelState = Field(default_factory=dict)


class OwnBuffers(Record):
    """The device's state: its own batch-norm statistics, if they stay local."""

    buffers: ModelState = Field(default_factory=dict)


# ---- the records that an algorithm's hook classes name; FedAvg's unless they are named

CloudState = TypeVar("CloudState", bound=GlobalModel, default=GlobalModel)
EdgeState = TypeVar("EdgeState", bound=EdgeModel, default=EdgeModel)
DeviceState = TypeVar("DeviceState", bound=Record, default=OwnBuffers)
Down = TypeVar("Down", bound=Broadcast, default=Broadcast)
Up = TypeVar("Up", bound=Record, default=Update)
Message = TypeVar("Message", bound=Broadcast, default=Down)
Report = TypeVar("Report", bound=Record, default=Nothing)
