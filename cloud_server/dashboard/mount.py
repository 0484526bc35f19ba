"""Puts the dashboard on the app of a cloud process. NiceGUI is one for a process: so is the dashboard."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastapi import FastAPI

from cloud_server.dashboard.login import PREFIX, Login
from cloud_server.settings import CloudSettings

if TYPE_CHECKING:
    from cloud_server.dependencies import Cloud

TITLE = "StrataFL"


def attach(app: FastAPI, settings: CloudSettings) -> None:
    """Serve the dashboard under `/ui`, behind its door. Once in a process, before it starts."""
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(settings.state_dir / "nicegui"))  # read when it is imported
    from nicegui import core, ui

    from cloud_server.dashboard.layout import Dashboard
    from cloud_server.dashboard.pages import new, run, runs, topology

    core.sio.eio.cors_allowed_origins = None  # the site's own pages alone; the door says so too

    def cloud() -> Cloud:
        found: Cloud = app.state.cloud
        return found

    dashboard = Dashboard(cloud, logs_in=bool(settings.common.api_token))
    for page in (topology, runs, new, run):
        page.register(dashboard)
    ui.run_with(
        app,
        mount_path=PREFIX,
        title=TITLE,
        favicon="🛰",
        dark=None,
        show_welcome_message=False,
        binding_refresh_interval=None,
        reconnect_timeout=10.0,
    )
    app.add_middleware(
        Login, token=settings.common.api_token, networks=settings.allowed_networks, hosts=settings.allowed_hosts
    )
