"""What the three services have in common: settings, tokens, health, the worker thread."""

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


def say_mode(tier: str, settings: TierSettings) -> None:
    """Say aloud at the start if the tier runs without the tokens that it would ask for: the API's, the cloud alone."""
    tokens = {"tier": settings.common.tier_token} | ({"API": settings.common.api_token} if tier == "cloud" else {})
    open_ones = [name for name, token in tokens.items() if not token]
    if open_ones:
        log.warning(
            "%s: DEVELOPMENT MODE, no %s token set: only loopback and private networks are answered",
            tier,
            " and no ".join(open_ones),
        )


# ---- the app


def make_app(title: str, lifespan: Callable[[FastAPI], Any] | None = None) -> FastAPI:
    """A tier's app before its routes. `app.state.closing` is set once the server is told to stop."""
    app = FastAPI(title=title, version=version(), lifespan=lifespan)
    app.state.closing = asyncio.Event()
    install_problems(app)
    return app


def metrics_response(registry: CollectorRegistry) -> Response:
    """The tier's Prometheus metrics."""
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def health(tier: str, missing: tuple[str, ...] = ()) -> Health:
    """A health answer; with something missing it is not ready."""
    return Health(status="not_ready" if missing else "ok", tier=tier, version=version(), missing=missing)
