"""The states of clients between rounds: each round begins with what the last visit that counts has left."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from shared.service.order_headers import ORDER_KEY_HEADER
from tests.federation import Federation, PassOn, small_spec
from tests.shared.algorithms.layouts import ran


async def test_every_client_counts_its_visits_from_round_to_round(counter_algorithm: str, fed: Federation) -> None:
    info = await fed.run(small_spec(algorithm=counter_algorithm, num_rounds=3))
    assert info.status == "completed", info.reason
    for round_no in (1, 2, 3):
        detail = await fed.round(info.run, round_no)
        assert [row.figures["visits"] for row in detail.seats] == [round_no] * 6


async def test_a_client_that_misses_a_round_goes_on_from_its_last_visit(
    counter_algorithm: str, fed: Federation
) -> None:
    """Seat 4 is left out of round 2."""
    losses = [{"round_no": 2, "seats": [4]}]
    info = await fed.run(small_spec(algorithm=counter_algorithm, num_rounds=3, losses=losses))
    third = await fed.round(info.run, 3)
    assert {row.seat: row.figures["visits"] for row in third.seats} == {0: 3, 1: 3, 2: 3, 3: 3, 4: 2, 5: 3}


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(3, 3))
@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
async def test_a_repeated_round_begins_with_the_states_from_before_it(asynchronous: bool, fed: Federation) -> None:
    """Cloud and edges stop after round 2, in which each client visited its edge twice, before it is committed."""
    answered, stopped = asyncio.Event(), asyncio.Event()

    async def hold(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        answer = await pass_on()
        if request.url.path == "/rounds" and answer.headers.get(ORDER_KEY_HEADER, "").split("/")[2] == "2":
            answered.set()
            await stopped.wait()
        return answer

    sync = {"sync": {"devices": {"mode": "asynchronous", "buffer": "all"}}} if asynchronous else {}
    spec = small_spec(algorithm="scaffold", num_rounds=2, edge_rounds=2, **sync)
    plain = (await ran(spec, agent_devices=(3, 3))).info
    fed.router.tamper = hold
    run_id = await fed.submit(spec)
    await answered.wait()
    fed.router.tamper = None
    for name in ("cloud", "edge-0", "edge-1"):
        await fed.stop(name)
    stopped.set()
    await fed.start_edge(0)
    await fed.start_edge(1)
    await fed.start_cloud()
    info = await fed.finish(run_id)
    rows = [row for round_no in (1, 2) for row in (await fed.round(run_id, round_no)).seats]
    assert len(rows) == 2 * 2 * 6
    assert not any(row.fresh_state for row in rows)
    assert info.model_sha256 == plain.model_sha256
