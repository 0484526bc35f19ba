"""What becomes of runs when Redis refuses writes or is emptied, and when two runs would get one id."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cloud_server.runs import manager
from shared.storage import redis_keys
from shared.storage.key_value import Batch, ServerInfo, StoreUnavailable
from tests.federation import Federation, small_spec
from tests.shared.algorithms.layouts import ran

OOM = "Redis at here:6379 refuses: OOM command not allowed when used memory > 'maxmemory'."


async def test_a_run_says_that_redis_refuses_writes_and_goes_on_by_itself(fed: Federation) -> None:
    plain = (await ran(small_spec())).info
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
    commit = fed.store.commit

    async def refuse(batch: Batch) -> list[str]:
        raise StoreUnavailable(OOM)

    fed.store.commit = refuse  # type: ignore[method-assign]
    gate.open.set()
    while (await fed.info(run_id)).reason != f"waiting: {OOM}":  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.02)
    listed = (await fed.client.get("/runs")).json()["runs"]
    assert [run["reason"] for run in listed] == [f"waiting: {OOM}"]
    refused = await fed.client.post(f"/runs/{run_id}/pause")
    assert (refused.status_code, refused.json()["detail"]) == (503, OOM)
    fed.store.commit = commit  # type: ignore[method-assign]
    end = await fed.finish(run_id)
    assert (end.status, end.reason, end.model_sha256) == ("completed", None, plain.model_sha256)


@pytest.mark.whole
async def test_a_run_whose_redis_was_emptied_is_listed_as_failed_and_its_resumption_says_why_it_cannot(
    fed: Federation,
) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=3), closed_at=2)
    await fed.store.delete_prefix("")
    gate.open.set()
    await fed.until(lambda: not fed.cloud.runs.training)
    [listed] = (await fed.client.get("/runs")).json()["runs"]
    assert (listed["run"], listed["status"]) == (run_id, "failed")
    assert "was its Redis emptied" in listed["reason"]
    assert fed.cloud.ownership.held.is_set()
    await fed.control(run_id, "resume")
    again = await fed.finish(run_id)
    assert (again.status, again.rounds) == ("failed", 1)
    assert "has trained 1 rounds, but Redis holds no checkpoint of it" in str(again.reason)
    assert (await fed.run(small_spec())).status == "completed"  # new runs train as before
    assert (await fed.client.delete(f"/runs/{run_id}")).status_code == 204


@pytest.mark.layout(agent_devices=())
async def test_a_run_gets_another_id_if_one_has_it_or_had_it_a_short_time_ago(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    ids = iter(["r1", "r1", "r2", "r1", "r2", "r3"])
    monkeypatch.setattr(manager, "new_run_id", lambda: next(ids))
    assert await fed.submit(small_spec()) == "r1"
    assert await fed.submit(small_spec()) == "r2"
    await fed.control("r2", "stop")
    await fed.until_status("r2", "stopped")
    assert (await fed.client.delete("/runs/r2")).status_code == 204
    assert await fed.store.get(redis_keys.cloud_deleted("r2"))  # edges and agents still delete what is left of it
    assert await fed.submit(small_spec()) == "r3"


@pytest.mark.matrix(3)
@pytest.mark.parametrize("what", ["rounds", "document", "events", "placement", "index"])
async def test_a_run_that_lost_a_part_of_itself_in_redis_fails_at_its_next_commit_and_says_what(
    what: str, fed: Federation
) -> None:
    parts = {
        "rounds": (redis_keys.cloud_rounds, "the log of rounds"),
        "placement": (redis_keys.cloud_placement, "the assignment of devices to agents"),
        "document": (redis_keys.cloud_run, "the document"),
        "index": (redis_keys.cloud_runs, "the entry in the index"),
        "events": (redis_keys.cloud_events, "the log of events"),
    }
    key_of, name = parts[what]
    # the first agent's visits of the second round
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=3), closed_at=2)
    await fed.store.delete(key_of(run_id))
    gate.open.set()
    await fed.until(lambda: not fed.cloud.runs.training)
    end = await fed.info(run_id)
    assert (end.status, end.rounds) == ("failed", 1)
    assert f"{name} of run {run_id} is gone from Redis" in str(end.reason)
    assert "maxmemory-policy" in str(end.reason)


@pytest.mark.whole
async def test_a_run_whose_log_lost_a_round_is_not_resumed(fed: Federation) -> None:
    run_id = await fed.start_and_pause(small_spec(num_rounds=3), 2)
    await fed.store.delete(redis_keys.cloud_rounds(run_id))
    await fed.control(run_id, "resume")
    end = await fed.finish(run_id)
    assert (end.status, end.rounds) == ("failed", 2)
    assert f"round 1 of 2 of run {run_id} is gone from Redis" in str(end.reason)


@pytest.mark.whole
async def test_keys_that_redis_removed_and_its_restart_are_events_of_the_run_and_what_it_may_lose_is_said_before(
    caplog: pytest.LogCaptureFixture, fed: Federation
) -> None:
    watch = fed.cloud.store_watch
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
    await watch.look(now=True)
    policy = ServerInfo(process="one", policy="allkeys-lru", limit_bytes=10**6)
    for fed.store.info in (replace(policy, n_evicted=7), replace(policy, process="two", appends=False)):
        watch._due = 0.0
        seen = fed.store.info
        await fed.until(lambda seen=seen: watch._before == seen)  # type: ignore[misc]
    answer = await fed.client.get("/readyz")
    gate.open.set()
    await fed.finish(run_id)
    happened = [str(event.data["reason"]) for event in await fed.events(run_id, "store.changed")]
    assert [text.split(",")[0] for text in happened] == ["Redis has removed 7 keys", "Redis was restarted"]
    assert answer.status_code == 503
    assert "maxmemory-policy allkeys-lru" in answer.json()["missing"][0]
    assert answer.json()["warnings"] == ["Redis has no append-only file: a restart of it may lose rounds"]
    assert "Redis removes keys when its memory is full" in caplog.text
