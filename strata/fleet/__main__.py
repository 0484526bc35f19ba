"""`python -m strata.fleet`: the fleet of a Compose project, in a container with access to the engine's socket."""

from __future__ import annotations

import signal
import socket
import threading

from shared.core.errors import StrataError
from shared.runtime import logs
from shared.runtime.signals import heeded
from shared.runtime.streams import open_standard
from shared.service.joining import token_for
from strata.fleet.cloud_client import CloudClient, fleet_keys
from strata.fleet.containers import Containers
from strata.fleet.reconciler import Fleet
from strata.fleet.settings import FleetSettings


def main() -> None:
    """Reconcile regularly until a signal ends the process."""
    open_standard()
    try:
        settings = FleetSettings()
    except StrataError as error:
        raise SystemExit(f"the fleet could not start: {error.detail}") from None
    logs.configure("fleet", "fleet")
    ended = threading.Event()
    for number in heeded((signal.SIGTERM, signal.SIGINT)):
        signal.signal(number, lambda *_: ended.set())
    backend = Containers(settings.services, settings.edge_service, grace_s=settings.grace_s)
    name, joining = f"compose-{socket.gethostname()}"[:64], None
    if settings.common.secure:
        keys = fleet_keys(name, settings.state_dir)
        joining = keys, token_for(keys.identity, settings.common)
    with CloudClient(settings.cloud_url, settings.common.tier_token, joining) as cloud:
        fleet = Fleet(name, backend, cloud, drain_s=settings.drain_s)
        while not ended.is_set():
            fleet.settle(ended.is_set)
            ended.wait(settings.every_s)


if __name__ == "__main__":
    main()
