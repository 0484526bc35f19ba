"""The fleet in real containers: REST requests scale devices during a run, and Compose keeps managing them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.compose.stack import PROJECT, compose, docker, ended, events, submit, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
SOCKET = Path("/var/run/docker.sock")


@pytest.fixture
def scaled(stack: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx2.Client]:
    """The stack with its fleet and four devices; at the end with six devices and without the fleet."""
    monkeypatch.setenv("DOCKER_GID", str(os.stat(SOCKET).st_gid))
    compose("--profile", "scale", "up", "-d", "--no-recreate", "--no-deps", "fleet")
    until("the fleet", lambda: stack.get("/topology").json()["fleet"])
    try:
        request_devices(stack, 4)
        yield stack
        request_devices(stack, 6)
    finally:
        compose("--profile", "scale", "rm", "-s", "-f", "-v", "fleet")


def request_devices(client: httpx2.Client, number: int) -> None:
    """Request this number of devices and wait until it is reached."""
    answer = client.put("/topology", json={"devices": number})
    assert answer.status_code == 200, answer.text
    until(f"{number} devices", lambda: is_reached(client.get("/topology").json(), number))


def request_edges(client: httpx2.Client, number: int) -> None:
    """Request this number of edges and wait until it is reached."""
    answer = client.put("/topology", json={"edges": number})
    assert answer.status_code == 200, answer.text

    def reached() -> bool:
        found = client.get("/topology").json()
        return bool(found["present_edges"] == found["fleet"]["running_edges"] == number)

    until(f"{number} edges", reached)


def is_reached(found: dict[str, Any], number: int) -> bool:
    """Whether this number is running and all leaving agents have left."""
    running = (found["fleet"] or {}).get("running", {})
    return bool(found["present"].get("device") == running.get("device", 0) == number)


def containers(*more: str) -> list[str]:
    """Returns the names of the project's running device containers."""
    return sorted(docker("ps", *more, "--format", "{{.Names}}", *labelled("device")).split())


def labelled(service: str) -> list[str]:
    """Returns the words with which `docker ps` shows the project's containers of a service alone."""
    labels = [f"label=com.docker.compose.project={PROJECT}", f"label=com.docker.compose.service={service}"]
    return [word for label in labels for word in ("--filter", label)]


def taking_part(client: httpx2.Client, run: str, number: int) -> None:
    """Wait for a round in which this number of seats took part."""

    def newest() -> dict[str, Any]:
        last = client.get(f"/runs/{run}").json()["rounds"]
        return dict(client.get(f"/runs/{run}/rounds/{last}").json()) if last else {}

    until(f"a round with {number} seats", lambda: newest().get("n_used") == number)


def test_devices_are_scaled_during_a_run_and_the_record_shows_who_took_part(scaled: httpx2.Client) -> None:
    spec = {"num_devices": 4, "max_devices": 8, "num_rounds": 100_000, "lr": 0.05, "eval_every": 100_000}
    run = submit(scaled, spec)
    taking_part(scaled, run, 4)
    request_devices(scaled, 8)
    taking_part(scaled, run, 8)
    assert len(containers()) == len(compose("ps", "-q", "device").split()) == 8
    request_devices(scaled, 3)
    taking_part(scaled, run, 3)
    assert len(containers()) == 3
    assert scaled.post(f"/runs/{run}/stop").status_code == 200
    info = ended(scaled, run)
    rounds = [scaled.get(f"/runs/{run}/rounds/{number}").json() for number in range(1, info["rounds"] + 1)]
    counts = [len({row["seat"] for row in detail["seats"]}) for detail in rounds]
    assert (counts[0], max(counts), counts[-1]) == (4, 8, 3)
    assert [failure["detail"] for detail in rounds for failure in detail["failures"]] == []
    gone = {row["agent"] for row in rounds[counts.index(8)]["seats"]} - {row["agent"] for row in rounds[-1]["seats"]}
    assert {event["agent"] for event in events(scaled, run, "seat.left")} == gone
    assert len(gone) == 5
    assert {scaled.get(f"/agents/{agent}").json()["state"] for agent in gone} == {"left"}


def test_ten_edges_start_for_a_run_that_waits_for_them_and_two_remain_after_it(scaled: httpx2.Client) -> None:
    request_devices(scaled, 10)
    run = submit(scaled, {"num_edges": 10, "num_devices": 10, "num_rounds": 2, "lr": 0.1})
    until("the wait for edges", lambda: "edges: 2 of 10" in (scaled.get(f"/runs/{run}").json()["reason"] or ""))
    request_edges(scaled, 10)
    info = ended(scaled, run)
    assert (info["status"], info["rounds"]) == ("completed", 2), info["reason"]
    shown = scaled.get("/edges").json()["edges"]
    hosts = docker("ps", "-q", *labelled("edge")).split()
    assert {edge["name"] for edge in shown} == set(hosts)
    assert len({edge["edge"] for edge in shown}) == 10
    request_edges(scaled, 2)
    request_devices(scaled, 4)
    assert len(scaled.get("/edges").json()["edges"]) == 2


def test_a_stopped_container_restarts_with_its_id_and_compose_knows_all_containers(scaled: httpx2.Client) -> None:
    before = {d["name"]: d["agent"] for d in scaled.get("/agents").json()["agents"] if d["state"] != "left"}
    all_before = containers("-a")
    request_devices(scaled, 2)
    assert len(containers()) == 2
    request_devices(scaled, 4)
    back = {d["name"]: d["agent"] for d in scaled.get("/agents").json()["agents"] if d["state"] != "left"}
    assert {name: back[name] for name in before} == before
    assert containers("-a") == all_before  # no container was created
    hashes = docker(
        "inspect", "--format", '{{index .Config.Labels "com.docker.compose.config-hash"}} {{.Image}}', *containers("-a")
    )
    assert len(set(hashes.splitlines())) == 1
    folders = docker(
        "inspect",
        "--format",
        '{{range .Mounts}}{{if eq .Destination "/data"}}{{.Name}}{{end}}{{end}}',
        *containers("-a"),
    )
    assert len(set(folders.split())) == len(containers("-a"))  # one folder for each container


def test_a_device_container_of_another_project_is_left_alone(scaled: httpx2.Client) -> None:
    image = docker("inspect", "--format", "{{.Image}}", containers()[0]).strip()
    labels = ["--label", "com.docker.compose.project=another", "--label", "com.docker.compose.service=device"]
    stranger = docker("run", "-d", *labels, image, "sleep", "600").strip()
    try:
        request_devices(scaled, 0)
        assert containers() == []
        assert docker("inspect", "--format", "{{.State.Status}}", stranger).strip() == "running"
        request_devices(scaled, 4)
    finally:
        docker("rm", "-f", "-v", stranger)


def test_a_fleet_that_may_not_read_the_socket_says_so(stack: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.stat(SOCKET).st_gid == 54321:
        pytest.skip("that group may read the socket here")
    monkeypatch.setenv("DOCKER_GID", "54321")
    compose("--profile", "scale", "up", "-d", "--no-recreate", "--no-deps", "fleet")
    try:
        error = until("the reason", lambda: (stack.get("/topology").json()["fleet"] or {}).get("error"))
        assert "DOCKER_GID" in error
    finally:
        compose("--profile", "scale", "rm", "-s", "-f", "-v", "fleet")
