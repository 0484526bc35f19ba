"""Settings of the fleet of containers, from the environment variables `FLEET_*`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from shared.core.validation import Id
from shared.service.settings import CommonSettings, Environment, split_commas


class FleetSettings(Environment):
    """The settings of the fleet of containers.

    Attributes:
        services: the Compose services that it scales, separated by commas.
        every_s: seconds between two turns.
        drain_s: seconds after which a leaving agent is stopped even if a round still needs it.
        grace_s: seconds that a container may take to end before it is killed.
    """

    model_config = SettingsConfigDict(env_prefix="FLEET_", extra="ignore", env_ignore_empty=True)

    cloud_url: str = "http://cloud:8000"
    services: Annotated[tuple[Id, ...], NoDecode, BeforeValidator(split_commas)] = ("device",)
    every_s: float = Field(default=1.0, gt=0)
    drain_s: float = Field(default=120.0, ge=0)
    grace_s: float = Field(default=10.0, ge=0)
    common: CommonSettings = Field(default_factory=CommonSettings)
