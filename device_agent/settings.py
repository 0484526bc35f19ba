"""The settings of an agent, from environment variables `AGENT_*`."""

from __future__ import annotations

import re
import socket

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.core.validation import ID
from shared.service.settings import TierSettings


def _host_name() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "agent"


class AgentSettings(TierSettings):
    """An agent's settings.

    Attributes:
        devices: how many devices the agent can host.
        profile: name of the profile of its devices, for runs whose spec says `devices.profile: agent`.
        advertise_port: the port under which other processes reach this one, if it differs from the port that this
            process listens on (behind a port mapping).
    """

    model_config = SettingsConfigDict(env_prefix="AGENT_", extra="ignore", env_ignore_empty=True)

    name: str = Field(default_factory=_host_name, pattern=ID)
    cloud_url: str = "http://127.0.0.1:8000"
    devices: int = Field(default=1, ge=1, le=10_000)
    profile: str = Field(default="standard", pattern=ID)
    advertise_port: int | None = Field(default=None, ge=1, le=65535)
