"""The settings of an agent, from environment variables `AGENT_*`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from shared.core.bounds import LARGEST_DEVICES
from shared.core.validation import ID
from shared.service.api.membership import Connect
from shared.service.settings import TierSettings, host_id, over_tls
from shared.simulation import known_profile


class AgentSettings(TierSettings):
    """An agent's settings.

    Attributes:
        name: of this agent; by default that of the host.
        cloud_url: address of the cloud.
        devices: how many devices the agent can host.
        profile: name of the profile of its devices, for runs whose spec names no profile, or `agent`.
        connect: how other processes reach it: `listen`, at its port, or `up`: it listens on nothing and takes its
            requests by long polls to the cloud and the edges (agents behind NAT).
        advertise_port: the port under which other processes reach this one, if it differs from the port that this
            process listens on (behind a port mapping).
    """

    model_config = SettingsConfigDict(env_prefix="AGENT_", extra="ignore", env_ignore_empty=True)

    name: str = Field(default_factory=host_id, pattern=ID)
    cloud_url: str = "http://127.0.0.1:8000"
    devices: int = Field(default=1, ge=1, le=LARGEST_DEVICES)
    profile: Annotated[str, AfterValidator(known_profile)] = "standard"
    connect: Connect = "listen"
    advertise_port: int | None = Field(default=None, ge=1, le=65535)

    @property
    def listens(self) -> bool:
        """Whether others can reach the agent at its port."""
        return self.connect == "listen"

    @model_validator(mode="after")
    def _call_cloud_over_tls(self) -> Self:
        self.cloud_url = over_tls(self.cloud_url, self.common)
        return self
