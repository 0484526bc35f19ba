"""Settings that all tiers share, read from environment variables."""

from __future__ import annotations

import difflib
import logging
import os
import re
import secrets
import socket
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from shared.core.addresses import ANYWHERE, LOOPBACK, PRIVATE, Network, host_name
from shared.core.errors import BadInput
from shared.core.field_errors import first_fault
from shared.runtime.folders import user_cache
from shared.service.service_links import REMEDY, is_service_link, named, service_links
from shared.service.token_files import token_of

log = logging.getLogger("strata")


def host_id() -> str:
    """Returns the name of this host, as nodes may be named."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).lstrip("-._")[:64] or "host"


def split_commas(value: object) -> object:
    """Splits a variable of several values at its commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class Environment(BaseSettings):
    """Settings that notice misspelt variables, which pydantic ignores, and pass over service links.

    Raises:
        BadInput: a variable has a value that cannot be used, or is misspelt; names it.

    Attributes:
        also_known: further variables of the prefix, without it, that other programs read.
        strict: whether a misspelt variable is an error; else it is logged.
    """

    model_config = SettingsConfigDict(hide_input_in_errors=True)  # it may hold passwords
    also_known: ClassVar[frozenset[str]] = frozenset()
    strict: ClassVar[bool] = True

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            field, why = first_fault(error)
            variable = f"{self.model_config['env_prefix']}{field}".upper() if field else None
            raise BadInput(f"{variable}: {why}" if variable else why, field=variable) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Takes the service links out of what is read from the environment."""
        if isinstance(env_settings, EnvSettingsSource):
            found = env_settings.env_vars
            env_settings.env_vars = {name: value for name, value in found.items() if not is_service_link(name, value)}
        return init_settings, env_settings, dotenv_settings, file_secret_settings

    @model_validator(mode="after")
    def _no_misspelt_variable(self) -> Self:
        prefix = self.model_config["env_prefix"]
        known = {*type(self).model_fields, *self.also_known}
        links = service_links(os.environ, prefix) if prefix else []
        if links:
            log.warning("%s: service links of Kubernetes are no settings and are passed over; %s", named(links), REMEDY)
        names = [name for name in os.environ if prefix and name.upper().startswith(prefix)]
        for name in sorted(set(names) - set(links)):
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
    """Settings that all tiers of a machine share. Environment `STRATA_*`.

    A misspelt variable is only logged: users set `STRATA_*` for other commands and versions too.

    Attributes:
        tier_token: what edges and agents show to each other and to the cloud.
        api_token: what users show to the cloud.
        metrics_token: accepted by `/metrics` of every tier, and by nothing else.
        tier_token_file: a file that holds the tier token, instead of `tier_token`.
        api_token_file: a file that holds the API token.
        metrics_token_file: a file that holds the metrics token.
        data_dir: folder of data sets that are files.
        cache_dir: folder in which downloaded and generated data sets are kept; by default `~/.cache/strata`.
        secure: whether nodes show certificates to each other; then the tier token is not used.
        join_token: what a node shows once, to get its certificate.
        join_token_file: a file that holds the join token.
        fsync: whether a tier's files are flushed to the disk before they count, so that they survive a power cut too.
    """

    # Read by the launcher, the command line and Compose.
    also_known = frozenset(
        {"plugins", "ca_file", "home", "image", "log_format", "log_level", "port", "redis_server", "url"}
    )
    strict = False

    model_config = SettingsConfigDict(env_prefix="STRATA_", extra="ignore", env_ignore_empty=True)

    tier_token: str | None = None
    api_token: str | None = None
    metrics_token: str | None = None
    tier_token_file: Path | None = None
    api_token_file: Path | None = None
    metrics_token_file: Path | None = None
    data_dir: Path | None = None
    cache_dir: Path = Field(default_factory=user_cache)
    secure: bool = False
    join_token: str | None = None
    join_token_file: Path | None = None
    fsync: bool = True

    @model_validator(mode="after")
    def _tokens_of_files(self) -> Self:
        if self.secure:  # otherwise the file need not be there
            self.join_token = token_of("STRATA_JOIN_TOKEN", self.join_token, self.join_token_file)
        self.tier_token = token_of("STRATA_TIER_TOKEN", self.tier_token, self.tier_token_file)
        self.api_token = token_of("STRATA_API_TOKEN", self.api_token, self.api_token_file)
        self.metrics_token = token_of("STRATA_METRICS_TOKEN", self.metrics_token, self.metrics_token_file)
        # Read once: a tier's settings validate these again.
        self.tier_token_file = self.api_token_file = self.metrics_token_file = self.join_token_file = None
        if self.secure:
            self.tier_token = secrets.token_hex(32)  # known to nobody else: no token opens what certificates open
        return self


def over_tls(url: str, common: CommonSettings) -> str:
    """Returns the address of a tier as it is called: over TLS in secure mode, whatever the setting says."""
    return f"https://{url.removeprefix('http://')}" if common.secure and url.startswith("http://") else url


class TierSettings(Environment):
    """Settings that each tier has of its own; the tier's name is the prefix of their variables.

    A variable of that prefix that resembles a field's name is refused; any other belongs to another program (AGENT_OS,
    CLOUD_SHELL) and is only logged.

    Attributes:
        host: address that the tier listens on.
        port: port that it listens on; 0 is any free one.
        state_dir: folder of its state.
        allowed_networks: networks in which nodes may be, and whose callers are answered in development mode; by default
            the private ones. Nodes that show a token or a certificate may be in any network unless this is set.
        allowed_hosts: names with dots that the tier accepts as `Host` in development mode.
        max_body_bytes: largest body of a request or an answer.
        max_connections: open at a time, at most half of the files that the process may open.
        head_s: seconds in which the head of a request must arrive, and before it the handshake of TLS.
        body_s: seconds in which its body must arrive, plus one for every `body_rate` bytes.
        body_rate: bytes of a body for which a client gets one second more.
        unread_s: seconds for which a client may read nothing of an answer.
        heartbeat_s: seconds between two heartbeats of this tier.
        ttl_s: seconds without a heartbeat after which this tier counts another node as lost.
    """

    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True)

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    fd: int | None = None
    state_dir: Path = Path(".strata/state")
    allowed_networks: Annotated[list[Network], NoDecode, BeforeValidator(split_commas)] = Field(
        default_factory=lambda: list(PRIVATE)
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

    @property
    def listens(self) -> bool:
        """Whether others can reach this tier at its port."""
        return True

    @property
    def node_networks(self) -> list[Network]:
        """Networks in which nodes may be: all, where these prove by a token or a certificate who they are."""
        is_given = "allowed_networks" in self.model_fields_set
        return ANYWHERE if self.common.tier_token and not is_given else self.allowed_networks

    @property
    def user_networks(self) -> list[Network]:
        """Networks whose users are answered while no API token is set: in secure mode this machine alone.

        Otherwise a node, which is in these networks too, could do everything that users may.
        """
        return LOOPBACK if self.common.secure else self.allowed_networks
