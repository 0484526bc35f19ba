"""Shared parts of the container tests: the stack and its queries."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx2

from tests import waits
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
URL = "http://127.0.0.1:8000"
PROJECT = "stratafl-test"
ENDED = ("completed", "failed", "stopped")


def compose(*words: str, project: str = PROJECT, **variables: str) -> str:
    ours = ("STRATA_", "DEVICES_", "AGENT_", "CLOUD_", "FLEET_", "MLFLOW_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = ["docker", "compose", "-p", project, *words]
    done = subprocess.run(
        command, cwd=ROOT, env=env | variables, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=120, check=True).stdout


def until(what: str, condition: Any, limit_s: float = HANG_S) -> Any:
    """Wait for a condition of the stack; the error shows the last lines of the logs."""
    try:
        return waits.until(what, condition, limit_s, every_s=0.3)
    except waits.Hang as hang:
        raise waits.Hang(f"{hang}\n{compose('logs', '--tail', '20')}") from None


def down() -> None:
    """Remove the stack with its volumes and all further containers of the project."""
    compose("--profile", "scale", "down", "-v", "--remove-orphans")


def leftovers() -> list[str]:
    """Returns all containers and networks of the project."""
    mine = ("--filter", f"label=com.docker.compose.project={PROJECT}")
    return docker("ps", "-a", "--format", "{{.Names}}", *mine).split() + docker("network", "ls", "-q", *mine).split()


def n_devices(client: httpx2.Client) -> int:
    try:
        return int(client.get("/topology").json()["n_devices"])
    except httpx2.HTTPError:
        return -1


def scaled(client: httpx2.Client, service: str, number: int, n_all: int) -> None:
    """Scale a device service to `number` containers and wait for `n_all` agents of all services."""
    compose("up", "-d", "--no-deps", "--no-recreate", "--scale", f"{service}={number}", service)
    until(f"{number} of {service}", lambda: n_agents(client) == n_all == n_devices(client))


def n_agents(client: httpx2.Client) -> int:
    """Returns the number of live agents whose containers run; a removed agent counts as alive until its TTL."""
    names = {container[:12] for container in running()}
    found = client.get("/agents").json()["agents"]
    return sum(device["state"] in ("alive", "revived") and device["name"] in names for device in found)


def running() -> list[str]:
    """Returns the ids of the project's containers."""
    return docker("ps", "-q", "--no-trunc", "--filter", f"label=com.docker.compose.project={PROJECT}").split()


def submit(client: httpx2.Client, spec: dict[str, Any]) -> str:
    answer = client.post("/runs", json={"spec": spec})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["run"])


def ended(client: httpx2.Client, run: str, limit_s: float = HANG_S) -> dict[str, Any]:
    info: dict[str, Any] = until(
        f"the end of {run}", lambda: (found := client.get(f"/runs/{run}").json())["status"] in ENDED and found, limit_s
    )
    return info


def events(client: httpx2.Client, run: str, kind: str) -> list[dict[str, Any]]:
    """Returns the events of one kind of an ended run."""
    text = client.get(f"/runs/{run}/events").text
    found = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    return [event["data"] for event in found if event["kind"] == kind]


def seat_of(client: httpx2.Client, run: str, seat: int) -> dict[str, Any]:
    return dict(client.get(f"/runs/{run}/seats").json()["seats"][seat])


def round_with(client: httpx2.Client, run: str, seat: int, outcome: str) -> dict[str, Any] | None:
    """Returns the newest round if this seat has this outcome in it."""
    newest = client.get(f"/runs/{run}").json()["rounds"]
    detail = client.get(f"/runs/{run}/rounds/{newest}").json()
    found = [row for row in detail.get("seats", []) if row["seat"] == seat and row["outcome"] == outcome]
    return detail if found else None
