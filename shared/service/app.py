"""What the apps of the three tiers have in common: error answers, health, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import Response

from shared.core.versions import VERSION
from shared.identity.names import CLASSES, NodeClass
from shared.service.api.health import Health
from shared.service.auth import Guard, guard
from shared.service.openapi import describe
from shared.service.peers import peer_guard
from shared.service.problems import install_problems
from shared.service.protocol import Refused, SaysProtocol, of_same_protocol, unnoted
from shared.service.safe_methods import SafeMethods
from shared.service.settings import TierSettings, log
from shared.service.throttle import Throttle


def log_mode(tier: str, settings: TierSettings) -> None:
    """Logs a warning if a tier starts without the tokens that it would check (that of the API: the cloud only)."""
    tokens = {"tier": settings.common.tier_token} | ({"API": settings.common.api_token} if tier == "cloud" else {})
    missing = [name for name, token in tokens.items() if not token]
    if missing:
        log.warning(
            "%s: DEVELOPMENT MODE, no %s token set: only loopback and private networks are answered",
            tier,
            " and no ".join(missing),
        )


def make_app(
    title: str,
    lifespan: Callable[[FastAPI], Any] | None = None,
    *,
    routes: APIRouter | None = None,
    guards: dict[str, Guard] | None = None,
) -> FastAPI:
    """Returns a tier's app. `app.state.closing` is set when the server begins to stop.

    Args:
        title: of the app.
        lifespan: what the app does before its first request and after its last one.
        routes: a router that all apps with these routes share.
        guards: the guards that routes name (see `guarded`).
    """
    parts = [*routes.routes] if routes else None
    # FastAPI's pages of the document would run scripts of another site within this one.
    app = FastAPI(title=title, version=VERSION, lifespan=lifespan, routes=parts, docs_url=None, redoc_url=None)
    app.state.closing = asyncio.Event()
    app.state.guards = guards or {}
    app.openapi = describe(app)  # type: ignore[method-assign]
    install_problems(app)
    app.add_middleware(SafeMethods, router=app.router)
    app.add_middleware(SaysProtocol)
    return app


def guards_of(
    settings: TierSettings,
    throttle: Throttle,
    metrics_like: str = "tier",
    revoked: Container[str] = (),
    user_with: Callable[[str], str | None] = lambda token: None,
    other_protocol: Refused = unnoted,
) -> dict[str, Guard]:
    """Returns the guards of a tier's routes. Together they count wrong tokens.

    `cloud`, `edge`, `device` and `fleet` want a node of that class, `node` an edge or a device: one that shows the tier
    token or, in secure mode, its certificate. `joining` lets in everybody in secure mode, where the route itself checks
    a join token. `API` wants the token of the API, or that of a user. `metrics` wants the token for metrics or that of
    `metrics_like`, no user's.

    Args:
        settings: of the tier.
        throttle: counts wrong tokens.
        metrics_like: `tier` or `API`.
        revoked: serial numbers of certificates that are refused; it may change.
        user_with: returns the name of the user whose token it is, None if it is nobody's.
        other_protocol: is told of requests of tiers that speak another protocol, which are refused.
    """
    hosts, common = settings.allowed_hosts, settings.common
    networks = {"tier": settings.allowed_networks, "API": settings.user_networks}
    tokens = {"tier": common.tier_token, "API": common.api_token}
    users = {"API": user_with, "tier": lambda token: None}
    by_token = {
        name: guard(token, networks[name], name, None, hosts, throttle, users[name]) for name, token in tokens.items()
    }
    found = {"API": by_token["API"], "joining": _anyone if common.secure else by_token["tier"]}
    classes: dict[str, tuple[NodeClass, ...]] = {each: (each,) for each in CLASSES}
    for name, allowed in (classes | {"node": ("edge", "device")}).items():
        found[name] = peer_guard(allowed, revoked) if common.secure else by_token["tier"]
    found["metrics"] = guard(
        tokens[metrics_like], networks[metrics_like], metrics_like, common.metrics_token, hosts, throttle
    )
    own = f"this {str(settings.model_config['env_prefix']).rstrip('_').lower()}"
    open_to_users = ("API", "metrics")
    return {
        name: check if name in open_to_users else of_same_protocol(check, own, other_protocol)
        for name, check in found.items()
    }


async def _anyone(request: Request) -> None:
    """The guard of routes that check their callers themselves."""


def metrics_response(registry: CollectorRegistry) -> Response:
    """Returns a tier's metrics in Prometheus' text format."""
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def health(tier: str, missing: tuple[str, ...] = (), warnings: tuple[str, ...] = ()) -> Health:
    """Returns a health answer: `not_ready` while something is missing."""
    status: Literal["ok", "not_ready"] = "not_ready" if missing else "ok"
    return Health(status=status, tier=tier, version=VERSION, missing=missing, warnings=warnings)
