"""What the apps of the three tiers have in common: error answers, health, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import Response

from shared.core.versions import version
from shared.service.api.health import Health
from shared.service.problems import install_problems
from shared.service.settings import TierSettings, log


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


def make_app(title: str, lifespan: Callable[[FastAPI], Any] | None = None) -> FastAPI:
    """Returns a tier's app without routes. `app.state.closing` is set when the server begins to stop."""
    app = FastAPI(title=title, version=version(), lifespan=lifespan)
    app.state.closing = asyncio.Event()
    install_problems(app)
    return app


def metrics_response(registry: CollectorRegistry) -> Response:
    """Returns a tier's metrics in Prometheus' text format."""
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def health(tier: str, missing: tuple[str, ...] = ()) -> Health:
    """Returns a health answer: `not_ready` while something is missing."""
    return Health(status="not_ready" if missing else "ok", tier=tier, version=version(), missing=missing)
