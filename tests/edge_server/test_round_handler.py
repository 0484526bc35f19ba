"""Rounds at an edge whose processes restart, whose orders are repeated, and whose updates agents hold."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx2
import pytest

from shared.service.idempotency import KEEP_S
from tests.federation import AGENT_PORT, EDGE_PORT, Federation, PassOn, Tamper, small_spec
from tests.shared.algorithms.layouts import ran


def refuse_spec(**changes: Any) -> dict[str, Any]:
    return small_spec(algorithm="probe_refuse", **changes)


def before_first(port: int, path: str, action: Any) -> Tamper:
    """Calls `action` before the first request to one path is passed on."""
    done: list[int] = []

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.port == port and request.url.path == path and not done:
            done.append(1)
            await action()
        return await pass_on()

    return tamper


@pytest.mark.whole
async def test_the_order_of_an_edge_that_restarts_within_a_round_is_repeated(fed: Federation) -> None:
    plain = (await ran(small_spec())).info
    restarted: list[asyncio.Task[None]] = []

    async def restart() -> None:
        await fed.restart_node("edge-1")

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path == "/rounds" and request.url.port == EDGE_PORT + 1 and not restarted:
            restarted.append(asyncio.create_task(restart()))
        return await pass_on()

    fed.router.tamper = tamper
    info = await fed.run(small_spec())
    await asyncio.gather(*restarted)
    assert (info.status, info.model_sha256) == ("completed", plain.model_sha256)
    assert (await fed.round(info.run, 1)).failures == ()


@pytest.mark.whole
async def test_an_edge_forgets_the_answers_of_a_run_that_orders_nothing_any_more(fed: Federation) -> None:
    first = (await fed.run(small_spec())).run
    second = (await fed.run(small_spec(seed=1))).run
    edges = [fed.apps[f"edge-{number}"].state.edge.orders for number in (0, 1)]
    assert [{line[0] for line in once._work} for once in edges] == [{first, second}] * 2
    for once in edges:
        once.clock = lambda: time.monotonic() + KEEP_S
    third = (await fed.run(small_spec(seed=2))).run
    assert [{line[0] for line in once._work} for once in edges] == [{third}] * 2


@pytest.mark.layout(n_edges=1, agent_devices=(3, 3))
async def test_an_edge_restarted_between_visits_and_uploads_ends_with_the_same_bytes(fed: Federation) -> None:
    spec = refuse_spec(num_edges=1)
    plain = await fed.run(spec)
    restarts: list[asyncio.Task[None]] = []

    async def restart() -> None:
        await fed.restart_node("edge-0")

    async def begin() -> None:
        restarts.append(asyncio.create_task(restart()))

    fed.router.tamper = before_first(AGENT_PORT, "/uploads", begin)
    info = await fed.run(spec)
    await asyncio.gather(*restarts)
    assert (info.status, info.model_sha256) == ("completed", plain.model_sha256)
    assert (await fed.round(info.run, 1)).failures == ()
    for number in (1, 2):
        old, new = await fed.round(plain.run, number), await fed.round(info.run, number)
        assert [row.figures for row in old.seats] == [row.figures for row in new.seats]


@pytest.mark.whole
async def test_held_updates_that_an_agent_lost_are_reported(fed: Federation) -> None:
    async def restart(number: int) -> None:
        await fed.stop(f"agent-{number}")
        await fed.start_agent(number)

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
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


@pytest.mark.whole
async def test_a_repeated_upload_order_gets_the_same_answer(fed: Federation) -> None:
    pairs: list[tuple[bytes, bytes]] = []

    async def twice(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path != "/uploads":
            return await pass_on()
        first, again = await pass_on(), await pass_on()
        pairs.append((await first.aread(), await again.aread()))
        return httpx2.Response(200, headers=first.headers, stream=httpx2.ByteStream(pairs[-1][0]))

    fed.router.tamper = twice
    info = await fed.run(refuse_spec())
    assert info.status == "completed"
    assert len(pairs) == 6  # each seat once in two rounds
    assert all(first == again for first, again in pairs)
    hosts = [fed.apps[f"agent-{n}"].state.agent.host for n in range(6)]
    assert {key[0] for host in hosts for key in host._held} <= {info.run}


class NotKnownYet(str):
    """An empty address that counts how often somebody looks whether there is one."""

    n_looks = 0

    def __bool__(self) -> bool:
        self.n_looks += 1
        return False


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_an_order_waits_until_the_edge_knows_its_address(fed: Federation) -> None:
    spec = small_spec(num_edges=1, num_devices=1)
    plain = await fed.run(spec)
    info = await fed.run({**spec, "num_rounds": 1})
    handler = fed.apps["edge-0"].state.edge.handler
    address, handler.own_url = handler.own_url, (unknown := NotKnownYet())
    fed.router.calls.clear()
    await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 1})
    await fed.until(lambda: unknown.n_looks >= 3)
    assert (EDGE_PORT, "/rounds") in fed.router.calls
    assert (AGENT_PORT, "/visits") not in fed.router.calls
    handler.own_url = address
    end = await fed.finish(info.run)
    assert end.model_sha256 == plain.model_sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"client": "edge", "edge_worker": False},
            "factors: a value of edge-0 would come from each of its workers; the edge's own update may bring it",
        ),
        ({"schedule": "free_compute"}, "factors: a value of device-0 would come from several tasks of planned shares"),
    ],
)
@pytest.mark.layout(n_edges=1, agent_devices=(2,))
async def test_a_run_fails_if_several_visits_may_send_one_value_per_client(
    changes: dict[str, Any], message: str, fed: Federation
) -> None:
    info = await fed.run(small_spec(algorithm="probe_seat", num_devices=2, num_edges=1, **changes))
    assert info.status == "failed"
    assert message in str(info.reason)
