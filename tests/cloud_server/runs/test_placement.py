"""Placement: which agent hosts which seat, waiting for enough devices, lost and new agents."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis.strategies import integers, lists

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.runs.placement import place_seats
from cloud_server.runs.seat_shares import seat_shares
from device_agent.membership import EdgeAddress
from shared.core.errors import NotReady
from shared.results.folder import read_run
from tests.federation import EDGE_PORT, Federation, Gate, small_spec
from tests.shared.algorithms.layouts import ran


def agent(name: str, devices: int = 1, profile: str = "standard") -> AgentEntry:
    return AgentEntry(agent=name, name=name, url="http://127.0.0.1:1", devices=devices, profile=profile, versions={})


def placed(
    seats: Sequence[int], agents: Sequence[AgentEntry], loads: Mapping[str, int] = MappingProxyType({})
) -> dict[str, list[int]]:
    return {name: list(own) for name, own in place_seats(np.array(seats, np.int64), agents, loads).items()}


# ---- bind


def test_binding_depends_on_profile_and_id_and_not_on_the_order_of_agents() -> None:
    agents = [agent("c"), agent("a", 2), agent("b"), agent("z", profile="fast")]
    expected = {"z": [0], "a": [1, 2], "b": [3], "c": [4]}
    assert all(placed(range(5), order) == expected for order in itertools.permutations(agents))


def test_binding_fills_the_capacity_before_it_exceeds_it() -> None:
    agents = [agent("a", 3), agent("b", 1)]
    assert placed(range(4), agents) == {"a": [0, 1, 2], "b": [3]}
    assert {agent: len(seats) for agent, seats in placed(range(9), agents).items()} == {"a": 6, "b": 3}


def test_binding_gives_neighbouring_seats_to_one_agent_so_that_an_edge_contacts_few() -> None:
    assert placed([0, 2, 4, 1, 3, 5], [agent("a", 3), agent("b", 3)]) == {"a": [0, 2, 4], "b": [1, 3, 5]}


def test_binding_counts_seats_that_were_assigned_before() -> None:
    agents = [agent("a"), agent("b"), agent("c")]
    assert placed([2, 3], agents, {"a": 1, "gone": 1}) == {"b": [2], "c": [3]}
    assert placed([2, 3, 4, 5], agents, {"a": 1}) == {"a": [2], "b": [3, 4], "c": [5]}


@given(
    n_seats=integers(0, 60),
    sizes=lists(integers(1, 7), min_size=1, max_size=5),
    loads=lists(integers(0, 12), min_size=5, max_size=5),
)
def test_seats_are_shared_as_if_they_were_placed_one_by_one(n_seats: int, sizes: list[int], loads: list[int]) -> None:
    have = loads[: len(sizes)]
    for _ in range(n_seats):
        least = min(range(len(sizes)), key=lambda n: (have[n] // sizes[n], have[n], n))
        have[least] += 1
    given_to = seat_shares(n_seats, sizes, loads[: len(sizes)])
    assert [load + n for load, n in zip(loads, given_to, strict=False)] == have


def test_binding_of_no_seats_is_empty_and_seats_without_agents_are_named() -> None:
    assert placed([], []) == {}
    with pytest.raises(NotReady, match=r"no agent is alive for devices \[3, 4\]"):
        placed([3, 4], [])


# ---- enough devices


@pytest.mark.layout(agent_devices=(1, 1))
async def test_too_few_devices_fail_the_run_with_their_number(fed: Federation) -> None:
    info = await fed.run(small_spec(min_devices=3, timeouts={"ready_s": 1}))
    assert (info.status, info.reason) == ("failed", "waited 1 s for devices: 2 of 6 (edges: 2, need 2)")
    info = await fed.run(small_spec(num_edges=3, timeouts={"ready_s": 0.5}))
    how = "`strata scale edge=3` or `docker compose up -d --scale edge=3` starts the others"
    assert info.reason == f"waited 0.5 s for edges: 2 of 3 (devices: 2, need 6); {how}"
    await fed.start_agent(2, devices=1)
    await fed.until(lambda: fed.n_agents() == 3)
    info = await fed.run(small_spec(min_devices=3, timeouts={"ready_s": 20}))
    assert info.status == "completed"


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(1, 1, 1))
async def test_too_few_devices_during_a_run_fail_it_and_name_the_seats(fed: Federation) -> None:
    gate = Gate(fed, closed_at=2)
    timeouts = {"ready_s": 1.5, "reseat_after_s": 60}
    run_id = await fed.submit(small_spec(num_rounds=3, num_devices=3, min_devices=3, timeouts=timeouts))
    await gate.reached.wait()
    (seat,) = [s.seat for s in (await fed.seats(run_id)).seats if s.agent == fed.agent_id(2)]
    await fed.lose("agent-2")
    gate.open.set()
    info = await fed.finish(run_id)
    assert (info.status, info.rounds, info.reason) == (
        "failed",
        2,
        f"waited 1.5 s for devices: 2 of 3 (edges: 2, need 1); lost devices: [{seat}]",
    )


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(1, 1, 1))
async def test_a_run_says_what_it_waits_for_between_rounds_and_no_longer_once_it_goes_on(fed: Federation) -> None:
    gate = Gate(fed, closed_at=2)
    timeouts = {"ready_s": 60, "reseat_after_s": 60}
    run_id = await fed.submit(small_spec(num_rounds=3, num_devices=3, min_devices=3, timeouts=timeouts))
    await gate.reached.wait()
    await fed.lose("agent-2")
    gate.open.set()
    while (info := await fed.info(run_id)).reason is None:  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.02)
    assert (info.status, info.reason[:48]) == ("running", "waiting for devices: 2 of 3 (edges: 2, need 1); ")
    third = Gate(fed)
    await fed.start_agent(2)
    await third.reached.wait()
    info = await fed.info(run_id)
    assert (info.status, info.rounds, info.reason) == ("running", 2, None)
    third.open.set()
    assert (await fed.finish(run_id)).status == "completed"


@pytest.mark.layout(agent_devices=(1, 1))
async def test_with_fewer_devices_than_seats_an_agent_takes_several_and_the_result_is_the_same(fed: Federation) -> None:
    six, info = (await ran(small_spec())).info, await fed.run(small_spec())
    assert info.status == "completed"
    hosts = Counter(seat.agent for seat in (await fed.seats(info.run)).seats)
    assert hosts == {fed.agent_id(0): 3, fed.agent_id(1): 3}
    assert (info.model_sha256, info.bytes_up, info.simulated_s) == (six.model_sha256, six.bytes_up, six.simulated_s)


@pytest.mark.layout(agent_devices=(2, 1))
async def test_without_numbers_in_the_spec_a_run_takes_the_available_nodes(fed: Federation) -> None:
    info = await fed.run(small_spec(num_devices=None, num_edges=None))
    assert (info.spec.num_devices, info.spec.num_edges, info.spec.max_devices) == (3, 2, 3)


# ---- seats that move


async def test_a_lost_agents_seat_moves_to_another_with_fresh_state_and_the_record_says_so(
    counter_algorithm: str, fed: Federation
) -> None:
    gate, run_id = await fed.submit_and_hold(
        small_spec(num_rounds=4, algorithm=counter_algorithm, timeouts={"reseat_after_s": 0.5}), closed_at=2
    )
    gone = fed.agent_id(3)
    (seat,) = [s.seat for s in (await fed.seats(run_id)).seats if s.agent == gone]
    await fed.lose("agent-3")
    await fed.pass_time(1.0, gone)
    gate.open.set()
    info = await fed.finish(run_id)
    assert info.status == "completed"
    rows = {n: next(row for row in (await fed.round(run_id, n)).seats if row.seat == seat) for n in (1, 3, 4)}
    assert (rows[1].agent, rows[1].fresh_state) == (gone, False)
    assert rows[3].agent != gone
    assert (rows[3].outcome, rows[3].fresh_state) == ("used", True)
    assert (rows[4].agent, rows[4].fresh_state) == (rows[3].agent, False)


@pytest.mark.whole
async def test_an_agent_that_returns_in_time_keeps_its_seat_and_its_state(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=3, timeouts={"reseat_after_s": 600}), closed_at=2)
    name = fed.agent_id(3)
    await fed.restart_node("agent-3")
    assert fed.agent_id(3) == name
    gate.open.set()
    info = await fed.finish(run_id)
    third = await fed.round(run_id, 3)
    assert [row.outcome for row in third.seats if row.agent == name] == ["used"]
    assert not any(row.fresh_state for row in third.seats)
    assert info.status == "completed"


@pytest.mark.whole
async def test_an_agent_that_joins_late_gets_the_lowest_empty_seat_from_the_next_round_on(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=4, max_devices=8), closed_at=2)
    before = (await fed.seats(run_id)).seats
    assert [seat.state for seat in before] == ["taken"] * 6 + ["empty"] * 2
    await fed.start_agent(6, devices=1)
    await fed.until(lambda: fed.n_agents() == 7)
    gate.open.set()
    assert (await fed.finish(run_id)).status == "completed"
    n_used = [(await fed.round(run_id, n)).n_used for n in (1, 2, 3, 4)]
    assert n_used == [6, 6, 7, 7]
    after = (await fed.seats(run_id)).seats
    assert (after[6].agent, after[6].state, after[7].state) == (fed.agent_id(6), "taken", "empty")
    # The data of the other seats did not change.
    assert [(s.n_train, s.label_counts) for s in before] == [(s.n_train, s.label_counts) for s in after]


# ---- lost edges


@pytest.mark.whole
async def test_an_agent_sends_heartbeats_to_a_further_edge_while_it_works_for_it(fed: Federation) -> None:
    """Agents send heartbeats to their home edge; other edges get them only while the agent works for them."""

    agents = [fed.apps[f"agent-{number}"].state.agent for number in range(6)]
    rosters = {f"http://127.0.0.1:{EDGE_PORT + n}": fed.apps[f"edge-{n}"].state.edge.roster for n in range(2)}
    go_on = asyncio.Event()

    def held(visits: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def held_visits(*order: Any, **options: Any) -> object:
            await go_on.wait()
            return await visits(*order, **options)

        return held_visits

    def is_heard(agent: Any, edge: EdgeAddress) -> bool:
        heard = rosters[edge.url].heard.get(agent.membership.registration.agent)
        return heard is not None and heard[0] >= fed.clock.skipped_at

    for agent in agents:
        agent.host.visits = held(agent.host.visits)
    run_id = await fed.submit(small_spec(num_rounds=1, num_devices=6))
    await fed.until(lambda: all(agent.membership.edges for agent in agents))
    await fed.pass_time(2.2 * fed.ttl_s)
    await fed.until(lambda: all(is_heard(agent, edge) for agent in agents for edge in agent.membership.edges))
    go_on.set()
    info = await fed.finish(run_id)
    assert (await fed.round(info.run, 1)).failures == ()
    for agent in agents:
        assert [orders.n for orders in agent.membership.edges.values()] == [0]


@pytest.mark.layout(agent_devices=(1, 1))
async def test_a_run_that_fails_before_its_first_round_leaves_its_spec_and_the_reason(fed: Federation) -> None:
    info = await fed.run(small_spec(num_devices=6, min_devices=3, timeouts={"ready_s": 1.0}))
    assert info.status == "failed"
    folder = fed.folder / "runs" / info.run
    await fed.until(lambda: (folder / "run.json").exists() and (folder / "spec.yaml").exists())  # soon afterwards
    kept = read_run(folder)
    spec = yaml.safe_load((folder / "spec.yaml").read_text())
    assert (kept.status, kept.reason) == ("failed", info.reason)
    assert "devices: 2 of 6" in str(kept.reason)
    assert spec["min_devices"] == 3
