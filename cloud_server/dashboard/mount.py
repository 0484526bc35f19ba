"""Adds the dashboard to the cloud's app. NiceGUI keeps its state per process: a process has at most one dashboard."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse

from cloud_server.dashboard.left_viewers import LeftViewers
from cloud_server.dashboard.login import PREFIX, Login
from cloud_server.settings import CloudSettings

if TYPE_CHECKING:
    from cloud_server.dependencies import Cloud

TITLE = "StrataFL"


def attach(app: FastAPI, settings: CloudSettings) -> None:
    """Serve the dashboard under `/ui`, behind its login, and lead `/` to it.

    Call this once per process, before the app starts.
    """
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(settings.state_dir / "nicegui"))  # NiceGUI reads it on import
    from nicegui import core, ui

    from cloud_server.dashboard.layout import KEPT_S, Dashboard
    from cloud_server.dashboard.pages import new, run, runs, topology

    core.sio.eio.cors_allowed_origins = None  # same origin only, which `Login` checks too

    def cloud() -> Cloud:
        services: Cloud = app.state.cloud
        return services

    dashboard = Dashboard(cloud, has_login=bool(settings.common.api_token))
    for page in (topology, runs, new, run):
        page.register(dashboard)
    ui.run_with(
        app,
        mount_path=PREFIX,
        title=TITLE,
        favicon="🛰",
        dark=None,
        language="en-US",
        show_welcome_message=False,
        binding_refresh_interval=None,
        reconnect_timeout=KEPT_S,
    )
    login = Middleware(
        Login,
        token=settings.common.api_token,
        networks=settings.user_networks,
        hosts=settings.allowed_hosts,
        tokens=app.state.tokens,
    )
    # Behind the headers of all answers, in front of the limit on bodies.
    app.user_middleware[1:1] = [login, Middleware(LeftViewers)]
    app.add_route("/", lambda request: RedirectResponse(f"{PREFIX}/"), include_in_schema=False)
