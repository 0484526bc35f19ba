"""The cloud's settings, from environment variables `CLOUD_*`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.service.settings import TierSettings


class CloudSettings(TierSettings):
    """The cloud's settings.

    Attributes:
        settle_s: with fewer devices than requested, a run starts once no new one has registered for so many seconds.
        max_spec_bytes: largest request body of the public API.
        max_runs: runs that are stored at most, whatever their status; deleting one makes room.
    """

    model_config = SettingsConfigDict(env_prefix="CLOUD_", extra="ignore", env_ignore_empty=True)

    port: int = Field(default=8000, ge=0, le=65535)
    redis_url: str = "redis://127.0.0.1:6379/0"
    runs_dir: Path = Path("runs")
    settle_s: float = Field(default=3.0, ge=0)
    max_spec_bytes: int = Field(default=2**20, ge=1024)
    max_runs: int = Field(default=1000, ge=1)
