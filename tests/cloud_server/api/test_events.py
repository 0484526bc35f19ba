"""Events of a run as server-sent events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cloud_server.streaming import opened
from tests.federation import AGENT_PORT, Federation, small_spec


async def all_events(fed: Federation, run_id: str, after: str | None = None) -> list[dict[str, Any]]:
    headers = {"last-event-id": after} if after else {}
    async with opened(fed.apps["cloud"], f"/runs/{run_id}/events", headers) as stream:
        return [event async for event in stream.events()]


async def test_events_come_in_order_while_they_happen_and_end_with_the_run(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
    async with opened(fed.apps["cloud"], f"/runs/{run_id}/events") as stream:
        events = []
        async for event in stream.events():
            events.append(event)
            if event["event"] == "round.committed" and event["data"]["round_no"] == 1:
                assert not gate.open.is_set()  # it was sent before the second round could end
                gate.open.set()
        assert stream.status == 200
    kinds = [event["kind"] for event in events if event["kind"] not in ("run.status", "round.evaluated")]
    assert kinds == ["seat.taken"] * 6 + ["round.started", "round.committed"] * 2
    statuses = [event["data"]["status"] for event in events if event["kind"] == "run.status"]
    assert [status for n, status in enumerate(statuses) if status not in statuses[:n]] == [
        "pending",
        "starting",
        "running",
        "completed",
    ]
    assert [e["data"]["round_no"] for e in events if e["kind"] == "round.evaluated"] == [1, 2]
    assert events[-1]["data"]["status"] == "completed"
    assert {event["id"]: event["event"] for event in events} == {event["id"]: event["kind"] for event in events}


@pytest.mark.whole
async def test_last_event_id_continues_without_gap_or_repetition(fed: Federation) -> None:
    info = await fed.run(small_spec())
    whole = await all_events(fed, info.run)
    assert len(whole) > 12
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        assert await all_events(fed, info.run, whole[cut]["id"]) == whole[cut + 1 :]
    for bad in ("x", "1-2-3", "-1", "9" * 40):
        answer = await fed.client.get(f"/runs/{info.run}/events", headers={"last-event-id": bad})
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_input")


@pytest.mark.whole
@pytest.mark.parametrize("with_run", [True, False], ids=["a run trains", "a run is paused"])
async def test_a_stream_ends_when_the_cloud_ends_and_continues_after_it(with_run: bool, fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec())
    if not with_run:
        await fed.client.post(f"/runs/{run_id}/pause")
        gate.open.set()
        await fed.until_status(run_id, "paused")
    seen: list[dict[str, Any]] = []

    async def follow() -> None:
        async with opened(fed.apps["cloud"], f"/runs/{run_id}/events") as stream:
            async for event in stream.events():
                seen.append(event)

    following = asyncio.create_task(follow())
    await fed.until(lambda: bool(seen))
    await fed.stop("cloud")
    async with asyncio.timeout(5):
        await following
    gate.open.set()
    await fed.start_cloud()
    if not with_run:
        await fed.client.post(f"/runs/{run_id}/resume")
    await fed.finish(run_id)
    rest = await all_events(fed, run_id, seen[-1]["id"])
    assert seen + rest == await all_events(fed, run_id)
    assert [e["data"]["round_no"] for e in rest if e["kind"] == "round.committed"][-1] == 2


@pytest.mark.whole
async def test_lost_contributions_and_moved_seats_have_events(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(
        small_spec(num_rounds=3, timeouts={"reseat_after_s": 0}), closed_at=2, port=AGENT_PORT + 5
    )
    gone = fed.agent_id(5)
    await fed.lose("agent-5")
    gate.open.set()
    assert (await fed.finish(run_id)).status == "completed"
    events = await all_events(fed, run_id)
    moved = [event["data"] for event in events if event["kind"] == "seat.moved"]
    assert [(move["from"], move["agent"] != gone) for move in moved] == [(gone, True)]
    lost = {str(e["data"]["seat"]) for e in events if e["kind"] == "contribution.lost"}
    assert lost == {moved[0]["seats"]}
