"""Secure mode in containers: one variable, and each node shows its own certificate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shared.core.errors import StrataError
from strata.api.client import Client
from tests.compose.stack import ENDED, compose, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]
secure = partial(
    compose,
    project="stratafl-secure",
    STRATA_SECURE="1",
    STRATA_PORT="8010",
    STRATA_API_TOKEN="the-users",  # noqa: S106
)
URL = "https://127.0.0.1:8010"


@pytest.fixture
def client(stack: object, tmp_path: Path) -> Iterator[Client]:
    """A client of a second system beside the first, whose image it runs."""
    authority = tmp_path / "authority.pem"
    try:
        secure("up", "-d", "--scale", "device=2")
        authority.write_text(secure("exec", "-T", "cloud", "cat", "/data/state/authority/authority.pem"))
        with Client(URL, token="the-users", authority=authority) as client:  # noqa: S106
            until("two devices with certificates", lambda: n_devices(client) == 2)
            yield client
    finally:
        secure("down", "-v", "--remove-orphans")


def n_devices(client: Client) -> int:
    try:
        return client.topology().n_devices
    except StrataError:
        return -1


def test_containers_get_certificates_train_and_are_revoked(client: Client) -> None:
    run = client.create_run({"num_rounds": 2, "lr": 0.1}).run
    info = until("the end of the run", lambda: (found := client.run(run)).status in ENDED and found)
    assert (info.status, info.reason) == ("completed", None)
    classes = sorted(each.node_class for each in client.identities().identities)
    assert classes == ["device", "device", "edge", "edge"]
    agents = sorted(agent.agent for agent in client.agents().agents)
    client.revoke("device", agents[0])
    until("the end of a revoked device", lambda: n_devices(client) == 1)

    # Redis knows the cloud and the edges, and answers nobody else.
    edges = sorted(f"edge:{edge.edge}" for edge in client.edges().edges)
    users = secure("exec", "-T", "redis", "cat", "/data/users.acl").splitlines()
    assert sorted(line.split()[1] for line in users) == ["cloud", "default", *edges]
    assert "NOPERM" in secure("exec", "-T", "redis", "redis-cli", "get", "cloud:owner")

    # A device knows neither the users' token nor Redis nor another class's join token.
    shown = secure("exec", "-T", "device", "sh", "-c", "env; ls -R /join; cat /join/token")
    assert "the-users" not in shown
    assert "strata-device-" in shown
    assert "strata-edge-" not in shown
    reach = "import socket; socket.create_connection(('redis', 6379), 5)"
    with pytest.raises(AssertionError, match=r"Name or service not known|Temporary failure in name resolution"):
        secure("exec", "-T", "device", "python3", "-c", reach)
