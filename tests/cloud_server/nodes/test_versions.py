"""Edges and agents with other packages than the cloud are shown with the reason, and take part in no run."""

from __future__ import annotations

import asyncio

import pytest

import device_agent.app
import edge_server.app
from cloud_server.nodes import liveness
from shared.core.versions import versions
from shared.storage import redis_keys
from tests.federation import Federation, small_spec

WHY = f"torch 0.1, the cloud has {versions()['torch']}"


def other_versions() -> dict[str, str]:
    return {**versions(), "torch": "0.1"}


@pytest.mark.layout(agent_devices=(2, 2, 2))
async def test_an_agent_with_another_torch_takes_no_seat_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fed: Federation
) -> None:
    await fed.stop("agent-2")
    monkeypatch.setattr(device_agent.app, "versions", other_versions)
    await fed.start_agent(2)
    registry = fed.cloud.registry
    await fed.until(lambda: registry.agents[fed.agent_id(2)].versions["torch"] == "0.1")
    shown = (await fed.client.get(f"/agents/{fed.agent_id(2)}")).json()
    assert (shown["state"], shown["reason"]) == ("left_out", WHY)
    info = await fed.run(small_spec())  # begins with fewer devices, as if the agent were not there
    assert info.status == "completed"
    assert fed.agent_id(2) not in {seat.agent for seat in (await fed.seats(info.run)).seats}
    text = f"the cloud leaves this agent out of runs: {WHY}"
    await fed.until(lambda: text in caplog.text)
    assert f"takes part in no run: {WHY}" in caplog.text


async def test_a_run_that_waits_for_an_edge_names_the_one_that_is_left_out(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    await fed.lose("edge-1")
    monkeypatch.setattr(edge_server.app, "versions", dict)  # as an edge of an earlier version, which reports none
    await fed.start_edge(1)
    registry = fed.cloud.registry
    await fed.until(lambda: registry.edges["edge-2"].left_out is not None)
    run_id = await fed.submit(small_spec())
    while "left out: edge edge-2 (it reports no versions" not in str((await fed.info(run_id)).reason):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    edge = (await fed.client.get("/edges")).json()["edges"][1]
    assert edge["state"] == "left_out"
    assert "it reports no versions" in edge["reason"]


@pytest.mark.whole
async def test_seats_of_an_agent_that_comes_back_with_other_packages_move(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    run_id = await fed.start_and_pause(small_spec(timeouts={"reseat_after_s": 0}), 1)
    await fed.stop("agent-2")
    monkeypatch.setattr(device_agent.app, "versions", other_versions)
    await fed.start_agent(2)
    registry = fed.cloud.registry
    await fed.until(lambda: registry.agents[fed.agent_id(2)].left_out is not None)
    await fed.control(run_id, "resume")
    assert (await fed.finish(run_id)).status == "completed"
    detail = await fed.round(run_id, 2)
    assert fed.agent_id(2) not in {row.agent for row in detail.seats}
    assert {row.outcome for row in detail.seats} == {"used"}


async def test_a_restarted_cloud_of_another_version_leaves_out_the_nodes_that_it_knew(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    await fed.stop("cloud")
    monkeypatch.setattr(liveness, "versions", other_versions)
    await fed.start_cloud()
    registry = fed.cloud.registry
    await fed.until(lambda: len(registry.agents) == 6 and len(registry.edges) == 2)
    ready = await fed.client.get("/readyz")
    assert registry.live_agents() == []
    assert registry.live_edges() == []
    assert ready.status_code == 503
    assert any("left out: edge edge-1 (torch" in text for text in ready.json()["missing"])


@pytest.mark.whole
@pytest.mark.layout(heartbeat_s=0.2)
async def test_nodes_whose_stored_entries_cannot_be_read_register_again(fed: Federation) -> None:
    await fed.stop("cloud")
    await fed.store.put(redis_keys.cloud_agent(fed.agent_id(0)), b'{"agent": "of another version"}')
    await fed.store.put(redis_keys.cloud_edge("edge-1"), b"nothing")
    await fed.start_cloud()
    registry = fed.cloud.registry
    await fed.until(lambda: fed.n_agents() == 6 and len(registry.live_edges()) == 2)
    assert (await fed.run(small_spec())).status == "completed"
