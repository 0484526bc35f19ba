"""The system with certificates on a single-node Swarm, as `docker-stack.secure.yml` deploys it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from shared.identity.authority import make_authority
from shared.identity.join_tokens import draw_secret
from tests.compose import swarm
from tests.compose.stack import ENDED
from tests.compose.swarm import docker, tasks, until

pytestmark = [pytest.mark.compose, pytest.mark.swarm, pytest.mark.timeout(900)]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[httpx2.Client]:
    make_authority().save(tmp_path / "authority")
    draw_secret(tmp_path / "authority")
    with swarm.swarm():
        with swarm.stack(tmp_path / "authority", DEVICES="2") as client:
            until("two devices", lambda: n_devices(client) == 2)
            yield client
        assert swarm.leftovers() == swarm.volumes() == []


def n_devices(client: httpx2.Client) -> int:
    try:
        return int(client.get("/topology").json()["n_devices"])
    except (httpx2.HTTPError, KeyError):
        return -1


def test_nodes_join_with_the_secrets_of_their_class_and_train(cloud: httpx2.Client) -> None:
    run = cloud.post("/runs", json={"spec": {"num_rounds": 2, "num_devices": 2}}).json()["run"]
    until("the end of the run", lambda: cloud.get(f"/runs/{run}").json()["status"] in ENDED)
    info = cloud.get(f"/runs/{run}").json()
    assert (info["status"], info["rounds"]) == ("completed", 2)
    nodes = cloud.get("/identities").json()["identities"]
    assert sorted((each["node_class"], each["name"]) for each in nodes if each["node_class"] == "edge") == [
        ("edge", "edge-1"),
        ("edge", "edge-2"),
    ]
    assert len(nodes) == 4
    (redis,) = tasks("redis")
    assert "NOPERM" in docker("exec", redis, "redis-cli", "get", "cloud:owner")
    for device in tasks("device"):
        assert "strata-edge-" not in docker("exec", device, "sh", "-c", "env; cat /run/secrets/*")
