"""`python -m cloud_server` runs the cloud with its dashboard."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # a user's folder may have a `shared`

from shared.runtime.import_path import installed_first

del sys.path[0]
installed_first()

from fastapi import FastAPI

from cloud_server.app import create_app
from cloud_server.dashboard.mount import attach
from cloud_server.nodes.identities import cloud_keys, write_tokens
from cloud_server.settings import CloudSettings
from shared.identity.authority import authority_of
from shared.identity.join_tokens import load_tokens
from shared.identity.node_keys import NodeKeys
from shared.service.server import serve


def create_with_dashboard(settings: CloudSettings, keys: NodeKeys | None = None) -> FastAPI:
    """The cloud's app with the dashboard."""
    app = create_app(settings, keys=keys)
    attach(app, settings)
    return app


def keys_of(settings: CloudSettings) -> NodeKeys:
    """The cloud's keys, with a certificate of its own authority, whose join tokens are written for other nodes."""
    authority = authority_of(settings.authority_folder)
    if settings.join_dir is not None:
        tokens = load_tokens(settings.authority_folder, authority.fingerprint)
        write_tokens(tokens, authority, settings.join_dir)
    return cloud_keys(authority, settings.state_dir, settings.certificate_s, settings.certificate_hosts)


if __name__ == "__main__":
    serve("cloud", CloudSettings, create_with_dashboard, keys_of, websockets=True)
