"""The system on a single-node Swarm: deployed, scaled and disturbed during a run, and removed.

Needs a Docker engine that has no swarm yet, or manages one; run by `make stack-test`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.compose import swarm
from tests.compose.stack import ENDED, events
from tests.compose.swarm import docker, scale, tasks, until

pytestmark = [pytest.mark.compose, pytest.mark.swarm, pytest.mark.timeout(1200)]
LIVE = ("alive", "revived", "suspect")
"""States of agents that keep their seats and can get new ones."""
SPEC = {
    "num_edges": 2,
    "num_devices": 3,
    "max_devices": 6,
    "num_rounds": 100_000,
    "local_epochs": 8,
    "lr": 0.05,
    "eval_every": 100_000,
    "timeouts": {"reseat_after_s": 600},
}


@pytest.fixture(scope="module")
def cloud() -> Iterator[httpx2.Client]:
    """A cloud, two edges and three devices in a swarm; all of them are removed at the end."""
    with swarm.swarm():
        with swarm.stack(DEVICES="3") as client:
            until("three devices and two edges", lambda: len(devices(client)) == 3 and len(edges(client)) == 2)
            yield client
        assert swarm.leftovers() == swarm.volumes() == []


def _got(client: httpx2.Client, path: str) -> dict[str, Any]:
    """Returns an answer of the cloud, empty while the cloud does not answer."""
    try:
        answer = client.get(path)
    except httpx2.HTTPError:
        return {}
    return dict(answer.json()) if answer.is_success else {}


def devices(client: httpx2.Client) -> dict[str, str]:
    """Returns the ids of the live agents by the names of their tasks."""
    return {one["name"]: one["agent"] for one in _got(client, "/agents").get("agents", []) if one["state"] in LIVE}


def edges(client: httpx2.Client) -> dict[str, str]:
    """Returns the addresses of the live edges."""
    return {one["edge"]: one["url"] for one in _got(client, "/edges").get("edges", []) if one["state"] in LIVE}


def rounds(client: httpx2.Client, run: str) -> int:
    return int(_got(client, f"/runs/{run}").get("rounds", -1))


def taking_part(client: httpx2.Client, run: str, number: int) -> None:
    """Wait for a round in which this number of seats took part."""
    until(
        f"a round with {number} seats",
        lambda: _got(client, f"/runs/{run}/rounds/{rounds(client, run)}").get("n_used") == number,
    )


def wait_for_rounds(client: httpx2.Client, run: str, n: int = 3) -> None:
    """Wait for `n` further rounds."""
    before = max(until("the cloud", lambda: rounds(client, run) + 1) - 1, 0)
    until(f"{n} rounds more", lambda: rounds(client, run) >= before + n)


@pytest.fixture
def run(cloud: httpx2.Client) -> Iterator[str]:
    """A long run of the three devices."""
    scale("device", 3)
    until("three devices", lambda: len(devices(cloud)) == 3)
    answer = cloud.post("/runs", json={"spec": SPEC})
    assert answer.status_code == 201, answer.text
    yield (name := str(answer.json()["run"]))
    if _got(cloud, f"/runs/{name}").get("status") not in ENDED:  # only one run trains at a time
        cloud.post(f"/runs/{name}/stop")


def stopped(client: httpx2.Client, run: str) -> list[dict[str, Any]]:
    """Stops a run and returns all its rounds."""
    assert client.post(f"/runs/{run}/stop").status_code == 200
    until("the end of the run", lambda: _got(client, f"/runs/{run}").get("status") in ENDED)
    info = _got(client, f"/runs/{run}")
    found = [client.get(f"/runs/{run}/rounds/{number}").json() for number in range(1, info["rounds"] + 1)]
    assert [detail["round_no"] for detail in found] == list(range(1, len(found) + 1))
    return found


def test_devices_added_by_swarm_during_a_run_take_part_in_it(cloud: httpx2.Client, run: str) -> None:
    taking_part(cloud, run, 3)
    before = devices(cloud)
    scale("device", 6)
    taking_part(cloud, run, 6)
    now = devices(cloud)
    assert {name: now[name] for name in before} == before
    assert sorted(now) == [f"device-{number}" for number in range(1, 7)]
    # Redis, the cloud, two edges, data sets and plug-ins have one volume each, and so has each device.
    assert len(swarm.volumes()) == 6 + 6
    record = stopped(cloud, run)
    assert {row["agent"] for row in record[0]["seats"]} == set(before.values())
    assert {row["agent"] for row in record[-1]["seats"]} == set(now.values())
    assert {row["edge"] for row in record[-1]["seats"]} == {"edge-1", "edge-2"}
    assert [failure for detail in record for failure in detail["failures"]] == []
    seated = {event["agent"] for event in events(cloud, run, "seat.taken")}
    assert seated >= {agent for name, agent in now.items() if name not in before}


def test_a_device_stopped_by_swarm_is_lost_and_gets_its_seat_back_with_its_task_number(
    cloud: httpx2.Client, run: str
) -> None:
    taking_part(cloud, run, 3)
    before = devices(cloud)
    scale("device", 2)
    taking_part(cloud, run, 2)
    until("two devices", lambda: len(devices(cloud)) == 2)
    (gone,) = set(before.values()) - set(devices(cloud).values())
    scale("device", 3)
    until("the device", lambda: len(devices(cloud)) == 3)
    taking_part(cloud, run, 3)
    assert devices(cloud) == before  # its folder belongs to its task number
    record = stopped(cloud, run)
    seat = next(row["seat"] for detail in record for row in detail["seats"] if row["agent"] == gone)
    reasons = {failure["reason"] for detail in record for failure in detail["failures"] if failure["seat"] == seat}
    assert "lost" in reasons
    assert reasons <= {"lost", "not_ready"}  # the second reason while its process is ending
    rows = [row for detail in record for row in detail["seats"] if row["seat"] == seat]
    assert (rows[0]["agent"], rows[-1]["outcome"]) == (rows[-1]["agent"], "used")
    assert not any(row["fresh_state"] for row in rows[1:])


@pytest.mark.parametrize("service", ["cloud", "edge", "redis"])
def test_a_run_continues_after_swarm_has_replaced(service: str, cloud: httpx2.Client, run: str) -> None:
    wait_for_rounds(cloud, run)
    before = tasks(service)
    docker("kill", before[0])
    until("another task", lambda: before[0] not in (now := tasks(service)) and len(now) == len(before))
    until("both edges", lambda: sorted(edges(cloud)) == ["edge-1", "edge-2"])
    wait_for_rounds(cloud, run)
    until(
        "a round of all at both edges", lambda: all_took_part(_got(cloud, f"/runs/{run}/rounds/{rounds(cloud, run)}"))
    )
    assert all_took_part(stopped(cloud, run)[-1])


def all_took_part(detail: dict[str, Any]) -> bool:
    """Whether all three devices took part in a round at both edges; while an edge is down they visit the other."""
    return detail.get("n_used") == 3 and {row["edge"] for row in detail["seats"]} == {"edge-1", "edge-2"}


def test_a_run_waits_for_ten_edges_until_swarm_has_started_them(cloud: httpx2.Client) -> None:
    spec = {"num_edges": 10, "num_devices": 10, "num_rounds": 2, "lr": 0.1, "timeouts": {"ready_s": 600}}
    run = str(cloud.post("/runs", json={"spec": spec}).json()["run"])
    until("the wait for edges", lambda: "edges: 2 of 10" in (_got(cloud, f"/runs/{run}").get("reason") or ""))
    try:
        scale("edge", 10)
        scale("device", 10)
        until("the end of the run", lambda: _got(cloud, f"/runs/{run}").get("status") in ENDED)
        info = _got(cloud, f"/runs/{run}")
        assert (info["status"], info["reason"]) == ("completed", None)
        rows = _got(cloud, f"/runs/{run}/rounds/2")["seats"]
        assert {row["edge"] for row in rows} == {f"edge-{number}" for number in range(1, 11)}
    finally:
        scale("edge", 2)
        scale("device", 3)
    until("two edges", lambda: sorted(edges(cloud)) == ["edge-1", "edge-2"])


def test_requests_without_the_secret_are_refused(cloud: httpx2.Client) -> None:
    assert cloud.get("/runs", headers={"Authorization": ""}).status_code == 401
    assert cloud.get("/healthz", headers={"Authorization": ""}).status_code == 200
    for name in ("cloud", "edge", "device"):
        output = docker("inspect", tasks(name)[0])
        assert str(cloud.headers["Authorization"]).removeprefix("Bearer ") not in output
        assert "DEVELOPMENT MODE" not in docker("logs", tasks(name)[0])
