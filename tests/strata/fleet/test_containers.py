"""The fleet's container backend with a fake engine."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core.errors import NotReady
from strata.fleet.container_copy import copy_of, name_of
from strata.fleet.containers import Containers, EngineError
from strata.fleet.plan import EDGES, Agent, Service
from tests.strata.fleet.engine import IMAGE, OLD_IMAGE, VOLUME, FakeEngine, inspected

OWN = inspected(90, service="fleet")


def backend(engine: FakeEngine, *services: str) -> Containers:
    return Containers(services or ("device",), grace_s=7, engine=engine, own=OWN["Config"]["Hostname"])


def names(found: list[Agent]) -> list[tuple[str, int]]:
    return [(agent.service, agent.number) for agent in found]


def test_only_running_containers_of_the_own_project_and_services_are_managed() -> None:
    stopped, oneoff, alone = inspected(3), inspected(4), inspected(90)
    stopped["State"] = "exited"
    oneoff["Config"]["Labels"]["com.docker.compose.oneoff"] = "True"
    others = (inspected(5, project="q"), inspected(6, service="edge-1"), inspected(7, service="slow"))
    engine = FakeEngine(OWN, inspected(2), inspected(1), stopped, oneoff, *others)
    assert names(backend(engine).agents()) == [("device", 1), ("device", 2)]
    assert names(backend(engine, "device", "slow").agents()) == [("device", 1), ("device", 2), ("slow", 7)]
    del alone["Config"]["Labels"]["com.docker.compose.project"]
    with pytest.raises(NotReady, match="only scale a Compose project"):
        backend(FakeEngine(alone, inspected(1))).agents()
    with pytest.raises(NotReady, match="docker compose up -d device"):
        backend(FakeEngine(OWN)).start("device", 1)


def test_an_agent_is_identified_by_its_registered_name_and_devices() -> None:
    named = inspected(2, AGENT_NAME="north")
    named["Config"]["Env"].append("AGENT_DEVICES=4")
    found = backend(engine := FakeEngine(OWN, inspected(1), named))
    assert found.agents() == [Agent("010101010101", "device", 1, 1), Agent("north", "device", 4, 2)]
    assert found.services() == {"device": Service(each=4, exactly=True)}  # of the newest container, which is copied
    assert engine.did == []


def test_an_edge_is_identified_by_its_host_unless_it_is_named() -> None:
    engine = FakeEngine(
        OWN, inspected(1), inspected(2, service="edge"), inspected(3, service="edge", EDGE_NAME="north")
    )
    found = Containers(("device",), "edge", engine=engine, own=OWN["Config"]["Hostname"])
    edges = [agent for agent in found.agents() if agent.service == "edge"]
    assert edges == [Agent("020202020202", "edge", 1, 2), Agent("north", "edge", 1, 3)]
    assert found.services() == {"device": Service(), "edge": EDGES}


def test_a_copy_differs_in_its_number_and_in_unnamed_volumes() -> None:
    engine = FakeEngine(OWN, inspected(1), inspected(2))
    found = backend(engine)
    found.agents()
    assert found.start("device", 1) == "030303030303"
    (create, (name, body)), (connect, (_, network, aliases)), (start, _) = engine.did
    assert (create, connect, start) == ("create", "connect", "start")
    assert name == "p_device_3"
    assert body["Image"] == "stratafl:local"
    assert (body["Cmd"], body["Env"]) == (["python", "-m", "device_agent"], ["AGENT_DEVICES=1"])
    assert "Hostname" not in body
    assert body["Volumes"] == {"/data": {}}
    assert body["HostConfig"]["Binds"] == ["/sets:/datasets:ro", "shared:/shared:rw"]
    assert body["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    before = inspected(2)["Config"]["Labels"]
    changed = {key for key in before if body["Labels"].get(key) != before[key]}
    assert changed == {"com.docker.compose.container-number", "com.docker.compose.replace"}
    assert body["NetworkingConfig"] == {"EndpointsConfig": {"p_default": {"Aliases": ["device"]}}}
    assert (network, aliases) == ("b_extra", ["device"])


def test_a_copy_has_its_own_name_as_alias_and_the_originals_image_even_if_that_name_was_reassigned() -> None:
    for images in ({"stratafl:local": OLD_IMAGE}, {}):
        found = inspected(1)
        for endpoint in found["NetworkSettings"]["Networks"].values():
            endpoint["Aliases"].insert(0, "p_device_1")  # as Compose 2 does
        engine = FakeEngine(OWN, found)
        engine.images = images
        backend(engine).start("device", 1)
        (_, (name, body)), (_, (_, _, aliases)), _ = engine.did
        first = body["NetworkingConfig"]["EndpointsConfig"]["p_default"]["Aliases"]
        assert (name, first, aliases) == ("p_device_2", ["p_device_2", "device"], ["p_device_2", "device"])
        assert body["Image"] == IMAGE


def test_mounts_of_the_newer_kind_keep_only_named_volumes() -> None:
    found = inspected(1)
    found["HostConfig"] |= {"Binds": None, "Mounts": [
        {"Type": "volume", "Source": VOLUME, "Target": "/data"},
        {"Type": "volume", "Target": "/scratch"},
        {"Type": "volume", "Source": "shared", "Target": "/shared"},
        {"Type": "bind", "Source": "/sets", "Target": "/datasets", "ReadOnly": True},
    ]}  # fmt: skip
    body = copy_of(found, 2, IMAGE)
    assert [mount["Target"] for mount in body["HostConfig"]["Mounts"]] == ["/shared", "/datasets"]
    assert body["Volumes"] == {"/data": {}, "/scratch": {}}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("/p_device_1", "p_device_7"), ("/p-device-1", "p-device-7"), ("/own-name", "p-device-7")],
)
def test_a_copys_name_follows_that_of_the_original(name: str, expected: str) -> None:
    assert name_of({**inspected(1), "Name": name}, 7) == expected


def test_a_stopped_container_is_restarted_before_a_new_one_is_created() -> None:
    rows = [inspected(number) for number in (1, 2, 3, 4, 5)]
    for row in rows[1:]:
        row["State"] = "exited"
    rows[1]["Config"]["Labels"]["com.docker.compose.config-hash"] = "of an older configuration"
    rows[2]["Image"] = OLD_IMAGE
    engine = FakeEngine(OWN, *rows)
    found = backend(engine)
    assert [found.start("device", 1) for _ in range(3)] == ["040404040404", "050505050505", "060606060606"]
    assert [did for did, _ in engine.did] == ["start", "start", "create", "connect", "start"]


def test_stopping_stops_only_the_given_containers_and_removes_none() -> None:
    engine = FakeEngine(OWN, inspected(1), inspected(2), inspected(2, project="q"), inspected(3))
    engine.found["q"] = {**inspected(2, project="q"), "Id": "q"}
    engine.found[inspected(2)["Id"]] = inspected(2)
    found = backend(engine)
    found.stop([agent for agent in found.agents() if agent.number >= 2])
    assert sorted(engine.did) == [("stop", (inspected(2)["Id"], 7)), ("stop", (inspected(3)["Id"], 7))]
    assert names(found.agents()) == [("device", 1)]
    assert len(engine.found) == 5


def test_a_refusal_of_the_engine_is_raised_with_its_text() -> None:
    engine = FakeEngine(OWN, inspected(1))
    engine.refuses = "no space left on device"
    found = backend(engine)
    with pytest.raises(EngineError, match="no space left on device"):
        found.stop(found.agents())
    with pytest.raises(EngineError, match="no space left on device"):
        found.start("device", 1)


def test_an_unreadable_socket_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: Any) -> None:
        from docker.errors import DockerException

        raise DockerException("Error while fetching server API version: PermissionError(13, 'Permission denied')")

    monkeypatch.setattr("docker.APIClient", refused)
    with pytest.raises(EngineError, match="DOCKER_GID"):
        Containers(("device",), own="x").agents()
