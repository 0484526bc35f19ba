"""Nodes that cannot answer, are there twice, cannot be called back, or have a wrong clock."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from shared.service.needs import Needs
from shared.storage.key_value import StoreUnavailable
from tests.federation import AGENT_PORT, EDGE_PORT, Federation, small_spec

TWICE = "another process of that name at"


async def events_of(fed: Federation, run_id: str, kind: str) -> list[dict[str, Any]]:
    return [dict(event.data) for event in await fed.events(run_id, kind)]


async def readyz(fed: Federation, port: int) -> Any:
    return (await fed.client.get(f"http://127.0.0.1:{port}/readyz")).json()


# ---- what a node lacks


@pytest.mark.whole
@pytest.mark.layout(heartbeat_s=0.2)
async def test_an_edge_that_lacks_its_redis_is_out_after_the_ttl_with_that_reason_and_returns(fed: Federation) -> None:
    why = "Redis at there:6379 does not answer: refused"

    async def fails() -> None:
        raise StoreUnavailable(why)

    edge, registry = fed.apps["edge-1"].state.edge, fed.cloud.registry
    # the order of the second edge, which never arrives
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=3), path="/rounds", port=EDGE_PORT + 1)
    store, edge.needs.store = edge.needs.store, fails
    await edge.needs.look()
    assert why in (await readyz(fed, EDGE_PORT + 1))["missing"]
    await fed.until(lambda: registry.seen_edges["edge-2"].lacks == why)
    assert registry.edge_is_live("edge-2")
    await fed.pass_time(1.1 * fed.ttl_s)  # its heartbeats go on
    assert not registry.edge_is_live("edge-2")
    [_, info] = (await fed.client.get("/edges")).json()["edges"]
    assert (info["state"], info["reason"]) == ("left_out", f"it lacks what it needs: {why}")
    await fed.until(lambda: bool(fed.cloud.runs.training[0].rounds))
    while not await events_of(fed, run_id, "node.left_out"):  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.02)
    edge.needs.store = store
    await fed.until(lambda: registry.edge_is_live("edge-2"))
    gate.open.set()
    end = await fed.finish(run_id)
    first = await fed.round(run_id, 1)
    left_out = await events_of(fed, run_id, "node.left_out")
    assert end.status == "completed"
    assert [(f.edge, f.reason) for f in first.failures] == [("edge-2", "lost")]
    assert why in first.failures[0].detail
    assert left_out == [{"kind": "edge", "name": "edge-2", "reason": f"it lacks what it needs: {why}"}]


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1), heartbeat_s=0.2)
async def test_an_agent_that_lacks_its_folder_gets_no_seats_until_it_is_back(tmp_path: Path, fed: Federation) -> None:
    agent, registry = fed.apps["agent-1"].state.agent, fed.cloud.registry
    (tmp_path / "data").mkdir()
    agent.membership.needs.read = Needs({}, {"STRATA_DATA_DIR": tmp_path / "data"}).read
    (tmp_path / "data").rmdir()
    await agent.membership.needs.look()
    assert (await readyz(fed, AGENT_PORT + 1))["missing"] == [f"STRATA_DATA_DIR {tmp_path / 'data'} is gone"]
    await fed.until(lambda: bool(registry.seen_agents[fed.agent_id(1)].lacks))
    await fed.pass_time(1.1 * fed.ttl_s)
    assert [entry.agent for entry in registry.live_agents()] == [fed.agent_id(0)]
    assert "STRATA_DATA_DIR" in registry.left_out()
    (tmp_path / "data").mkdir()
    await agent.membership.needs.look()
    await fed.until(lambda: len(registry.live_agents()) == 2)


# ---- two processes of one name


async def second(fed: Federation, name: str, port: int) -> dict[str, Any]:
    """Registers another process as a node that is there; returns the answer."""
    tier = name.partition("-")[0]
    hello: dict[str, Any] = {"port": port, "nonce": "another-nonce-of-16"}
    if tier == "edge":
        hello |= {"edge": fed.node_id(name)}
    else:
        hello |= {"agent": fed.node_id(name), "name": "copy", "devices": 1, "profile": "standard"}
    fed.router.apps[port] = answering(hello["nonce"])
    answer = await fed.client.post(f"/{tier}s", json=hello)
    return {"status": answer.status_code, **answer.json()}


def answering(nonce: str) -> Any:
    from tests.cloud_server.api.test_nodes import unknown_process

    return unknown_process({"nonce": nonce})


@pytest.mark.parametrize(("name", "kind", "port"), [("edge-0", "edge", EDGE_PORT), ("agent-0", "agent", AGENT_PORT)])
@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_a_second_process_of_a_name_is_refused_and_the_first_goes_on(
    name: str, kind: str, port: int, caplog: pytest.LogCaptureFixture, fed: Federation
) -> None:
    gate, run_id = await fed.submit_and_hold({**small_spec(), "num_devices": 1, "num_edges": 1})
    refused = await second(fed, name, 9400)
    again = await second(fed, name, 9400)
    assert (refused["status"], refused["code"]) == (again["status"], again["code"]) == (409, "conflict")
    assert f"{fed.node_id(name)} at http://127.0.0.1:{port} goes on, and {TWICE}" in refused["detail"]
    gate.open.set()
    end = await fed.finish(run_id)
    told = await events_of(fed, run_id, "node.refused")
    assert end.status == "completed"
    assert [(event["kind"], event["name"]) for event in told] == [(kind, fed.node_id(name))]
    assert caplog.text.count("a registration as ") == 1


@pytest.mark.layout(n_edges=1, agent_devices=(1,), heartbeat_s=0.2)
async def test_a_process_that_was_replaced_while_it_stood_still_is_told_and_refused(fed: Federation) -> None:
    cloud, edge = fed.cloud, fed.apps["edge-0"].state.edge
    old = fed.router.apps.pop(EDGE_PORT)  # it answers no more, and sends heartbeats again later
    taken = await second(fed, "edge-0", 9400)
    assert taken["status"] == 200
    fed.router.apps[EDGE_PORT] = old
    await fed.until(lambda: edge.membership.refusal is not None and TWICE in edge.membership.refusal)
    assert cloud.registry.edges["edge-1"].url == "http://127.0.0.1:9400"
    assert TWICE in (await readyz(fed, EDGE_PORT))["missing"][-1]


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_a_restarted_node_takes_its_name_over_at_once(fed: Federation) -> None:
    for name in ("agent-0", "edge-0"):
        await fed.stop(name)
    await fed.start_edge(0)
    await fed.start_agent(0)
    await fed.until(lambda: fed.n_agents() == 1)
    assert (await fed.run({**small_spec(), "num_devices": 1, "num_edges": 1})).status == "completed"


# ---- nodes that cannot be called back


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_node_that_the_cloud_cannot_reach_is_told_why(fed: Federation) -> None:
    hello = {"agent": "a-1", "name": "a", "devices": 1, "profile": "standard", "port": 9400, "nonce": "x" * 16}
    refused = await fed.client.post("/agents", json=hello)
    ready = await fed.client.get("/readyz")
    assert refused.status_code == 403
    said = refused.json()["detail"]
    assert said.startswith(
        "the cloud cannot call you back at http://127.0.0.1:9400: this deployment needs devices that"
    )
    assert ready.json()["warnings"] == [f"agent a-1: {said}"]


# ---- clocks


@pytest.mark.layout(n_edges=1, agent_devices=(1,), heartbeat_s=0.2)
async def test_a_wrong_clock_of_an_edge_or_an_agent_is_told_at_the_cloud_and_at_the_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fed: Federation
) -> None:
    registry, edge = fed.cloud.registry, fed.apps["edge-0"].state.edge
    gate, run_id = await fed.submit_and_hold({**small_spec(), "num_devices": 1, "num_edges": 1})
    edge.roster.wall = lambda: time.time() + 612  # of this machine alone
    await fed.until(lambda: dict(clocks(registry)).get("edge-1", 0.0) > 600)
    edge.membership.registered = False
    await fed.until(lambda: edge.membership.clock_note != "")
    await fed.until(lambda: bool(fed.cloud.runs.queue._monitor._wrong_clocks))
    gate.open.set()
    await fed.finish(run_id)
    told = await events_of(fed, run_id, "node.clock")
    ready = await fed.client.get("/readyz")
    [info] = (await fed.client.get("/edges")).json()["edges"]
    assert [(event["kind"], event["name"]) for event in told] == [("edge", "edge-1")]
    assert "the clock of edge edge-1 is 612 s ahead" in str(told[0]["reason"])
    assert abs(info["clock_ahead_s"] - 612) < 30
    assert "the clock of edge edge-1 is 61" in ready.json()["warnings"][0]
    assert abs(dict(clocks(registry))[fed.agent_id(0)]) < 30  # compared through the edge, whose clock is known
    assert "the clock of this machine is 612 s ahead" in caplog.text


def clocks(registry: Any) -> list[tuple[str, float]]:
    return [(name, ahead_s) for _, name, ahead_s in registry.clocks()]
