"""Shares planned from measured speeds, in containers with limited CPU: `docker-compose.cpus.yml`."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import httpx2
import pytest
import yaml

from tests.compose.stack import ROOT, compose, docker, ended, n_agents, n_devices, running, submit, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
LIMITS = ("-f", "docker-compose.yml", "-f", "docker-compose.cpus.yml")
CPUS = {"edge": 0.2, "device": 0.4, "device_slow": 0.1}


@pytest.fixture
def limited(stack: httpx2.Client) -> Iterator[httpx2.Client]:
    """The stack with two devices and an edge with CPU limits; at the end six devices without limits."""
    try:
        compose(*LIMITS, "up", "-d", "--no-deps", "--scale", "device=1", "--scale", "device_slow=1", *CPUS)
        until("two limited devices", lambda: are_alive(stack, 2))
        yield stack
    finally:
        compose("rm", "-s", "-f", "-v", "device_slow")
        compose("up", "-d", "--no-deps", "--scale", "device=6", "edge", "device")
        until("six devices", lambda: are_alive(stack, 6))


def are_alive(client: httpx2.Client, number: int) -> bool:
    """Whether this number of devices and both edges are alive."""
    states = {edge["state"] for edge in client.get("/edges").json()["edges"]}
    return n_agents(client) == number == n_devices(client) and states <= {"alive", "revived"}


def test_shares_follow_measured_speeds_and_rounds_are_faster_than_with_own_data(
    limited: httpx2.Client,
) -> None:
    assert limits() == CPUS
    spec = yaml.safe_load((ROOT / "experiments" / "dtpfl_cpus.yaml").read_text(encoding="utf-8"))
    own = rounds_of(limited, {**spec, "schedule": "own_data", "num_rounds": 3})
    planned = rounds_of(limited, spec)
    edge = planned[-1]["seats"][0]["edge"]
    twins = limited.get(f"/edges/{edge}/twins").json()["twins"]
    for detail in (*own, *planned):
        assert sum(row["n_samples"] for row in detail["seats"]) == 1438
        assert {row["outcome"] for row in detail["seats"]} == {"used"}
    known = {seen["telemetry"]["cpu"]["limit"] for seen in twins}
    assert known == set(CPUS.values())  # as the processes report them
    first = by_kind(planned[0])  # before anything was measured
    assert first["slow"]["n_samples"] < 0.5 * first["fast"]["n_samples"]
    settled = [by_kind(detail) for detail in planned[3:]]
    n_slow, n_fast = (sum(rows[kind]["n_samples"] for rows in settled) for kind in ("slow", "fast"))
    assert n_slow < 0.75 * n_fast  # a quarter, if nothing else slows down the fast device
    # The first rounds are left out: they include one-time preparation, and no speed is known yet.
    assert median(detail["wall_s"] for detail in planned[3:]) < 0.8 * median(detail["wall_s"] for detail in own[1:])
    for twin in twins:
        measured = [row["measured_s"] for detail in planned for row in detail["seats"] if row["seat"] == twin["seat"]]
        assert [seen["took_s"] for seen in twin["history"]] == pytest.approx(measured)
        assert all(seen["error_s"] == pytest.approx(seen["took_s"] - seen["predicted_s"]) for seen in twin["history"])


def limits() -> dict[str, float]:
    """Returns the CPU limits of the engine by service."""
    found = '{{index .Config.Labels "com.docker.compose.service"}} {{.HostConfig.NanoCpus}}'
    lines = [line.split() for line in docker("inspect", "--format", found, *running()).splitlines()]
    return {service: int(nano) / 1e9 for service, nano in lines if int(nano)}


def rounds_of(client: httpx2.Client, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Completes a run of a spec and returns all its rounds."""
    info = ended(client, submit(client, spec), 600)
    assert info["status"] == "completed", info["reason"]
    return [client.get(f"/runs/{info['run']}/rounds/{n}").json() for n in range(1, info["rounds"] + 1)]


def by_kind(detail: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the rows of a round by kind of device: seats are assigned by profile name, the slow device's first."""
    return dict(zip(("slow", "fast", "edge"), sorted(detail["seats"], key=lambda row: row["seat"]), strict=True))
