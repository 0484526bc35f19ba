"""Shares planned by what was measured, in containers whose CPU the engine limits: `docker-compose.cpus.yml`."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import httpx
import pytest
import yaml

from tests.compose.stack import ROOT, compose, docker, ended, n_agents, n_devices, running, submit, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
LIMITS = ("-f", "docker-compose.yml", "-f", "docker-compose.cpus.yml")
CPUS = {"edge-1": 0.2, "device": 0.4, "device_slow": 0.1}


@pytest.fixture
def limited(stack: httpx.Client) -> Iterator[httpx.Client]:
    """The stack with two devices and an edge that are limited; afterwards with six devices and no limits again."""
    try:
        compose(*LIMITS, "up", "-d", "--no-deps", "--scale", "device=1", "--scale", "device_slow=1", *CPUS)
        until("two limited devices", lambda: there(stack, 2))
        yield stack
    finally:
        compose("rm", "-s", "-f", "-v", "device_slow")
        compose("up", "-d", "--no-deps", "--scale", "device=6", "edge-1", "device")
        until("six devices", lambda: there(stack, 6))


def there(client: httpx.Client, number: int) -> bool:
    """Whether so many devices, and both edges, take part."""
    states = {edge["state"] for edge in client.get("/edges").json()["edges"]}
    return n_agents(client) == number == n_devices(client) and states <= {"alive", "revived"}


def test_shares_follow_measured_speeds_and_rounds_are_faster_than_with_own_data(
    limited: httpx.Client,
) -> None:
    assert limits() == CPUS
    spec = yaml.safe_load((ROOT / "experiments" / "dtpfl_cpus.yaml").read_text(encoding="utf-8"))
    own = rounds_of(limited, {**spec, "schedule": "own_data", "num_rounds": 3})
    planned = rounds_of(limited, spec)
    twins = limited.get("/edges/edge-1/twins").json()["twins"]
    for detail in (*own, *planned):
        assert sum(row["n_samples"] for row in detail["seats"]) == 1438
        assert {row["outcome"] for row in detail["seats"]} == {"used"}
    settled = [by_kind(detail) for detail in planned[3:]]
    n_slow, n_fast = (sum(rows[kind]["n_samples"] for rows in settled) for kind in ("slow", "fast"))
    assert n_slow < 0.75 * n_fast  # a quarter, where nothing else hinders the fast one
    # The first rounds are left out: they also pay for what each process prepares once, and nothing is known in them.
    assert median(detail["wall_s"] for detail in planned[3:]) < 0.8 * median(detail["wall_s"] for detail in own[1:])
    for twin in twins:
        told = [row["measured_s"] for detail in planned for row in detail["seats"] if row["seat"] == twin["seat"]]
        assert [seen["took_s"] for seen in twin["history"]] == pytest.approx(told)
        assert all(seen["error_s"] == pytest.approx(seen["took_s"] - seen["predicted_s"]) for seen in twin["history"])


def limits() -> dict[str, float]:
    """CPUs that the engine grants, by service."""
    found = '{{index .Config.Labels "com.docker.compose.service"}} {{.HostConfig.NanoCpus}}'
    told = [line.split() for line in docker("inspect", "--format", found, *running()).splitlines()]
    return {service: int(nano) / 1e9 for service, nano in told if int(nano)}


def rounds_of(client: httpx.Client, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """All rounds of a completed run of it."""
    info = ended(client, submit(client, spec), 600)
    assert info["status"] == "completed", info["reason"]
    return [client.get(f"/runs/{info['run']}/rounds/{n}").json() for n in range(1, info["rounds"] + 1)]


def by_kind(detail: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of a round: agents are seated by their profiles' names, the slow one's comes first."""
    return dict(zip(("slow", "fast", "edge"), sorted(detail["seats"], key=lambda row: row["seat"]), strict=True))
