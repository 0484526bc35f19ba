"""`python -m strata.fleet`: the fleet of a Compose project, in a container of it that sees the engine's socket."""

from __future__ import annotations

import signal
import socket
import threading

from shared.runtime import logs
from strata.fleet.cloud_client import CloudClient
from strata.fleet.containers import Containers
from strata.fleet.reconciler import Fleet
from strata.fleet.settings import FleetSettings


def main() -> None:
    """Look again and again until told to end."""
    settings = FleetSettings()
    logs.configure("fleet", "fleet")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    hands = Containers(settings.services, grace_s=settings.grace_s)
    with CloudClient(settings.cloud_url, settings.common.tier_token) as cloud:
        fleet = Fleet(f"compose-{socket.gethostname()}"[:64], hands, cloud, drain_s=settings.drain_s)
        while not ended.is_set():
            fleet.settle(ended.is_set)
            ended.wait(settings.every_s)


if __name__ == "__main__":
    main()
