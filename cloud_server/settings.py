"""The cloud's settings, from environment variables `CLOUD_*`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from shared.service.settings import TierSettings, split_commas
from shared.service.token_files import token_of
from shared.storage.key_value import RedisUrl, with_password


class CloudSettings(TierSettings):
    """The cloud's settings.

    Attributes:
        redis_url: address of Redis.
        redis_password_file: a file that holds its password, instead of `redis_url`.
        runs_dir: folder of the results folders.
        settle_s: with fewer devices than requested, a run starts once no new one has registered for so many seconds.
        max_spec_bytes: largest request body of the public API.
        lease_s: seconds after which another cloud takes over the data in Redis from one that is silent.
        max_event_clients: clients that read the events of runs at a time.
        max_runs: runs that are stored at most, whatever their status; deleting one makes room.
        max_concurrent_runs: runs that train at a time; the agents are divided among them.
        user_max_runs: runs of a user that have not ended, at a time; unset for no limit. A token may have its own.
        user_max_bytes: bytes in the results folders of a user above which no further run of theirs begins.
        keep_days: days after its end after which a run is removed with its results, unless it is pinned; unset: never.
        keep_bytes: bytes that the results of ended runs may hold, pinned ones apart; above it the oldest are removed.
        authority_dir: folder of the certificate authority; default: in the folder of state.
        join_dir: folder into which the join token of each class is written, for nodes that mount a part of it.
        certificate_s: seconds for which a node's certificate holds.
        certificate_hosts: names and addresses by which users reach the cloud.
    """

    model_config = SettingsConfigDict(env_prefix="CLOUD_", extra="ignore", env_ignore_empty=True)

    port: int = Field(default=8000, ge=0, le=65535)
    redis_url: RedisUrl = "redis://127.0.0.1:6379/0"
    redis_password_file: Path | None = None
    runs_dir: Path = Path("runs")
    settle_s: float = Field(default=3.0, ge=0)
    lease_s: float = Field(default=15.0, ge=1)
    max_spec_bytes: int = Field(default=2**20, ge=1024)
    max_event_clients: int = Field(default=2000, ge=1)
    max_runs: int = Field(default=1000, ge=1)
    max_concurrent_runs: int = Field(default=1, ge=1, le=64)
    user_max_runs: int | None = Field(default=None, ge=0)
    user_max_bytes: int | None = Field(default=None, ge=0)
    keep_days: float | None = Field(default=None, gt=0)
    keep_bytes: int | None = Field(default=None, ge=0)
    authority_dir: Path | None = None
    join_dir: Path | None = None
    certificate_s: float = Field(default=7 * 86400.0, ge=900.0)
    certificate_hosts: Annotated[list[str], NoDecode, BeforeValidator(split_commas)] = Field(
        default_factory=lambda: ["localhost", "cloud", "127.0.0.1", "::1"]
    )

    @model_validator(mode="after")
    def _password_of_file(self) -> Self:
        password = token_of("CLOUD_REDIS_PASSWORD", None, self.redis_password_file)
        self.redis_url, self.redis_password_file = with_password(self.redis_url, password), None  # read once
        return self

    @property
    def authority_folder(self) -> Path:
        """The folder of the certificate authority."""
        return self.authority_dir or self.state_dir / "authority"
