"""The optimisers that a spec may name for servers: the cloud, and edges that form models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shared.core.records import Record

Rate = Annotated[float, Field(gt=0, le=1e3)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""The share of a moment that is kept at a step."""
Tau = Annotated[float, Field(ge=1e-12, le=1e3)]
"""What is added to the root of the second moment."""


class ServerSgd(Record):
    """SGD: adds `lr` times the mean update; with 1 that is FedAvg.

    Attributes:
        lr: the factor of the mean update.
    """

    name: Literal["sgd"]
    lr: Rate = 1.0


class ServerMomentum(Record):
    """SGD with momentum `beta1`.

    Attributes:
        lr: the factor of the mean update.
        beta1: momentum.
    """

    name: Literal["momentum"]
    lr: Rate = 1.0
    beta1: Decay = 0.9


class ServerAdagrad(Record):
    """Adagrad; `beta1` is the decay of the first moment.

    Attributes:
        lr: the step size.
        beta1: share of the first moment that is kept at a step.
        tau: what is added to the root of the second moment.
    """

    name: Literal["adagrad"]
    lr: Rate = 0.01
    beta1: Decay = 0.0
    tau: Tau = 1e-3


class ServerAdam(Record):
    """Adam; `beta1` and `beta2` are the decays of the two moments.

    Attributes:
        lr: the step size.
        beta1: share of the first moment that is kept at a step.
        beta2: share of the second moment that is kept at a step.
        tau: what is added to the root of the second moment.
    """

    name: Literal["adam"]
    lr: Rate = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: Tau = 1e-3


class ServerYogi(Record):
    """Yogi; `beta1` is the decay of the first moment, and 1 - `beta2` the rate at which the second changes.

    Attributes:
        lr: the step size.
        beta1: share of the first moment that is kept at a step.
        beta2: 1 less the rate at which the second moment changes.
        tau: what is added to the root of the second moment.
    """

    name: Literal["yogi"]
    lr: Rate = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: Tau = 1e-3


ServerOptimizer = ServerSgd | ServerMomentum | ServerAdagrad | ServerAdam | ServerYogi


class ServerOptimizers(Record):
    """The optimisers with which the cloud, and edges that form models, apply mean updates; None: they add them.

    Attributes:
        cloud: that of the cloud.
        edges: that of edges that form models.
    """

    cloud: Annotated[ServerOptimizer, Field(discriminator="name")] | None = None
    edges: Annotated[ServerOptimizer, Field(discriminator="name")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, raw: Any) -> Any:
        """Expand short forms: a name or an optimiser alone is the cloud's, and `edges: adam` is a name."""
        if isinstance(raw, str) or (isinstance(raw, Mapping) and "name" in raw):
            raw = {"cloud": raw}
        if not isinstance(raw, Mapping):
            return raw
        return {key: {"name": value} if isinstance(value, str) else value for key, value in raw.items()}


def check_optimizer(name: str, momentum: float, average_every: str, *, vectorised: bool) -> None:
    """Check that the optimiser of devices fits other fields of the spec.

    Raises:
        ValueError: the message begins with the name of the field at fault.
    """
    if name == "sgd":
        return
    if momentum:
        raise ValueError(f"momentum needs optimizer: sgd: {name} has moments of its own")
    if average_every == "step":
        raise ValueError("optimizer needs average_every: visit or epoch: with step a device takes one plain SGD step")
    if vectorised:
        raise ValueError(f"vectorised needs optimizer: sgd: the steps of {name} are not known for many")
