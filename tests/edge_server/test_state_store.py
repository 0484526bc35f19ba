"""States that count, and updates that are held: what restarts and repetitions do to them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.federation import AGENT_PORT, EDGE_PORT, Federation, Gate, PassOn, Tamper, small_spec


def edge_spec(**changes: Any) -> dict[str, Any]:
    return small_spec(algorithm="probe_edge", client="edge", schedule="equal", **changes)


def refuse_spec(**changes: Any) -> dict[str, Any]:
    return small_spec(algorithm="probe_refuse", **changes)


async def edge_counts(fed: Federation, run_id: str, round_no: int) -> list[int]:
    """How many rounds the state of each home has seen."""
    figures = (await fed.round(run_id, round_no)).figures
    return [figures[home]["rounds"] for home in sorted(figures)]


async def visit_counts(fed: Federation, run_id: str, round_no: int) -> set[int]:
    """How many visits the states of the seats have seen, after the last wave of a round."""
    rows = (await fed.round(run_id, round_no)).seats
    return {int(row.figures["visits"]) for row in rows if row.wave == max(r.wave for r in rows)}


def once(port: int, path: str, do: Any) -> Tamper:
    """Do something before the first request of one path is passed on."""
    done: list[int] = []

    async def tamper(request: httpx.Request, pass_on: PassOn) -> httpx.Response:
        if request.url.port == port and request.url.path == path and not done:
            done.append(1)
            await do()
        return await pass_on()

    return tamper


async def test_states_count_every_round_once_though_edges_and_agents_restart_between_them(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:
        plain = await fed.run(edge_spec(num_rounds=3))
        assert [await edge_counts(fed, plain.run, n) for n in (1, 2, 3)] == [[1, 1], [2, 2], [3, 3]]
        assert [await visit_counts(fed, plain.run, n) for n in (1, 2, 3)] == [{2}, {4}, {6}]

        info = await fed.run(edge_spec(num_rounds=1))
        for name in ("edge-0", "edge-1", "agent-0", "agent-1"):
            await fed.stop(name)
        for number in (1, 0):
            await fed.start_edge(number)
            await fed.start_agent(number)
        await fed.until(lambda: fed.n_agents() == 6)
        await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 2})
        end = await fed.finish(info.run)
        assert [await edge_counts(fed, info.run, n) for n in (1, 2, 3)] == [[1, 1], [2, 2], [3, 3]]
        assert [await visit_counts(fed, info.run, n) for n in (1, 2, 3)] == [{2}, {4}, {6}]
        assert end.model_sha256 == plain.model_sha256


@pytest.mark.parametrize("visit", [3, 4], ids=["first wave", "second wave"])
async def test_states_count_no_visit_twice_when_a_round_is_made_anew(tmp_path: Path, visit: int) -> None:
    async with Federation(tmp_path / "f") as fed:
        plain = await fed.run(edge_spec())
        gate = Gate(fed, closed_at=visit)  # in round 2
        run_id = await fed.submit(edge_spec())
        await gate.reached.wait()
        await fed.stop("cloud")
        gate.open.set()
        await fed.start_cloud()
        end = await fed.finish(run_id)
        assert await edge_counts(fed, run_id, 2) == [2, 2]
        assert await visit_counts(fed, run_id, 2) == {4}
        assert end.model_sha256 == plain.model_sha256


async def test_an_edge_restarted_between_visits_and_uploads_ends_with_the_same_bytes(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=1, rooms=(3, 3)) as fed:
        spec = refuse_spec(num_edges=1)
        plain = await fed.run(spec)
        restarts: list[asyncio.Task[None]] = []

        async def restart() -> None:
            await fed.stop("edge-0")
            await fed.start_edge(0)

        async def begin() -> None:
            restarts.append(asyncio.create_task(restart()))

        fed.router.tamper = once(AGENT_PORT, "/uploads", begin)
        info = await fed.run(spec)
        await asyncio.gather(*restarts)
        assert (info.status, info.model_sha256) == ("completed", plain.model_sha256)
        assert (await fed.round(info.run, 1)).failures == ()
        for number in (1, 2):
            old, new = await fed.round(plain.run, number), await fed.round(info.run, number)
            assert [row.figures for row in old.seats] == [row.figures for row in new.seats]


async def test_held_updates_that_an_agent_lost_are_named(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:

        async def restart(number: int) -> None:
            await fed.stop(f"agent-{number}")
            await fed.start_agent(number)

        async def tamper(request: httpx.Request, pass_on: PassOn) -> httpx.Response:
            if request.url.path == "/uploads" and not restarted:
                restarted.append(asyncio.create_task(restart((request.url.port or 0) - AGENT_PORT)))
                await restarted[0]
            return await pass_on()

        restarted: list[asyncio.Task[None]] = []
        fed.router.tamper = tamper
        info = await fed.run(refuse_spec(num_rounds=1))
        first = await fed.round(info.run, 1)
        assert [(f.reason, f.detail) for f in first.failures] == [("lost", "the agent no longer holds this update")]
        assert first.n_used == 2


async def test_held_updates_are_sent_twice_to_who_asks_twice_and_go_with_the_next_run(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:
        pairs: list[tuple[bytes, bytes]] = []

        async def twice(request: httpx.Request, pass_on: PassOn) -> httpx.Response:
            if request.url.path != "/uploads":
                return await pass_on()
            first, again = await pass_on(), await pass_on()
            pairs.append((await first.aread(), await again.aread()))
            return httpx.Response(200, headers=first.headers, stream=httpx.ByteStream(pairs[-1][0]))

        fed.router.tamper = twice
        info = await fed.run(refuse_spec())
        assert info.status == "completed"
        assert len(pairs) == 6  # each seat once in two rounds
        assert all(first == again for first, again in pairs)
        hosts = [fed.apps[f"agent-{n}"].state.agent.host for n in range(6)]
        assert {key[0] for host in hosts for key in host._held} <= {info.run}
        other = await fed.run(small_spec(num_rounds=1))
        assert [host._held for host in hosts] == [{}] * 6
        onces = [fed.apps[f"agent-{n}"].state.agent.orders for n in range(6)]
        assert {line[0] for once in onces for line in once._work} == {other.run}


async def test_an_edge_that_does_not_know_its_address_yet_waits_for_it(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", n_edges=1, rooms=(1,)) as fed:
        spec = small_spec(num_edges=1, num_devices=1)
        plain = await fed.run(spec)
        info = await fed.run({**spec, "num_rounds": 1})
        desk = fed.apps["edge-0"].state.edge.handler
        address, desk.own_url = desk.own_url, ""
        fed.router.calls.clear()
        await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 1})
        await fed.until(lambda: (EDGE_PORT, "/rounds") in fed.router.calls)
        await asyncio.sleep(0.2)
        assert (AGENT_PORT, "/visits") not in fed.router.calls
        desk.own_url = address
        end = await fed.finish(info.run)
        assert end.model_sha256 == plain.model_sha256


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"client": "edge", "edge_worker": False},
            "factors: a value of edge-0 would come from each of its workers; the edge's own update may bring it",
        ),
        ({"schedule": "free_compute"}, "factors: a value of device-0 would come from several visits of planned shares"),
    ],
)
async def test_a_value_kept_by_client_that_several_visits_may_bring_is_refused_and_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    async with Federation(tmp_path / "f", n_edges=1, rooms=(2,)) as fed:
        info = await fed.run(small_spec(algorithm="probe_seat", num_devices=2, num_edges=1, **changes))
        assert info.status == "failed"
        assert said in str(info.reason)
