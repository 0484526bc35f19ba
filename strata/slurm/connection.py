"""Reaching the cloud of a deployment, wherever its job has put it."""

from __future__ import annotations

import httpx2

from shared.core.errors import StrataError
from strata.api.client import Client
from strata.slurm.deployment import API_TOKEN, Address, Deployment

_ANSWER_S = 10.0


def client_of(deployment: Deployment, address: Address, reconnect_s: float | None = None) -> Client:
    """A client of a deployment's cloud, with its token; a proxy of the environment is not in between."""
    token, direct = deployment.secret(API_TOKEN), httpx2.HTTPTransport()
    return Client(address.url, token=token, timeout_s=_ANSWER_S, reconnect_s=reconnect_s, transport=direct)


def reachable(deployment: Deployment) -> Address | None:
    """Where its cloud listens, if it answers."""
    address = deployment.address()
    if address is None:
        return None
    try:
        with client_of(deployment, address, 0.0) as client:
            client.readiness()
    except StrataError:
        return None
    return address
