"""The settings of an edge, from environment variables `EDGE_*`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from shared.core.addresses import address
from shared.core.validation import ID
from shared.service.api.membership import Connect
from shared.service.settings import TierSettings, over_tls
from shared.service.token_files import token_of
from shared.storage.kept_id import kept_id
from shared.storage.key_value import RedisUrl, with_password


class EdgeSettings(TierSettings):
    """An edge's settings.

    Attributes:
        name: of this edge, unique among the edges of the cloud; None = one that is drawn once and kept in `state_dir`.
        cloud_url: address of the cloud.
        redis_url: address of the edge's Redis.
        redis_password_file: a file that holds its password, instead of `redis_url`.
        connect: how the cloud reaches it: `listen`, at its port, or `up`, by a long poll to the cloud (behind NAT).
        advertise_host: the address at which agents reach this edge, if it is not the one that the cloud sees.
        advertise_port: the port under which others reach this process, if a port mapping makes it differ from `port`.
    """

    model_config = SettingsConfigDict(env_prefix="EDGE_", extra="ignore", env_ignore_empty=True)

    name: str | None = Field(default=None, pattern=ID)
    cloud_url: str = "http://127.0.0.1:8000"
    redis_url: RedisUrl = "redis://127.0.0.1:6379/0"
    redis_password_file: Path | None = None
    connect: Connect = "listen"
    advertise_host: Annotated[str, AfterValidator(address)] | None = None
    advertise_port: int | None = Field(default=None, ge=1, le=65535)

    @cached_property
    def edge(self) -> str:
        """The name of this edge: the given one, or one kept in its folder, which survives a new container."""
        return self.name or kept_id(self.state_dir / "edge-name", "edge-", n_bytes=4, durable=self.common.fsync)

    @model_validator(mode="after")
    def _password_of_file(self) -> Self:
        password = token_of("EDGE_REDIS_PASSWORD", None, self.redis_password_file)
        self.redis_url, self.redis_password_file = with_password(self.redis_url, password), None  # read once
        return self

    @model_validator(mode="after")
    def _call_cloud_over_tls(self) -> Self:
        self.cloud_url = over_tls(self.cloud_url, self.common)
        return self
