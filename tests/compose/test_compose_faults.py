"""Containers are killed during a run: the record names what was lost, and the result is that of a run without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.compose.stack import PROJECT, compose, docker, ended, events, submit, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
SPEC = {
    "num_devices": 6,
    "num_edges": 2,
    "local_epochs": 4,
    "lr": 0.05,
    "eval_every": 1000,
    "timeouts": {"visit_s": 600, "ready_s": 300, "reseat_after_s": 600},
}


@pytest.fixture
def run(stack: httpx2.Client) -> str:
    """A long run that has committed at least one round."""
    found = submit(stack, {**SPEC, "num_rounds": 10_000})
    until("a committed round", lambda: committed(stack, found) >= 1)
    return found


def committed(client: httpx2.Client, run: str) -> int:
    """Returns the number of committed rounds, -1 while the cloud does not answer."""
    try:
        return int(client.get(f"/runs/{run}").json().get("rounds", -1))
    except httpx2.HTTPError:
        return -1


def container(service: str) -> str:
    """Returns a container of a service."""
    names = docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={PROJECT}", *_labelled(service))
    return names.split()[0]


def _labelled(service: str) -> list[str]:
    return ["--filter", f"label=com.docker.compose.service={service}"]


def wait_for_rounds(client: httpx2.Client, run: str, n: int = 2) -> None:
    """Wait for `n` further rounds."""
    before = max(committed(client, run), 0)
    until(f"{n} rounds more", lambda: committed(client, run) >= before + n)


def state(client: httpx2.Client, kind: str, key: str, name: str) -> str:
    """Returns the state of an agent or an edge as the cloud shows it."""
    found = [node for node in client.get(f"/{kind}").json()[kind] if node[key] == name]
    return str(found[0]["state"]) if found else "unknown"


def stop_run(client: httpx2.Client, run: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Stop a run; returns its document and its rounds with their seats."""
    client.post(f"/runs/{run}/stop")
    info = ended(client, run)
    return info, rounds_of(client, info)


def rounds_of(client: httpx2.Client, info: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the training rounds of a run with their seats."""
    return [client.get(f"/runs/{info['run']}/rounds/{number}").json() for number in range(1, info["rounds"] + 1)]


def losses_in(rounds: list[dict[str, Any]], reason: str | None = None) -> list[dict[str, Any]]:
    """Returns the recorded losses (for one reason or any) in the form of the spec's field."""
    found = []
    for detail in rounds:
        lost = [row for row in detail["seats"] if row["outcome"] == "failed" and reason in (None, row["reason"])]
        if lost:
            found.append({"round_no": detail["round_no"], "seats": sorted({row["seat"] for row in lost})})
    return found


def same_without(client: httpx2.Client, info: dict[str, Any], rounds: list[dict[str, Any]]) -> None:
    """Checks that a run whose spec declares the recorded losses has the same bits in every round."""
    spec = {**SPEC, "num_rounds": len(rounds), "losses": losses_in(rounds)}
    repeated, again = info, rounds
    for _ in range(3):  # on a busy machine the second run may have losses of its own: such a run is not compared
        repeated = ended(client, submit(client, spec))
        again = rounds_of(client, repeated)
        if losses_in(again) == losses_in(again, "left_out"):
            break
    assert repeated["status"] == "completed"
    assert losses_in(again) == losses_in(rounds)
    models = [(one["model_sha256"], other["model_sha256"]) for one, other in zip(rounds, again, strict=True)]
    other = next((number for number, (one, two) in enumerate(models) if one != two), None)
    assert other is None, (
        f"different bits from here on: {rounds[other or 0]}, with declared losses: {again[other or 0]}"
    )
    assert repeated["model_sha256"] == info["model_sha256"]


def test_a_killed_device_is_named_and_keeps_its_seat_when_it_returns(stack: httpx2.Client, run: str) -> None:
    victim = container("device")
    name = victim[:12]
    agent = next(d["agent"] for d in stack.get("/agents").json()["agents"] if d["name"] == name)
    seat = next(s["seat"] for s in stack.get(f"/runs/{run}/seats").json()["seats"] if s["agent"] == agent)
    docker("kill", victim)
    until("the loss of the device", lambda: state(stack, "agents", "agent", agent) == "lost")
    wait_for_rounds(stack, run)
    docker("start", victim)
    until("the device", lambda: state(stack, "agents", "agent", agent) in ("revived", "alive"))
    wait_for_rounds(stack, run)
    info, rounds = stop_run(stack, run)
    rows = [(d["round_no"], row) for d in rounds for row in d["seats"] if row["seat"] == seat]
    lost = [number for number, row in rows if row["outcome"] == "failed"]
    assert lost
    assert rows[-1][1]["outcome"] == "used"
    assert rows[-1][1]["agent"] == agent
    assert not any(row["fresh_state"] for _, row in rows)
    assert {row["seat"] for d in rounds for row in d["seats"] if row["outcome"] == "failed"} == {seat}
    losses = [data for data in events(stack, run, "node.lost") if data["name"] == agent]
    assert losses == [{"kind": "agent", "name": agent}]
    same_without(stack, info, rounds)


def test_devices_of_a_killed_edge_visit_the_other_until_it_is_back(stack: httpx2.Client, run: str) -> None:
    victim = container("edge")
    lost = docker("exec", victim, "cat", "/data/state/edge-name").strip()
    (other,) = {edge["edge"] for edge in stack.get("/edges").json()["edges"]} - {lost}
    docker("kill", victim)
    until("the loss of the edge", lambda: state(stack, "edges", "edge", lost) == "lost")
    wait_for_rounds(stack, run)
    docker("start", victim)
    until("the edge", lambda: state(stack, "edges", "edge", lost) in ("revived", "alive"))
    wait_for_rounds(stack, run)
    info, rounds = stop_run(stack, run)
    by_edges = [{row["edge"] for row in d["seats"] if row["outcome"] == "used"} for d in rounds]
    assert {other} in by_edges  # all six visited the remaining edge
    assert len(next(d for d, at in zip(rounds, by_edges, strict=True) if at == {other})["seats"]) == 6
    assert by_edges[-1] == {lost, other}
    assert {"kind": "edge", "name": lost} in events(stack, run, "node.lost")
    same_without(stack, info, rounds)


@pytest.mark.parametrize("what", ["the cloud is killed", "Redis is killed", "everything is restarted"])
def test_a_run_resumes_after(stack: httpx2.Client, run: str, what: str) -> None:
    def killed(service: str) -> Callable[[], None]:
        def kill() -> None:
            docker("kill", victim := container(service))
            docker("start", victim)

        return kill

    faults = {
        "the cloud is killed": killed("cloud"),
        "Redis is killed": killed("redis"),
        "everything is restarted": lambda: compose("restart", "-t", "5"),
    }
    faults[what]()
    wait_for_rounds(stack, run, 3)
    info, rounds = stop_run(stack, run)
    assert [d["round_no"] for d in rounds] == list(range(1, info["rounds"] + 1))
    same_without(stack, info, rounds)
