"""`devices: {profile: agent}`: a seat has the profile of the agent that hosts it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.nodes.registry import Registry
from device_agent.settings import AgentSettings
from shared.core.errors import BadInput
from shared.core.versions import versions
from shared.federation.spec_parser import parse_spec
from shared.simulation import PROFILES
from shared.storage import redis_keys
from tests.fakes.memory_store import MemoryStore
from tests.faults import answer
from tests.federation import Federation, Gate, PassOn, small_spec
from tests.shared.algorithms.layouts import Ended, ended, federation, ran

AGENTS: dict[str, Any] = {"profile": "agent", "edge_latency_s": 0}


async def test_containers_have_named_profiles_and_give_the_same_record_in_any_start_order() -> None:
    """Four agents of one class and two of another; the order of registration has no effect."""
    spec = small_spec(devices=AGENTS)
    slow = "phone_low"
    layouts: list[dict[str, Any]] = [
        {"profiles": ("standard",) * 4 + (slow,) * 2},
        {"profiles": (slow,) + ("standard",) * 4 + (slow,), "order": (3, 0, 5, 1, 4, 2)},
    ]
    first, second = [await ran(spec, agent_devices=(1,) * 6, **layout) for layout in layouts]
    assert first.links() == second.links()
    assert first.info.model_sha256 == second.info.model_sha256
    by_sps = Counter(round(row.compute_s / row.n_samples, 9) for detail in first.rounds for row in detail.seats)
    unit_s = first.experiment.flops / 24_680_448
    expected = {round(unit_s / PROFILES[name].compute_sps, 9): 2 * n for name, n in (("standard", 4), (slow, 2))}
    assert by_sps == expected


async def test_seats_show_their_agents_profile_slowed_down_for_stragglers(tmp_path: Path) -> None:
    slowed = {**AGENTS, "straggler_ratio": 1 / 3, "straggler_slowdown": 4}
    async with federation(tmp_path, agent_devices=(3, 3), profiles=("jetson", "gateway")) as fed:
        info = await fed.run(small_spec(devices=slowed, num_rounds=1))
        seats = (await fed.seats(info.run)).seats
    assert Counter(seat.profile for seat in seats) == {"jetson": 3, "gateway": 3}
    for seat in seats:
        found = PROFILES[seat.profile]
        slower = 4 if seat.straggler else 1
        assert seat.compute_sps == found.compute_sps / slower
        assert (seat.up_bps, seat.latency_s) == (found.up_bps / slower, found.latency_s * slower)
    assert sum(seat.straggler for seat in seats) == 2


@pytest.mark.layout(n_edges=1, agent_devices=(1,), profiles=("jetson", "jetsn"))
async def test_an_agent_with_a_misspelt_profile_is_refused_and_stops_no_run(fed: Federation) -> None:
    """It joins while a run trains, which has an empty seat for it."""
    answers: list[httpx2.Response] = []
    gate = Gate(fed, closed_at=2)

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        found = await gate._tamper(request, pass_on)
        if request.method == "POST" and request.url.path == "/agents":
            await found.aread()
            answers.append(found)
            return answer(found.content, found.headers, found.status_code)
        return found

    fed.router.tamper = tamper
    run_id = await fed.submit(small_spec(devices=AGENTS, num_devices=2, num_edges=1, num_rounds=3, min_devices=1))
    await gate.reached.wait()
    await fed.start_agent(1, devices=1)
    await fed.until(lambda: bool(answers))
    gate.open.set()
    info = await fed.finish(run_id)
    assert (info.status, info.rounds) == ("completed", 3)
    assert fed.n_agents() == 1
    assert (answers[0].status_code, answers[0].json()["field"]) == (422, "profile")
    assert "unknown profile 'jetsn'; did you mean 'jetson'?" in answers[0].json()["detail"]


async def test_a_stored_agent_of_an_unknown_profile_is_not_taken_over() -> None:
    """An earlier version may have accepted it; it must register again."""
    store = MemoryStore(lambda: 0.0)
    for name, profile in (("a-old", "jetsn"), ("a-new", "jetson")):
        entry = AgentEntry(
            agent=name, name=name, url="http://127.0.0.1:1", devices=1, profile=profile, versions=versions()
        )
        await store.put(redis_keys.cloud_agent(name), entry.model_dump_json().encode(), 60.0)
    registry = Registry(store, cast("Any", None), [], 10.0, lambda: 0.0)
    await registry.load()
    assert list(registry.agents) == ["a-new"]


def test_an_agent_refuses_a_misspelt_profile_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_PROFILE", "jetsn")
    with pytest.raises(BadInput, match="AGENT_PROFILE: unknown profile 'jetsn'; did you mean 'jetson'\\?"):
        AgentSettings()


# ---- changes during a run


async def changed_after(folder: Path, n_rounds: int, *, restarted: bool = False) -> tuple[Ended, list[dict[str, Any]]]:
    """Runs four rounds and changes the profile of seat 0's agent after the first; returns the events of the change."""
    async with federation(folder, n_edges=1, agent_devices=(1, 1)) as fed:
        spec = small_spec(devices=AGENTS, num_rounds=n_rounds, num_devices=2, num_edges=1)
        info = await fed.run(spec)
        agent = (await fed.seats(info.run)).seats[0].agent
        answer = await fed.client.patch(f"/agents/{agent}", json={"profile": "phone_low"})
        assert (answer.json()["profile"], answer.json()["own_profile"]) == ("phone_low", "standard")
        if restarted:
            await fed.restart_cloud()
            for number in range(2):  # each registers again and names the profile of its environment
                await fed.stop(f"agent-{number}")
                await fed.start_agent(number)
            await fed.until(lambda: fed.n_agents() == 2)
        await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 4 - n_rounds})
        done = await ended(fed, info.run)
        seats = (await fed.seats(info.run)).seats
        assert [seat.profile for seat in seats] == ["phone_low", "standard"]
        stream = (await fed.client.get(f"/runs/{info.run}/events")).text
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    return done, [event["data"] for event in events if event["kind"] == "seat.profile"]


def profiles(done: Ended, seat: int) -> list[str | None]:
    return [row.profile for detail in done.rounds for row in detail.seats if row.seat == seat]


@pytest.mark.whole
async def test_a_changed_profile_applies_from_the_next_round_on_is_recorded_and_survives_restarts(
    tmp_path: Path,
) -> None:
    early, told_early = await changed_after(tmp_path, 1)
    later, told_later = await changed_after(tmp_path, 2)
    assert profiles(early, 0) == ["standard"] + ["phone_low"] * 3
    assert profiles(later, 0) == ["standard"] * 2 + ["phone_low"] * 2
    assert profiles(early, 1) == profiles(later, 1) == ["standard"] * 4
    change = {"seat": 0, "profile": "phone_low", "from": "standard"}
    assert (told_early, told_later) == ([{"round_no": 2, **change}], [{"round_no": 3, **change}])
    took = [
        [row.simulated_s for detail in done.rounds for row in detail.seats if row.seat == 0] for done in (early, later)
    ]
    differ = [one != other for one, other in zip(*took, strict=True)]
    assert differ == [False, True, False, False]
    assert took[0][1] > took[1][1]
    assert early.info.simulated_s > later.info.simulated_s
    again, told_again = await changed_after(tmp_path, 2, restarted=True)  # of the cloud and of all agents
    assert again.links() == later.links()
    assert (again.info.model_sha256, told_again) == (later.info.model_sha256, told_later)


async def test_the_current_round_keeps_its_initial_profiles(tmp_path: Path) -> None:
    async with federation(tmp_path, n_edges=1, agent_devices=(1, 1)) as fed:
        gate, run_id = await fed.submit_and_hold(
            small_spec(devices=AGENTS, num_rounds=3, num_devices=2, num_edges=1), closed_at=2
        )
        agent = (await fed.seats(run_id)).seats[1].agent
        await fed.client.patch(f"/agents/{agent}", json={"profile": "jetson"})
        gate.open.set()
        done = await ended(fed, run_id)
    assert profiles(done, 1) == ["standard", "standard", "jetson"]


@pytest.mark.layout(n_edges=1, agent_devices=(1,), profiles=("jetson",))
async def test_a_device_can_be_reset_to_its_own_profile(fed: Federation) -> None:
    url = f"/agents/{fed.agent_id(0)}"
    for given, counts in (("gateway", "gateway"), (None, "jetson")):
        answer = await fed.client.patch(url, json={"profile": given})
        assert answer.status_code == 200, answer.text
        assert ((await fed.client.get(url)).json()["profile"], answer.json()["online"]) == (counts, True)


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1))
async def test_a_profile_cannot_be_changed_if_the_spec_assigns_profiles(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(num_devices=2, num_edges=1))
    url = f"/agents/{fed.agent_id(0)}"
    answer = await fed.client.patch(url, json={"profile": "jetson", "online": False})
    assert (answer.status_code, answer.json()["field"]) == (409, "profile")
    assert f"run {run_id} trains, and the profiles of its devices are those of its spec" in answer.json()["detail"]
    found = (await fed.client.get(url)).json()
    assert (found["profile"], found["online"]) == ("standard", True)
    gate.open.set()
    assert (await fed.finish(run_id)).status == "completed"
    assert (await fed.client.patch(url, json={"profile": "jetson"})).json()["profile"] == "jetson"


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_an_unknown_profile_is_refused_with_the_nearest(fed: Federation) -> None:
    answer = await fed.client.patch(f"/agents/{fed.agent_id(0)}", json={"profile": "phone_lo"})
    assert (answer.status_code, answer.json()["field"]) == (422, "profile")
    assert "unknown profile 'phone_lo'; did you mean 'phone_low'?" in answer.json()["detail"]
    assert (await fed.client.patch("/agents/a-nobody", json={"profile": "jetson"})).status_code == 404


# ---- the spec


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"profile": {"name": "agent", "compute_sps": 5}}, "it allows no other values"),
        ({"profiles": [{"profile": "agent", "share": 1}]}, "it cannot be part of a mixture"),
    ],
)
def test_profile_agent_applies_to_all_devices_without_changes(devices: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_spec(small_spec(devices=devices))
