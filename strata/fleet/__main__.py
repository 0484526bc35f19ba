"""`python -m strata.fleet`: the fleet of a Compose project, in a container with access to the engine's socket.

With `FLEET_SET_PREFIX` it is that of the StatefulSets of Kubernetes, in a pod with a service account.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shared.core.errors import StrataError
from shared.runtime import logs
from shared.runtime.signals import heeded
from shared.runtime.streams import open_standard
from shared.service.joining import token_for
from strata.fleet.cloud_client import CloudClient, fleet_keys
from strata.fleet.containers import Containers
from strata.fleet.plan import AgentBackend
from strata.fleet.reconciler import Fleet
from strata.fleet.scale_api import ScaleApi
from strata.fleet.settings import FleetSettings
from strata.fleet.stateful_sets import StatefulSets


def main() -> None:
    """Reconcile regularly until a signal ends the process."""
    open_standard()
    logs.configure("fleet", "fleet")
    ended = threading.Event()
    for number in heeded((signal.SIGTERM, signal.SIGINT)):
        signal.signal(number, lambda *_: ended.set())
    try:
        run(FleetSettings(), ended)
    except StrataError as error:
        raise SystemExit(f"the fleet could not start: {error.detail}") from None


def run(settings: FleetSettings, ended: threading.Event) -> None:
    """Reconcile until the event is set.

    Raises:
        StrataError: a setting cannot be used here, or in secure mode the cloud refuses the fleet.
    """
    name, joining = f"{'compose' if settings.set_prefix is None else 'kubernetes'}-{socket.gethostname()}"[:64], None
    if settings.common.secure:
        keys = fleet_keys(name, settings.state_dir)
        joining = keys, token_for(keys.identity, settings.common)
    with backend_of(settings) as backend, CloudClient(settings.cloud_url, settings.common.tier_token, joining) as cloud:
        fleet = Fleet(name, backend, cloud, drain_s=settings.drain_s)
        while not ended.is_set():
            fleet.settle(ended.is_set)
            ended.wait(settings.every_s)


@contextmanager
def backend_of(settings: FleetSettings) -> Iterator[AgentBackend]:
    """What starts and stops agents here.

    Raises:
        BadInput: it scales StatefulSets, and runs in no pod with a service account.
    """
    if settings.set_prefix is None:
        yield Containers(settings.services, settings.edge_service, grace_s=settings.grace_s)
        return
    with ScaleApi() as api:
        yield StatefulSets(api, settings.set_prefix, settings.sets, settings.edge_service)


if __name__ == "__main__":
    main()
