"""What a spec says of a partition: one frozen model for each partitioner, told apart by `name`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from shared.core.validation import no_repeats

Alpha = Annotated[float, Field(ge=1e-3, le=1e6, allow_inf_nan=False)]
MinSamples = Annotated[int, Field(ge=1, le=100_000)]
QuantitySkew = Annotated[float, Field(ge=0, le=3, allow_inf_nan=False)]


class BasePartition(BaseModel):
    """What all partitioners have.

    Attributes:
        quantity_skew: sigma of the log-normal from which the clients' sizes are drawn, in proportion; None
            or 0 = equal sizes. Refused by partitioners whose method sets the sizes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    quantity_skew: QuantitySkew | None = None


class _SetsSizes(BasePartition):
    """A partitioner whose sizes follow from its method."""

    @field_validator("quantity_skew")
    @classmethod
    def _refuse_skew(cls, value: float | None) -> float | None:
        if value is not None:
            raise ValueError("this partition sets sizes itself; quantity_skew goes with iid and edge_skew")
        return value


class IidPartition(BasePartition):
    """A random part for each client, of equal sizes (to one sample) or of log-normal ones."""

    name: Literal["iid"] = "iid"


class DirichletPartition(_SetsSizes):
    """Each class divided among the clients by a draw from Dir(alpha); small alpha = skewed labels and sizes.

    Attributes:
        min_samples: each client gets at least this many, by a repair, not by redrawing (which may never end):
            the poorest client takes one sample after another of the largest client's largest class. The
            default leaves one to train on and one to test on.
    """

    name: Literal["dirichlet"] = "dirichlet"
    alpha: Alpha = 0.5
    min_samples: MinSamples = 2


class ShardsPartition(_SetsSizes):
    """Samples sorted by label, cut into shards and dealt, `classes_per_device` to each client.

    Shards are cut within the classes and a client's shards are of different classes, so that it has exactly
    `classes_per_device` of them. Where that cannot be (fewer shards than classes, or a class too small),
    equal shards are cut across classes as in McMahan et al., and a client may have more or fewer classes.
    """

    name: Literal["shards"] = "shards"
    classes_per_device: Annotated[int, Field(ge=1, le=1000)] = 2


class ByWriterPartition(_SetsSizes):
    """Whole writers, the largest first, each to the client with the fewest samples so far."""

    name: Literal["by_writer"] = "by_writer"


class ByGroupPartition(_SetsSizes):
    """Clients in groups by number, classes owned by groups in order.

    Attributes:
        gamma: share of every class that goes evenly to the clients of its group; the rest evenly to
            everybody.
    """

    name: Literal["by_group"] = "by_group"
    n_groups: Annotated[int, Field(ge=1, le=1000)] = 5
    gamma: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.8


class EdgeSkewPartition(BasePartition):
    """A label mix for each edge, drawn from Dir(alpha * K * class shares); the devices of one edge are alike.

    Sizes are equal (or log-normal) whatever the mixes: the draws are brought to the given sizes and class
    totals by iterative proportional fitting (Deming and Stephan, 1940), which keeps their odds ratios.
    """

    name: Literal["edge_skew"] = "edge_skew"
    alpha: Alpha = 0.5


class ByDomainPartition(_SetsSizes):
    """Each client has images of one domain: of the first, the second, ..., and then of the first again.

    The classes of a client are in the proportions of its domain. Images that nobody gets are left out.

    Attributes:
        domains: those that clients have, in this order, by the names of the sets; None = all of the data. The others
            are unseen.
        per_client: how many training images; `smallest`: as many for each as the poorest client could have; `all`:
            each domain is dealt out.
    """

    name: Literal["by_domain"] = "by_domain"
    domains: Annotated[tuple[str, ...], Field(min_length=1, max_length=20), AfterValidator(no_repeats)] | None = None
    per_client: Literal["smallest", "all"] | Annotated[int, Field(ge=1, le=10**9)] = "smallest"


PartitionSpec = Annotated[
    IidPartition
    | DirichletPartition
    | ShardsPartition
    | ByWriterPartition
    | ByGroupPartition
    | EdgeSkewPartition
    | ByDomainPartition,
    Field(discriminator="name"),
]
"""Any partitioner's parameters."""
