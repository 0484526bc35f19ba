"""Settings that all tiers share, read from environment variables."""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shared.service.auth import Network, host_name, token_of

PRIVATE = ["127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]
log = logging.getLogger("strata")


def split_commas(value: object) -> object:
    """A variable of several values, separated by commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class Environment(BaseSettings):
    """Settings that look for misspelt variables: pydantic never sees a variable that no field names."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)  # it may hold passwords
    also_known: ClassVar[frozenset[str]] = frozenset()
    strict: ClassVar[bool] = True

    @model_validator(mode="after")
    def _no_misspelt_variable(self) -> Self:
        prefix = self.model_config["env_prefix"]
        known = {*type(self).model_fields, *self.also_known}
        names = [name for name in os.environ if prefix and name.upper().startswith(prefix)]
        for name in sorted(names):
            key = name.upper().removeprefix(prefix).lower()
            if key in known:
                continue
            near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.7)
            hint = f"; did you mean {prefix}{near[0].upper()}?" if near else ""
            if near and self.strict:
                raise ValueError(f"unknown environment variable {name}{hint}")
            log.warning("unknown environment variable %s%s", name, hint)
        return self


class CommonSettings(Environment):
    """Where a process runs; the same for all tiers. Environment `STRATA_*`.

    A misspelt variable is only warned of: users set `STRATA_*` for other commands and versions too.

    Attributes:
        metrics_token: opens `/metrics` of every tier, and nothing else.
        tier_token_file: a file that holds the tier token, in the place of `tier_token`; `api_token_file` likewise.
        fsync: whether what a tier keeps is on the disk, not only with the kernel, before it counts: it then survives
            not only the end of a process but a power cut.
    """

    # Read elsewhere: by the launcher, the command line, Compose.
    also_known = frozenset({"algorithms", "home", "image", "log_format", "log_level", "port", "redis_server", "url"})
    strict = False

    model_config = SettingsConfigDict(env_prefix="STRATA_", extra="ignore", env_ignore_empty=True)

    tier_token: str | None = None
    api_token: str | None = None
    metrics_token: str | None = None
    tier_token_file: Path | None = None
    api_token_file: Path | None = None
    data_dir: Path | None = None
    cache_dir: Path = Field(default_factory=lambda: Path.home() / ".cache" / "strata")
    fsync: bool = True

    @model_validator(mode="after")
    def _tokens_of_files(self) -> Self:
        self.tier_token = token_of("STRATA_TIER_TOKEN", self.tier_token, self.tier_token_file)
        self.api_token = token_of("STRATA_API_TOKEN", self.api_token, self.api_token_file)
        self.tier_token_file = self.api_token_file = None  # read once: a tier's settings validate these again
        return self


class TierSettings(Environment):
    """What each tier has of its own; the prefix is the tier's.

    A variable of that prefix which is nearly a field's name is refused; one unlike all of them is another program's
    (AGENT_OS, CLOUD_SHELL) and only warned of.

    Attributes:
        allowed_hosts: names with dots by which the tier may be asked where no token is set.
        head_s: how long the head of a request may take.
        body_s: how long its body may take, besides a second for every `body_rate` bytes.
        unread_s: how long a client may take nothing of an answer.
        max_connections: open at a time, at most half of the files that the process may open.
    """

    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True)

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    fd: int | None = None
    state_dir: Path = Path(".strata/state")
    allowed_networks: Annotated[list[Network], NoDecode, BeforeValidator(split_commas)] = Field(
        default_factory=lambda: [ipaddress.ip_network(text) for text in PRIVATE]
    )
    allowed_hosts: Annotated[
        list[Annotated[str, BeforeValidator(host_name)]], NoDecode, BeforeValidator(split_commas)
    ] = []
    max_body_bytes: int = Field(default=2**31, ge=1024)
    max_connections: int = Field(default=10_000, ge=1)
    head_s: float = Field(default=10.0, gt=0)
    body_s: float = Field(default=20.0, gt=0)
    body_rate: int = Field(default=2**16, ge=1)
    unread_s: float = Field(default=60.0, gt=0)
    heartbeat_s: float = Field(default=1.0, gt=0)
    ttl_s: float = Field(default=10.0, gt=0)
    common: CommonSettings = Field(default_factory=CommonSettings)
