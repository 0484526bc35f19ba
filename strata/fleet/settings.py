"""Settings of fleets, from the environment variables `FLEET_*`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from shared.core.bounds import LARGEST_DEVICES
from shared.core.validation import Id
from shared.service.settings import CommonSettings, Environment, over_tls, split_commas
from strata.fleet.reconciler import DRAIN_S

Devices = Annotated[int, Field(ge=1, le=LARGEST_DEVICES)]


def _sizes(value: object) -> object:
    """Splits `device:1,slow:4` into names with numbers."""
    if not isinstance(value, str):
        return value
    parts = [part.strip().rpartition(":") for part in value.split(",") if part.strip()]
    if not parts or not all(name for name, _, _ in parts) or len({name for name, _, _ in parts}) < len(parts):
        raise ValueError("write it as NAME:DEVICES,NAME:DEVICES, each name once")
    return {name: devices for name, _, devices in parts}


class DrainSettings(Environment):
    """What a fleet of local processes reads, too.

    Attributes:
        drain_s: seconds after which a leaving agent is stopped even if a round still needs it.
    """

    model_config = SettingsConfigDict(env_prefix="FLEET_", extra="ignore", env_ignore_empty=True)
    also_known = frozenset(
        {"cloud_url", "state_dir", "services", "edge_service", "sets", "set_prefix", "every_s", "grace_s"}
    )

    drain_s: float = Field(default=DRAIN_S, ge=0)


class FleetSettings(DrainSettings):
    """The settings of the fleet of containers or pods.

    Attributes:
        cloud_url: address of the cloud.
        state_dir: folder of its key and certificate, in secure mode.
        services: the Compose services that it scales, separated by commas.
        edge_service: the Compose service whose containers are edges; in Kubernetes, what the name of their StatefulSet
            ends with.
        set_prefix: in Kubernetes, what the names of the StatefulSets begin with; if it is set, the fleet scales these,
            not containers.
        sets: what the names of those of agents end with, each with the devices of one agent, such as `device:1,slow:4`.
        every_s: seconds between two turns.
        grace_s: seconds that a container of Compose may take to end before it is killed.
    """

    cloud_url: str = "http://cloud:8000"
    state_dir: Path = Path(".strata/fleet")
    services: Annotated[tuple[Id, ...], NoDecode, BeforeValidator(split_commas)] = ("device",)
    edge_service: Id = "edge"
    set_prefix: str | None = None
    sets: Annotated[dict[Id, Devices], NoDecode, BeforeValidator(_sizes)] = Field(default_factory=dict)
    every_s: float = Field(default=1.0, gt=0)
    grace_s: float = Field(default=10.0, ge=0)
    common: CommonSettings = Field(default_factory=CommonSettings)

    @model_validator(mode="after")
    def _call_cloud_over_tls(self) -> Self:
        self.cloud_url = over_tls(self.cloud_url, self.common)
        return self
