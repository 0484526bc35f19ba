"""Fleets at the cloud: the wanted number, which agents may be stopped, and the effects on a run."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.runs import executor
from cloud_server.runs.starts import first_checkpoint
from shared.core.number_sets import NumberSet
from shared.service.api.membership import FleetReport
from shared.storage import redis_keys
from tests.federation import Federation, Gate, small_spec
from tests.waits import HANG_S


def report(*agents: tuple[str, int], services: dict[str, int | None] | None = None, **more: Any) -> dict[str, Any]:
    rows = [{"name": name, "service": "device", "devices": devices} for name, devices in agents]
    return {"fleet": "f-1", "services": services or {"device": 1}, "agents": rows, **more}


def report_of(fed: Federation, **more: Any) -> dict[str, Any]:
    """Returns the report of a fleet that runs all agents of the federation."""
    running = sorted(name for name in fed.apps if name.startswith("agent-"))
    return report(*((name, 1) for name in running), **more)


async def send_report(fed: Federation, body: dict[str, Any]) -> dict[str, Any]:
    answer = await fed.client.post("/fleet", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def put(fed: Federation, devices: Any) -> httpx2.Response:
    return await fed.client.put("/topology", json={"devices": devices})


async def topology(fed: Federation) -> dict[str, Any]:
    return dict((await fed.client.get("/topology")).json())


# ---- the wanted number


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_without_a_fleet_a_scale_request_is_refused_with_advice(fed: Federation) -> None:
    refused = await put(fed, 7)
    assert (refused.status_code, refused.json()["field"]) == (409, "devices")
    assert "docker compose --profile scale up -d fleet" in refused.json()["detail"]
    assert "strata up" in refused.json()["detail"]
    found = await topology(fed)
    assert (found["wanted"], found["present"], found["fleet"]) == ({}, {}, None)


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1))
async def test_a_requested_number_is_stored_sent_to_the_fleet_and_shown_beside_the_actual_one(fed: Federation) -> None:
    first = await send_report(fed, report_of(fed, error="no room"))
    assert first == {"wanted": {}, "wanted_edges": None, "released": []}
    for _ in range(2):  # repeating the request changes nothing
        answer = await put(fed, 12)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["wanted"], answer.json()["present"]) == ({"device": 12}, {"device": 2})
    fleet = (await topology(fed))["fleet"]
    assert (fleet["fleet"], fleet["services"], fleet["running"]) == ("f-1", {"device": 1}, {"device": 2})
    assert (fleet["error"], fleet["wanted"], fleet["leaving"]) == ("no room", {}, [])
    assert 0 <= fleet["last_seen_s"] <= fleet["since_s"]
    assert (await send_report(fed, report_of(fed)))["wanted"] == {"device": 12}
    await fed.restart_cloud()  # the wanted number survives a restart of the cloud
    assert (await send_report(fed, report_of(fed)))["wanted"] == {"device": 12}
    assert (await send_report(fed, report_of(fed, begins=True)))["wanted"] == {}


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_request_beyond_the_fleets_limits_is_refused_by_field(fed: Federation) -> None:
    await send_report(fed, report(services={"device": 4, "device_slow": None}))
    wrong: list[tuple[Any, str, str]] = [
        (8, "devices", "the fleet scales device, device_slow: say how many of each"),
        ({"phone": 8}, "devices.phone", "unknown service 'phone'; known: device, device_slow"),
        ({"device": 10}, "devices.device", "hosts 4 devices: 10 is not a multiple of 4; 8 and 12 are"),
        ({"device": 8, "device_slow": 999_999}, "devices", "1000007 devices, at most 1000000"),
    ]
    for devices, field, message in wrong:
        refused = await put(fed, devices)
        assert (refused.status_code, refused.json()["field"]) == (422, field), devices
        assert message in refused.json()["detail"]
    for devices in (-1, 1_000_001, 1.5, "many", None, {"device": -4}):
        refused = await put(fed, devices)
        assert (refused.status_code, refused.json()["field"]) == (422, "devices"), devices
    assert (await topology(fed))["wanted"] == {}
    assert (await put(fed, {"device": 8})).json()["wanted"] == {"device": 8}
    both = await put(fed, {"device_slow": 3})
    assert both.json()["wanted"] == {"device": 8, "device_slow": 3}


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_request_for_a_service_that_was_removed_is_dropped_by_the_next_request(fed: Federation) -> None:
    await send_report(fed, report(services={"device": 1, "device_slow": 1}))
    await put(fed, {"device": 50_000, "device_slow": 50_000})
    await send_report(fed, report())
    answer = await put(fed, 60_000)  # too many if those of the other service still counted
    assert answer.status_code == 200, answer.text
    assert answer.json()["wanted"] == {"device": 60_000}
    assert (await send_report(fed, report()))["wanted"] == {"device": 60_000}


@pytest.mark.layout(n_edges=0, agent_devices=(), ttl_s=300.0)
async def test_one_fleet_is_active_at_a_time_until_it_falls_silent(fed: Federation) -> None:
    await send_report(fed, report())
    other = {**report(), "fleet": "f-2"}
    refused = await fed.client.post("/fleet", json=other)
    assert (refused.status_code, refused.json()["detail"]) == (409, "fleet f-1 is connected already")
    cloud = fed.cloud
    await fed.pass_time(0.9 * fed.ttl_s)
    assert cloud.fleet.info() is not None
    await fed.pass_time(0.2 * fed.ttl_s)
    assert cloud.fleet.info() is None
    assert (await put(fed, 3)).status_code == 409
    await send_report(fed, other)
    assert (await topology(fed))["fleet"]["fleet"] == "f-2"


# ---- agents that leave


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(1,) * 4)
async def test_devices_that_join_and_leave_during_a_run_are_named_and_none_is_lost(fed: Federation) -> None:
    await send_report(fed, report_of(fed))
    # in round 2
    gate, run = await fed.submit_and_hold(small_spec(num_rounds=9, num_devices=4, max_devices=6), closed_at=2)
    await fed.start_agent(4, devices=1)
    await fed.start_agent(5, devices=1)
    await fed.until(lambda: fed.n_agents() == 6)
    gate = let_round_continue(fed, gate, 2)
    await gate.reached.wait()  # in round 4, at least one with all six
    gone = ["agent-1", "agent-4", "agent-5"]
    leaving = report_of(fed, leaving=gone)
    assert (await send_report(fed, leaving))["released"] == []  # the current round needs them
    states = {device["name"]: device["state"] for device in (await topology(fed))["agents"]}
    assert {name for name, state in states.items() if state == "leaving"} == set(gone)
    assert (await topology(fed))["present"] == {"device": 3}
    gate = let_round_continue(fed, gate, 2)
    await gate.reached.wait()
    assert sorted((await send_report(fed, leaving))["released"]) == gone
    ids = {name: fed.agent_id(int(name[-1])) for name in gone}
    for name in gone:
        await fed.stop(name)
        del fed.apps[name]
    await send_report(fed, report_of(fed, left=gone))
    gate.open.set()
    info = await fed.finish(run)
    rounds = [await fed.round(run, number) for number in range(1, info.rounds + 1)]
    seats = (await fed.seats(run)).seats
    left = [event.data for event in await fed.events(run, "seat.left")]
    lost = await fed.events(run, "contribution.lost", "node.suspect", "node.lost", "seat.moved")
    shown = (await fed.client.get(f"/agents/{ids['agent-1']}")).json()
    assert info.status == "completed"
    n_used = [detail.n_used for detail in rounds]
    assert (n_used[0], max(n_used), n_used[-1]) == (4, 6, 3)
    assert [detail.n_visits for detail in rounds] == n_used  # no visit was lost, and the run did not wait for one
    assert lost == []
    assert {event["agent"] for event in left} == set(ids.values())
    assert {seat.seat for seat in seats if seat.state == "empty"} == {
        seat for event in left for seat in NumberSet.parse(event["seats"])
    }
    assert (shown["state"], shown["seats"]) == ("left", "")


def let_round_continue(fed: Federation, gate: Gate, closed_at: int) -> Gate:
    """Let the round continue; the gate closes again at a later one."""
    after = Gate(fed, closed_at=closed_at)
    gate.open.set()
    return after


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(1,) * 4)
async def test_a_returning_agent_gets_its_own_seat_with_its_state(counter_algorithm: str, fed: Federation) -> None:
    gate, run = await fed.submit_and_hold(
        small_spec(num_rounds=12, num_devices=4, algorithm=counter_algorithm), closed_at=2
    )
    before = {seat.agent: seat.seat for seat in (await fed.seats(run)).seats}
    gone = ["agent-1", "agent-2"]
    ids = [fed.agent_id(1), fed.agent_id(2)]
    await send_report(fed, report_of(fed, leaving=gone))
    gate = let_round_continue(fed, gate, 2)
    await gate.reached.wait()
    for name in gone:
        await fed.stop(name)
    await send_report(fed, report_of(fed, left=gone))
    await fed.start_agent(max(1, 2, key=lambda number: before[ids[number - 1]]))  # not the agent of the lowest seat
    await fed.until(lambda: fed.n_agents() == 3)
    gate.open.set()
    info = await fed.finish(run)
    after = {seat.agent: seat.seat for seat in (await fed.seats(run)).seats if seat.agent}
    rows = [row for number in range(1, info.rounds + 1) for row in (await fed.round(run, number)).seats]
    last = await fed.round(run, info.rounds)
    back = max(ids, key=lambda agent: before[agent])
    assert after == {agent: seat for agent, seat in before.items() if agent not in ids or agent == back}
    assert (info.status, last.n_used) == ("completed", 3)
    assert [row for row in rows if row.fresh_state] == []


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1), ttl_s=300.0)
async def test_agents_announced_as_leaving_count_again_when_the_fleet_falls_silent(fed: Federation) -> None:
    await send_report(fed, report_of(fed, leaving=["agent-1"]))
    registry = fed.cloud.registry
    await fed.pass_time(0.9 * fed.ttl_s)
    assert len(registry.live_agents()) == 1
    await fed.pass_time(0.2 * fed.ttl_s)
    assert len(registry.live_agents()) == 2


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1), ttl_s=2 * HANG_S)
async def test_an_edge_does_not_wait_for_an_agent_that_has_left(fed: Federation) -> None:
    """An agent that was stopped during its visit is lost at once, long before its TTL."""
    await send_report(fed, report_of(fed))
    _, run = await fed.submit_and_hold(small_spec(num_rounds=1, num_edges=1, num_devices=2))
    gone = fed.agent_id(0)
    await fed.stop("agent-0")
    await send_report(fed, report_of(fed, left=["agent-0"]))
    assert (await fed.finish(run)).status == "completed"
    failures = (await fed.round(run, 1)).failures
    assert [(failure.reason, failure.detail) for failure in failures] == [("lost", f"agent {gone} has left")]


# ---- many agents


class CountingDict(dict[str, Any]):
    """Counts how often the whole mapping is iterated."""

    n = 0

    def items(self) -> Any:
        self.n += 1
        return super().items()


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_agents_and_seats_are_searched_once_however_many_agents_leave(fed: Federation) -> None:
    cloud = fed.cloud
    names = tuple(f"agent-{number}" for number in range(300))
    entries = [AgentEntry(agent=f"a-{n}", name=n, url="", devices=1, profile="standard", versions={}) for n in names]
    agents = cloud.registry.agents = CountingDict({entry.agent: entry for entry in entries})
    cloud.fleet.seats_by_agent = Mock(return_value={"a-agent-7": (3,), "a-agent-9": (0, 4)})
    report = FleetReport(fleet="f", services={"device": 1}, leaving=names)
    orders = await cloud.fleet.receive_report(report)
    assert set(names) - set(orders.released) == {"agent-7", "agent-9"}
    assert (cloud.fleet.seats_by_agent.call_count, agents.n) == (1, 2)  # those that are leaving and that have left
    cloud.registry.agents = {}


@pytest.mark.layout(n_edges=1, agent_devices=(3, 1))
async def test_the_seats_of_each_agent_are_shown(fed: Federation) -> None:
    gate, run = await fed.submit_and_hold(small_spec(num_rounds=1, num_edges=1, num_devices=4))
    found: dict[str, list[int]] = {}
    for seat in (await fed.seats(run)).seats:
        found.setdefault(str(seat.agent), []).append(seat.seat)
    shown = {device["agent"]: list(NumberSet.parse(device["seats"])) for device in (await topology(fed))["agents"]}
    assert shown == found
    assert sorted(map(len, shown.values())) == [1, 3]
    one = (await fed.client.get(f"/agents/{fed.agent_id(0)}")).json()
    assert list(NumberSet.parse(one["seats"])) == found[fed.agent_id(0)]
    gate.open.set()
    await fed.finish(run)


# ---- taken offline


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(1, 1, 1))
async def test_an_agent_taken_offline_makes_no_visits_until_it_is_online_again(fed: Federation) -> None:
    gate, run = await fed.submit_and_hold(small_spec(num_rounds=9, num_devices=3), closed_at=2)
    agent = fed.agent_id(2)
    (seat,) = [s.seat for s in (await fed.seats(run)).seats if s.agent == agent]
    answer = await fed.client.patch(f"/agents/{agent}", json={"online": False})
    assert (answer.json()["online"], answer.json()["state"], answer.json()["seats"]) == (False, "offline", str(seat))
    gate = let_round_continue(fed, gate, 2)
    await gate.reached.wait()
    assert (await fed.seats(run)).seats[seat].state == "offline"
    await fed.restart_node("agent-2")  # it stays offline after a restart
    await fed.until(lambda: fed.n_agents() == 2)
    assert (await fed.client.get(f"/agents/{agent}")).json()["online"] is False
    answer = await fed.client.patch(f"/agents/{agent}", json={"online": True})
    assert answer.json()["online"] is True
    await fed.until(lambda: fed.n_agents() == 3)
    gate.open.set()
    info = await fed.finish(run)
    rounds = [await fed.round(run, number) for number in range(1, info.rounds + 1)]
    assert info.status == "completed"
    rows = [next(row for row in detail.seats if row.seat == seat) for detail in rounds]
    offline = [row.outcome == "failed" for row in rows]
    assert (offline[0], any(offline), offline[-1]) == (False, True, False)
    assert {row.reason for row in rows if row.outcome == "failed"} == {"offline"}
    failures = [f for detail in rounds for f in detail.failures]
    assert {(f.seat, f.reason, f.detail) for f in failures} == {(seat, "offline", f"agent {agent} was taken offline")}
    assert sum(offline) == len(failures)


@pytest.mark.layout(agent_devices=(1, 1))
async def test_offline_agents_are_named_and_do_not_count_towards_the_minimum(fed: Federation) -> None:
    gate, run = await fed.submit_and_hold(
        small_spec(num_rounds=9, num_devices=2, min_devices=2, timeouts={"ready_s": 1}), closed_at=2
    )
    agent = fed.agent_id(1)
    (seat,) = [s.seat for s in (await fed.seats(run)).seats if s.agent == agent]
    await fed.client.patch(f"/agents/{agent}", json={"online": False})
    gate.open.set()
    info = await fed.finish(run)
    assert info.status == "failed"
    assert str(info.reason).endswith(f"devices: 1 of 2 (edges: 2, need 1); offline devices: [{seat}]")


@pytest.mark.layout(agent_devices=(1, 1))
async def test_simultaneous_changes_of_one_agent_all_take_effect(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    registry, agent, put_now = fed.cloud.registry, fed.agent_id(1), fed.store.put
    go_on = asyncio.Event()

    async def put_late(*args: Any) -> None:
        await go_on.wait()
        await put_now(*args)

    monkeypatch.setattr(registry.stored.store, "put", put_late)
    moved = registry.agents[agent].replace(url="http://127.0.0.9:1")
    changes = asyncio.gather(registry.change(agent, online=False), registry.mark_left(agent))
    await asyncio.sleep(0)
    registry.agents[agent] = moved  # as after a registration
    go_on.set()
    await changes
    found = registry.agents[agent]
    kept = await fed.store.get(redis_keys.cloud_agent(agent))
    assert found == moved.replace(online=False, left=True)
    assert json.loads(kept or b"{}") == found.model_dump(mode="json")


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_only_existing_fields_of_known_devices_can_be_changed(fed: Federation) -> None:
    assert (await fed.client.patch("/agents/a-nobody", json={"online": False})).status_code == 404
    url = f"/agents/{fed.agent_id(0)}"
    for wrong in ({}, {"online": None}, {"online": False, "profile": "slow"}):
        assert (await fed.client.patch(url, json=wrong)).status_code == 422, wrong
    assert (await fed.client.get(url)).json()["online"] is True


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1))
async def test_who_scales_a_run_beyond_its_devices_is_told_what_would_help(fed: Federation) -> None:
    await send_report(fed, report_of(fed))
    for room, more in (({}, 4), ({"max_devices": 6}, 0)):
        gate, run_id = await fed.submit_and_hold(small_spec(num_devices=2, num_edges=1, num_rounds=1, **room))
        notes = (await put(fed, 6)).json()["notes"]
        what = f"run {run_id} has 2 devices: {more} of 6 take no part; `max_devices` above 2 in the spec keeps room"
        assert notes == ([f"{what} for agents that come later"] if more else [])
        assert (await put(fed, 2)).json()["notes"] == []
        gate.open.set()
        await fed.finish(run_id)
    assert (await topology(fed))["notes"] == []


# ---- edges


async def put_edges(fed: Federation, edges: int) -> httpx2.Response:
    return await fed.client.put("/topology", json={"edges": edges})


@pytest.mark.layout(n_edges=3, agent_devices=(1, 1))
async def test_edges_are_stopped_only_where_no_run_needs_them(fed: Federation) -> None:
    names = ["edge-1", "edge-2", "edge-3"]
    await send_report(fed, report_of(fed, edges=names))
    gate, run = await fed.submit_and_hold(small_spec(num_devices=2, num_edges=2, num_rounds=1))
    refused = await put_edges(fed, 2)
    assert (refused.status_code, refused.json()["field"]) == (409, "edges")
    assert refused.json()["detail"].startswith(
        f"of 3 edges 2 are needed until the end of {run}: fewer are possible then"
    )
    more = await put_edges(fed, 4)
    assert (more.json()["wanted_edges"], more.json()["present_edges"]) == (4, 3)
    assert more.json()["notes"] == [f"run {run} has 2 edges: 2 of 4 take no part; a run that begins later has them"]
    leaving, registry = report_of(fed, edges=names, leaving=["edge-2", "edge-3"]), fed.cloud.registry
    registry.edges["liar"] = registry.edges["edge-3"].replace(edge="liar", name="edge-2")  # the name of another
    registry.seen_edges["liar"] = registry.seen_edges["edge-3"]
    orders = await send_report(fed, leaving)
    assert (orders["wanted_edges"], orders["released"]) == (4, ["edge-3"])  # the run has the first two
    assert {edge["edge"] for edge in (await topology(fed))["edges"] if edge["state"] == "leaving"} == {
        "edge-2",
        "edge-3",
        "liar",
    }
    assert registry.open_edges() == ["edge-1"]
    gate.open.set()
    assert (await fed.finish(run)).status == "completed"
    assert (await send_report(fed, leaving))["released"] == ["edge-2", "edge-3"]
    await send_report(fed, report_of(fed, edges=["edge-1"], left=["edge-2", "edge-3"]))
    assert [edge["edge"] for edge in (await topology(fed))["edges"]] == ["edge-1"]
    assert (await put_edges(fed, 1)).status_code == 200
    assert (await send_report(fed, report_of(fed, edges=["edge-1"], begins=True)))["wanted_edges"] is None


@pytest.mark.layout(n_edges=3, agent_devices=(1, 1))
async def test_a_run_has_its_edges_before_its_first_state_is_there(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, released = ["edge-1", "edge-2", "edge-3"], list[str]()

    async def asked(*arguments: Any) -> Any:
        released.extend((await send_report(fed, report_of(fed, edges=names, leaving=names)))["released"])
        return await first_checkpoint(*arguments)

    monkeypatch.setattr(executor, "first_checkpoint", asked)
    assert (await fed.run(small_spec(num_devices=2, num_edges=2, num_rounds=1))).status == "completed"
    assert released == ["edge-3"]


@pytest.mark.layout(n_edges=3, agent_devices=(1, 1))
async def test_a_paused_run_keeps_its_edges(fed: Federation) -> None:
    await send_report(fed, report_of(fed, edges=["edge-1", "edge-2", "edge-3"]))
    gate, run = await fed.submit_and_hold(small_spec(num_devices=2, num_edges=2, num_rounds=3))
    await fed.client.post(f"/runs/{run}/pause")
    gate.open.set()
    await fed.until(lambda: not fed.cloud.runs.training)
    assert (await put_edges(fed, 1)).status_code == 409
    await fed.client.post(f"/runs/{run}/stop")
    await fed.finish(run)
    assert (await put_edges(fed, 1)).status_code == 200


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_number_of_edges_is_refused_by_field(fed: Federation) -> None:
    assert (await put_edges(fed, 3)).json()["field"] == "edges"  # no fleet
    await send_report(fed, report())
    refused = await put_edges(fed, 3)
    assert (refused.status_code, refused.json()["field"]) == (409, "edges")
    assert "--scale edge=N" in refused.json()["detail"]
    for body in ({}, {"edges": None}, {"edges": 0}, {"edges": 1001}, {"edges": "ten"}):
        assert (await fed.client.put("/topology", json=body)).status_code == 422, body
