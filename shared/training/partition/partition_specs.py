"""The partition of a spec: one frozen model for each partitioner, distinguished by `name`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from shared.core.plugins import NAME
from shared.core.records import LEFT_OUT
from shared.core.validation import no_repeats

Alpha = Annotated[float, Field(ge=1e-3, le=1e6, allow_inf_nan=False)]
MinSamples = Annotated[int, Field(ge=1, le=100_000)]
QuantitySkew = Annotated[float, Field(ge=0, le=3, allow_inf_nan=False)]


class BasePartition(BaseModel):
    """The parameters of every partitioner.

    Attributes:
        quantity_skew: sigma of the log-normal distribution to whose draws the clients' numbers of samples are
            proportional; None or 0 means equal numbers. Refused by partitioners whose method determines the numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    quantity_skew: QuantitySkew | None = None


class _SetsSizes(BasePartition):
    """A partitioner whose method determines the clients' numbers of samples."""

    @field_validator("quantity_skew")
    @classmethod
    def _refuse_skew(cls, value: float | None) -> float | None:
        if value is not None:
            raise ValueError("this partition determines the sizes itself; quantity_skew goes with iid and edge_skew")
        return value


class ByClassPartition(BasePartition):
    """A partitioner that divides samples by their labels, which are the classes unless it says otherwise.

    Attributes:
        by: `group`: the labels are the data's groups (writers, hospitals, machines), not its targets.
        bins: number of bins of equally many samples, cut through the target, which must be one number; they are the
            labels.
    """

    by: Annotated[Literal["group"] | None, LEFT_OUT] = None
    bins: Annotated[Annotated[int, Field(ge=2, le=1000)] | None, LEFT_OUT] = None

    @model_validator(mode="after")
    def _has_one_label(self) -> Self:
        if self.by is not None and self.bins is not None:
            raise ValueError("by and bins: labels are groups or bins, not both")
        return self


class IidPartition(BasePartition):
    """A random part for each client, of equal sizes (within one sample) or log-normal sizes."""

    name: Literal["iid"] = "iid"


class DirichletPartition(_SetsSizes, ByClassPartition):
    """Each class is divided among the clients by a draw from Dir(alpha).

    Attributes:
        alpha: concentration of the Dirichlet distribution; a small one gives skewed labels and sizes.
        min_samples: least number of samples of a client. Clients with fewer get single samples of the largest client's
            largest class; drawing again instead might never end. The default leaves one sample to train on and one to
            test on.
    """

    name: Literal["dirichlet"] = "dirichlet"
    alpha: Alpha = 0.5
    min_samples: MinSamples = 2


class ShardsPartition(_SetsSizes, ByClassPartition):
    """Samples are sorted by label and cut into shards; each client gets `classes_per_device` shards.

    Shards are cut within classes, and a client's shards have different classes, so that it has exactly
    `classes_per_device` classes. If that is impossible (fewer shards than classes, or a class is too small), equal
    shards are cut across classes as in McMahan et al., and a client may have more or fewer classes.
    """

    name: Literal["shards"] = "shards"
    classes_per_device: Annotated[int, Field(ge=1, le=1000)] = 2


class ByWriterPartition(_SetsSizes):
    """Groups, such as writers, are assigned whole, the largest first, each to the client with the fewest samples."""

    name: Literal["by_writer"] = "by_writer"


class ByGroupPartition(_SetsSizes, ByClassPartition):
    """Consecutive clients form groups, and each group owns consecutive classes.

    Attributes:
        n_groups: number of groups.
        gamma: share of every class that is divided evenly among its group's clients; the rest is divided evenly among
            all clients.
    """

    name: Literal["by_group"] = "by_group"
    n_groups: Annotated[int, Field(ge=1, le=1000)] = 5
    gamma: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.8


class EdgeSkewPartition(ByClassPartition):
    """Each edge has a label mix drawn from Dir(alpha * K * class shares), which all its devices share.

    Sizes are equal (or log-normal) whatever the mixes: iterative proportional fitting (Deming and Stephan, 1940) fits
    the draws to the given sizes and class totals and keeps their odds ratios.
    """

    name: Literal["edge_skew"] = "edge_skew"
    alpha: Alpha = 0.5


class ByDomainPartition(_SetsSizes):
    """Each client has images of one domain; the domains are assigned to clients in turn.

    A client has the classes in the proportions of its domain. Images that no client gets are left out.

    Attributes:
        domains: names of the domains that clients have, in this order; None means all domains of the data. Other
            domains are unseen.
        per_client: number of training images of each client; `smallest`: as many as a client of the smallest share can
            get; `all`: each domain is divided completely among its clients.
    """

    name: Literal["by_domain"] = "by_domain"
    domains: Annotated[tuple[str, ...], Field(min_length=1, max_length=20), AfterValidator(no_repeats)] | None = None
    per_client: Literal["smallest", "all"] | Annotated[int, Field(ge=1, le=10**9)] = "smallest"


class SampledPartition(_SetsSizes, ByClassPartition):
    """Each device draws its samples by itself, so that any number of devices can share a data set.

    A device's class mix is a draw from Dir(alpha). Its samples differ from each other; devices may have the same ones.

    Attributes:
        samples: number of training samples of each device.
        alpha: concentration of the Dirichlet distribution; a small one gives skewed labels.
        test_samples: number of test images of each device, by the same mix; None means in the data set's proportion of
            test images to training images, at least 1. With `test_fraction`, the device's own samples are divided.
    """

    name: Literal["sampled"] = "sampled"
    samples: Annotated[int, Field(ge=1, le=100_000)] = 20
    alpha: Alpha = 0.5
    test_samples: Annotated[int, Field(ge=1, le=100_000)] | None = None


BuiltInDealt = (
    IidPartition
    | DirichletPartition
    | ShardsPartition
    | ByWriterPartition
    | ByGroupPartition
    | EdgeSkewPartition
    | ByDomainPartition
)
"""The parameters of the built-in partitioners that deal each sample to one client."""
BUILT_IN: dict[str, type[BasePartition]] = {
    "iid": IidPartition,
    "dirichlet": DirichletPartition,
    "shards": ShardsPartition,
    "by_writer": ByWriterPartition,
    "by_group": ByGroupPartition,
    "edge_skew": EdgeSkewPartition,
    "by_domain": ByDomainPartition,
    "sampled": SampledPartition,
}
"""The built-in partitioners by name."""


class PluggedPartition(_SetsSizes):
    """A partitioner of a plug-in; further fields are its parameters."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(pattern=NAME, json_schema_extra={"not": {"enum": [*BUILT_IN]}})

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, which are not checked yet."""
        return dict(self.model_extra or {})


DealtPartition = BuiltInDealt | PluggedPartition
"""The parameters of the partitioners that deal each sample to one client."""
_OF_PLUG_INS = "object"
"""As the type is called in the JSON schema, by which errors find the field."""


def _tag(raw: Any) -> str:
    """The name of a built-in partitioner; all others are those of plug-ins."""
    name = raw.get("name") if isinstance(raw, Mapping) else getattr(raw, "name", None)
    return name if isinstance(name, str) and name in BUILT_IN else _OF_PLUG_INS


PartitionSpec = Annotated[
    Annotated[IidPartition, Tag("iid")]
    | Annotated[DirichletPartition, Tag("dirichlet")]
    | Annotated[ShardsPartition, Tag("shards")]
    | Annotated[ByWriterPartition, Tag("by_writer")]
    | Annotated[ByGroupPartition, Tag("by_group")]
    | Annotated[EdgeSkewPartition, Tag("edge_skew")]
    | Annotated[ByDomainPartition, Tag("by_domain")]
    | Annotated[SampledPartition, Tag("sampled")]
    | Annotated[PluggedPartition, Tag(_OF_PLUG_INS)],
    Discriminator(_tag),
]
"""The parameters of any partitioner."""
