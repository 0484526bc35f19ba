"""`python -m cloud_server` runs the cloud with its dashboard."""

from __future__ import annotations

from fastapi import FastAPI

from cloud_server.app import create_app
from cloud_server.dashboard.mount import attach
from cloud_server.settings import CloudSettings
from shared.service.server import serve


def create_with_dashboard(settings: CloudSettings) -> FastAPI:
    """The cloud's app with the dashboard."""
    app = create_app(settings)
    attach(app, settings)
    return app


if __name__ == "__main__":
    serve("cloud", CloudSettings(), create_with_dashboard, websockets=True)
