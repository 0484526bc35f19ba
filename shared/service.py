"""What the three services have in common: settings, tokens, problem+json, the worker thread, the server."""

from __future__ import annotations

import asyncio
import difflib
import hmac
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from starlette.exceptions import HTTPException
from starlette.responses import Response

from shared.api import Health, Problem
from shared.errors import Forbidden, StrataError, Unauthorised
from shared.store import Store
from shared.transport import PROBLEM_TYPE, inside

T = TypeVar("T")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PRIVATE = ["127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]
log = logging.getLogger("strata")


def version() -> str:
    """The installed version of the package."""
    try:
        return package_version("stratafl")
    except PackageNotFoundError:
        return "0+unknown"


class _Environment(BaseSettings):
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


class CommonSettings(_Environment):
    """Where a process runs; the same for all tiers. Environment `STRATA_*`.

    A misspelt variable is only warned of: users set `STRATA_*` for other commands and versions too.
    """

    # Read elsewhere: by the launcher, the command line, Compose.
    also_known = frozenset({"algorithms", "home", "log_level", "port", "redis_server", "url"})
    strict = False

    model_config = SettingsConfigDict(env_prefix="STRATA_", extra="ignore", env_ignore_empty=True)

    tier_token: str | None = None
    api_token: str | None = None
    data_dir: Path | None = None
    cache_dir: Path = Field(default_factory=lambda: Path.home() / ".cache" / "strata")


class TierSettings(_Environment):
    """What each tier has of its own; the prefix is the tier's.

    A variable of that prefix which is nearly a field's name is refused; one unlike all of them is another program's
    (AGENT_OS, CLOUD_SHELL) and only warned of.
    """

    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True)

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    fd: int | None = None
    state_dir: Path = Path(".strata/state")
    allowed_networks: Annotated[list[Network], NoDecode] = Field(
        default_factory=lambda: [ipaddress.ip_network(text) for text in PRIVATE]
    )
    max_body_bytes: int = Field(default=2**31, ge=1024)
    heartbeat_s: float = Field(default=1.0, gt=0)
    ttl_s: float = Field(default=10.0, gt=0)
    common: CommonSettings = Field(default_factory=CommonSettings)

    @field_validator("allowed_networks", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


# ---- who may ask


def bearer(request: Request) -> str:
    """The bearer token of a request, empty if it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def guard(token: str | None, networks: list[Network], what: str) -> Callable[[Request], None]:
    """A dependency that lets through who has the token; without a token set, who is in the allowed networks."""

    def check(request: Request) -> None:
        if not token:
            host = request.client.host if request.client else None
            if not inside(host, networks):
                raise Forbidden(f"in development mode only the allowed networks may ask, not {host}")
        elif not hmac.compare_digest(bearer(request).encode(), token.encode()):
            raise Unauthorised(f"the {what} token is missing or wrong")

    return check


def say_mode(tier: str, settings: TierSettings) -> None:
    """Say aloud at the start if the tier runs without tokens."""
    open_ones = [
        name for name, token in (("tier", settings.common.tier_token), ("API", settings.common.api_token)) if not token
    ]
    if open_ones:
        log.warning(
            "%s: DEVELOPMENT MODE, no %s token set: only loopback and private networks are answered",
            tier,
            " and no ".join(open_ones),
        )


# ---- errors as problem+json


def problem(status: int, code: str, detail: str, field: str | None = None) -> JSONResponse:
    """An error response."""
    body = Problem(title=code.replace("_", " "), status=status, code=code, detail=detail, field=field)
    return JSONResponse(body.model_dump(mode="json"), status_code=status, media_type=PROBLEM_TYPE)


def install_problems(app: FastAPI) -> None:
    """Turn every error into problem+json."""

    async def strata(request: Request, error: Exception) -> Response:
        assert isinstance(error, StrataError)  # noqa: S101 - registered for this class only
        return problem(error.status, error.code, error.detail, error.field)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class only
        first = error.errors()[0]
        loc = () if first["type"] == "json_invalid" else first["loc"]  # there it is a position in the text
        path = ".".join(str(part) for part in (loc[1:] if loc[:1] == ("body",) else loc))[:200]
        return problem(422, "bad_input", f"{path}: {first['msg']}" if path else str(first["msg"]), path or None)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class only
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
        return problem(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}")

    async def unforeseen(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "internal", f"{type(error).__name__} in {request.method} {request.url.path}; see the log")

    app.add_exception_handler(StrataError, strata)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unforeseen)


def metrics_response(registry: CollectorRegistry) -> Response:
    """The tier's Prometheus metrics."""
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def health(tier: str, missing: tuple[str, ...] = ()) -> Health:
    """A health answer; with something missing it is not ready."""
    return Health(status="not_ready" if missing else "ok", tier=tier, version=version(), missing=missing)


async def answers(store: Store) -> bool:
    """Whether the store answers."""
    try:
        await store.ping()
    except StrataError:
        return False
    return True


# ---- the worker thread


class Worker:
    """The one thread of a process that computes; torch runs single-threaded in it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Run a function there; works queue in the order of asking."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args))

    def close(self) -> None:
        """Let the present work end, drop what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def pin_threads() -> None:
    """One thread for torch: thread counts change bits. The libraries' variables are set before torch is imported."""
    import torch

    torch.set_num_threads(1)


# ---- the server


def listen(settings: TierSettings) -> socket.socket:
    """The listening socket: inherited by number (`fd`), or bound here; `settings.port` is set to its port."""
    if settings.fd is not None:
        found = socket.socket(fileno=settings.fd)
    else:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(1024)
    settings.port = found.getsockname()[1]
    return found


def serve(tier: str, settings: TierSettings, create_app: Callable[[Any], FastAPI]) -> None:
    """Run a tier until it is told to stop."""
    level = os.environ.get("STRATA_LOG_LEVEL", "INFO").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    pin_threads()
    bound = listen(settings)
    say_mode(tier, settings)
    log.info("%s listens on %s:%s", tier, settings.host, settings.port)
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=60,
        loop="uvloop",
        http="httptools",
    )
    server = uvicorn.Server(config)
    server.run(sockets=[bound])
    if not server.started:
        raise SystemExit(f"{tier} could not start; the reason stands above")
