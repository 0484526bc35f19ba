"""The settings of an edge, from environment variables `EDGE_*`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from shared.core.validation import ID
from shared.service.settings import TierSettings, over_tls
from shared.storage.key_value import RedisUrl


class EdgeSettings(TierSettings):
    """An edge's settings.

    Attributes:
        name: of this edge; unique among the edges of the cloud.
        cloud_url: address of the cloud.
        redis_url: address of the edge's Redis.
        advertise_port: the port under which others reach this process, if a port mapping makes it differ from `port`.
    """

    model_config = SettingsConfigDict(env_prefix="EDGE_", extra="ignore", env_ignore_empty=True)

    name: str = Field(default="edge-1", pattern=ID)
    cloud_url: str = "http://127.0.0.1:8000"
    redis_url: RedisUrl = "redis://127.0.0.1:6379/0"
    advertise_port: int | None = Field(default=None, ge=1, le=65535)

    @model_validator(mode="after")
    def _call_cloud_over_tls(self) -> Self:
        self.cloud_url = over_tls(self.cloud_url, self.common)
        return self
