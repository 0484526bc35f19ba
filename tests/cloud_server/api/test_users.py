"""Several users of one cloud: tokens, whose run is whose, limits, and turns in the queue."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cloud_server.runs import quotas, user_requests
from cloud_server.runs.events import RunEvent
from shared.storage import redis_keys
from tests.cloud_server.streaming import opened
from tests.federation import Federation, Gate, small_spec

ADMIN = "the-token-of-the-administrator"
with_admin = pytest.mark.layout(agent_devices=(6,), common={"api_token": ADMIN, "tier_token": "tier"})
alone = pytest.mark.layout(n_edges=0, agent_devices=(), common={"api_token": ADMIN, "tier_token": "tier"})


def as_admin(fed: Federation) -> httpx2.AsyncClient:
    fed.client.headers["authorization"] = f"Bearer {ADMIN}"
    return fed.client


async def user_of(fed: Federation, name: str, **limits: int) -> httpx2.AsyncClient:
    """Add a user; returns a client that shows the token."""
    answer = await as_admin(fed).post("/tokens", json={"name": name, **limits})
    assert answer.status_code == 201, answer.text
    headers = {"authorization": f"Bearer {answer.json()['token']}"}
    return httpx2.AsyncClient(
        transport=fed.router, base_url=fed.client.base_url, timeout=fed.client.timeout, headers=headers
    )


async def submit(client: httpx2.AsyncClient, **changes: Any) -> str:
    answer = await client.post("/runs", json={"spec": small_spec(**changes)})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["run"])


def refused(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# ---- tokens


@alone
async def test_a_token_is_shown_once_kept_as_a_digest_and_void_once_removed(fed: Federation) -> None:
    alice = await user_of(fed, "alice")
    token = alice.headers["authorization"].removeprefix("Bearer ")
    assert (await alice.get("/runs")).json()["runs"] == []
    kept = await fed.store.scan(redis_keys.CLOUD_USERS)
    assert len(kept) == 1
    assert token not in str(kept) + (await as_admin(fed).get("/tokens")).text
    listed = (await fed.client.get("/tokens")).json()["users"]
    assert [(user["name"], user["n_runs"], user["n_bytes"]) for user in listed] == [("alice", 0, 0)]

    assert refused(await fed.client.post("/tokens", json={"name": "alice"})) == (409, "conflict")
    assert (await fed.client.delete("/tokens/alice")).status_code == 204
    assert refused(await alice.get("/runs")) == (401, "unauthorised")
    assert refused(await fed.client.delete("/tokens/alice")) == (404, "not_found")
    again = await user_of(fed, "alice")
    assert (await again.get("/runs")).status_code == 200
    assert refused(await alice.get("/runs")) == (401, "unauthorised")


@alone
async def test_the_events_that_a_user_reads_end_with_the_token(fed: Federation) -> None:
    alice = await user_of(fed, "alice")
    run = await submit(alice)
    headers = {"authorization": alice.headers["authorization"]}
    async with opened(fed.apps["cloud"], f"/runs/{run}/events", headers) as stream:
        events = stream.events()
        assert (await anext(events))["event"] == "run.status"
        await as_admin(fed).delete("/tokens/alice")
        assert (await fed.client.post(f"/runs/{run}/stop")).status_code == 200
        assert [each async for each in events if each["data"].get("status") == "stopped"] == []


@alone
async def test_a_cloud_that_is_restarted_knows_its_users_and_hears_of_those_that_another_removes(
    fed: Federation,
) -> None:
    alice = await user_of(fed, "alice")
    await fed.restart_cloud()
    await fed.until(lambda: "alice" in fed.cloud.users.by_name)
    assert (await alice.get("/runs")).status_code == 200
    await fed.store.delete_prefix(redis_keys.cloud_user("alice"))
    await fed.store.put(redis_keys.cloud_user("bob"), b"{}")  # of another version
    fed.cloud.users._looking.wake()
    await fed.until(lambda: not fed.cloud.users.by_name)
    assert refused(await alice.get("/runs")) == (401, "unauthorised")


@pytest.mark.parametrize("name", ["admin", "Admin", "", "a b", "../x", "x" * 65])
@alone
async def test_a_name_that_means_another_or_is_none_is_refused(name: str, fed: Federation) -> None:
    answer = await as_admin(fed).post("/tokens", json={"name": name})
    assert (answer.status_code, answer.json()["field"]) == (422, "name")


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_without_a_token_of_the_administrator_there_are_no_users(fed: Federation) -> None:
    answer = await fed.client.post("/tokens", json={"name": "alice"})
    assert refused(answer) == (409, "conflict")
    assert "STRATA_API_TOKEN" in answer.json()["detail"]


@alone
async def test_what_belongs_to_the_administrator_is_refused_to_users(fed: Federation) -> None:
    alice = await user_of(fed, "alice", max_runs=3)
    await user_of(fed, "bob")
    for method, path, body in (
        ("POST", "/tokens", {"name": "carol"}),
        ("DELETE", "/tokens/bob", None),
        ("PUT", "/topology", {"devices": 3}),
        ("PATCH", "/agents/a-1", {"online": False}),
        ("DELETE", "/identities/edge/e", None),
    ):
        answer = await alice.request(method, path, json=body)
        assert refused(answer) == (403, "forbidden"), path
        assert "alice" in answer.json()["detail"]
    for method, path in (("GET", "/metrics"), ("POST", "/edges"), ("POST", "/heartbeats")):
        assert refused(await alice.request(method, path)) == (401, "unauthorised"), path
    own = (await alice.get("/tokens")).json()["users"]
    assert [(user["name"], user["max_runs"]) for user in own] == [("alice", 3)]
    assert (await alice.get("/topology")).status_code == 200
    long = small_spec(name="x" * 70_000)
    assert (await alice.post("/runs", json={"spec": long})).status_code == 422  # read, not refused for its length


# ---- owners


@with_admin
async def test_a_run_has_its_owner_in_record_events_and_lists_and_the_bits_of_anybody(fed: Federation) -> None:
    alice = await user_of(fed, "alice")
    as_admin(fed)
    mine, theirs = await submit(alice), await submit(fed.client)
    infos = [await fed.finish(run) for run in (mine, theirs)]
    assert [info.owner for info in infos] == ["alice", None]
    assert infos[0].spec == infos[1].spec
    assert (infos[0].model_sha256, infos[0].final, infos[0].simulated_s, infos[0].bytes_up) == (
        infos[1].model_sha256,
        infos[1].final,
        infos[1].simulated_s,
        infos[1].bytes_up,
    )
    records = [json.loads((fed.folder / "runs" / run / "run.json").read_bytes()) for run in (mine, theirs)]
    assert (records[0]["owner"], "owner" in records[1]) == ("alice", False)
    first = [(await fed.events(run, "run.status"))[0].data.get("owner") for run in (mine, theirs)]
    assert first == ["alice", None]
    for owner, runs in (("alice", [mine]), ("admin", [theirs]), ("bob", [])):
        found = (await alice.get("/runs", params={"owner": owner})).json()["runs"]
        assert [info["run"] for info in found] == runs, owner


@with_admin
async def test_users_see_all_runs_and_change_their_own(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = await user_of(fed, "alice"), await user_of(fed, "bob")
    as_admin(fed)
    run = await submit(alice)
    await fed.finish(run)
    requests: list[tuple[str, str, Any]] = [
        ("POST", f"/runs/{run}/pause", None),
        ("POST", f"/runs/{run}/resume", None),
        ("POST", f"/runs/{run}/stop", None),
        ("POST", "/runs/latest/stop", None),
        ("POST", f"/runs/{run}/rounds", {"num_rounds": 1}),
        ("PATCH", f"/runs/{run}", {"max_devices": 7}),
        ("DELETE", f"/runs/{run}", None),
    ]
    for method, path, body in requests:
        answer = await bob.request(method, path, json=body)
        assert refused(answer) == (403, "forbidden"), path
        assert answer.json()["detail"] == f"run {run} belongs to alice: bob may see it, and change runs of bob only"
    assert (await bob.get(f"/runs/{run}/rounds/1")).status_code == 200
    assert (await alice.post(f"/runs/{run}/rounds", json={"num_rounds": 1})).status_code == 200
    await fed.finish(run)
    noted: list[dict[str, Any]] = []
    monkeypatch.setattr(user_requests, "log_event", lambda event, **fields: noted.append({"event": event, **fields}))
    assert (await fed.client.post(f"/runs/{run}/rounds", json={"num_rounds": 1})).status_code == 200
    assert noted == [{"event": "run.requested", "run": run, "request": "add rounds", "by": "admin"}]
    assert (await fed.finish(run)).rounds == 4

    old = await submit(fed.client)
    await fed.finish(old)
    answer = await alice.delete(f"/runs/{old}")
    assert answer.json()["detail"].startswith(f"run {old} belongs to admin")
    await fed.store.put(redis_keys.cloud_run(run), b"{}")
    assert refused(await alice.delete(f"/runs/{run}")) == (403, "forbidden")
    assert (await fed.client.delete(f"/runs/{run}")).status_code == 204


# ---- limits


@pytest.mark.layout(
    n_edges=0, agent_devices=(), common={"api_token": ADMIN, "tier_token": "tier"}, cloud={"user_max_runs": 2}
)
async def test_a_user_has_as_many_runs_that_have_not_ended_as_the_limit(fed: Federation) -> None:
    alice, bob = await user_of(fed, "alice"), await user_of(fed, "bob", max_runs=1)
    first = await submit(alice)
    key = {"idempotency-key": "same"}
    second = (await alice.post("/runs", json={"spec": small_spec()}, headers=key)).json()["run"]
    answer = await alice.post("/runs", json={"spec": small_spec()})
    assert (*refused(answer), answer.json()["field"]) == (429, "too_many", "max_runs")
    assert answer.json()["detail"].startswith("2 runs of alice have not ended, the limit is 2")
    repeated = await alice.post("/runs", json={"spec": small_spec()}, headers=key)
    assert (repeated.status_code, repeated.json()["run"]) == (201, second)
    theirs = await bob.post("/runs", json={"spec": small_spec()}, headers=key)  # the key is each user's own
    assert theirs.json()["run"] != second
    assert refused(await bob.post("/runs", json={"spec": small_spec()})) == (429, "too_many")
    for prefix in ("", "alice: ", "alice"):  # the administrator's are too
        answer = await as_admin(fed).post(
            "/runs", json={"spec": small_spec()}, headers={"idempotency-key": f"{prefix}same"}
        )
        assert (answer.status_code, answer.json().get("owner")) == (201, None)
    await alice.post(f"/runs/{first}/stop")
    await fed.until_status(first, "stopped")
    third = await submit(alice)
    assert refused(await alice.post(f"/runs/{first}/resume")) == (429, "too_many")
    await alice.post(f"/runs/{third}/stop")
    await fed.until_status(third, "stopped")
    assert (await alice.post(f"/runs/{first}/resume")).status_code == 200


@with_admin
async def test_no_run_begins_while_a_users_results_hold_more_than_the_limit(fed: Federation) -> None:
    alice, bob = await user_of(fed, "alice", max_bytes=1000), await user_of(fed, "bob")
    run = await submit(alice)
    as_admin(fed)
    await fed.finish(run)
    await fed.until(lambda: run not in fed.cloud.runs.queue.executors)
    answer = await alice.post("/runs", json={"spec": small_spec()})
    assert (*refused(answer), answer.json()["field"]) == (507, "disk_quota", "max_bytes")
    assert "the limit is 1 kB" in answer.json()["detail"]
    used = (await alice.get("/tokens")).json()["users"][0]["n_bytes"]
    folder = fed.folder / "runs" / run
    assert used == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert refused(await alice.post(f"/runs/{run}/rounds", json={"num_rounds": 1})) == (507, "disk_quota")

    assert (await alice.delete(f"/runs/{run}")).status_code == 204
    assert folder.is_dir()
    assert refused(await alice.post("/runs", json={"spec": small_spec()})) == (507, "disk_quota")
    assert refused(await alice.delete(f"/runs/{run}")) == (404, "not_found")
    assert refused(await bob.delete(f"/runs/{run}", params={"results": True})) == (403, "forbidden")
    assert (await alice.delete(f"/runs/{run}", params={"results": True})).status_code == 204
    assert not folder.exists()
    assert refused(await fed.client.delete("/runs/%2e%2e", params={"results": True})) == (404, "not_found")
    second = await submit(alice)
    await fed.finish(second)
    assert (await alice.delete(f"/runs/{second}", params={"results": True})).status_code == 204
    assert [*(fed.folder / "runs").iterdir()] == []


@alone
async def test_no_round_waits_while_the_sizes_of_results_are_read(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, begun, released = await user_of(fed, "alice", max_bytes=1000), threading.Event(), threading.Event()
    as_admin(fed)

    def slow(folder: Path) -> Counter[str | None]:
        begun.set()
        released.wait()
        return Counter()

    monkeypatch.setattr(quotas, "bytes_by_owner", slow)
    hers = asyncio.create_task(submit(alice))
    try:
        await fed.until(begun.is_set)
        run = await submit(fed.client)  # a run is stored under the lock under which rounds are
        assert not hers.done()
    finally:
        released.set()
    assert await hers != run


# ---- the queue


def beginnings(fed: Federation) -> list[str]:
    """The runs that begin to train from now on, as they do."""
    began, listener = list[str](), fed.cloud.repository.on_event

    def note(run_id: str, event: RunEvent) -> None:
        if event.kind == "run.status" and event.data["status"] == "starting" and run_id not in began:
            began.append(run_id)
        listener(run_id, event)

    fed.cloud.repository.on_event = note
    return began


@pytest.mark.whole
@with_admin
async def test_owners_take_turns_and_a_waiting_run_says_whose_runs_are_before_it(fed: Federation) -> None:
    alice, bob = await user_of(fed, "alice"), await user_of(fed, "bob")
    as_admin(fed)
    gate = Gate(fed)
    first = await submit(alice, num_rounds=1)
    await gate.reached.wait()
    hers = [await submit(alice, num_rounds=1) for _ in range(2)]
    his = await submit(bob, num_rounds=1)
    admins = await submit(fed.client, num_rounds=1)
    reasons = {run: (await fed.info(run)).reason for run in (*hers, his, admins)}
    waits = "waiting: as many runs train as may at a time, 1 of alice"
    assert reasons == {
        his: waits,
        admins: f"{waits}; to begin before this one: 1 of bob",
        hers[0]: f"{waits}; to begin before this one: 1 of admin, 1 of bob",
        hers[1]: f"{waits}; to begin before this one: 1 of admin, 1 of alice, 1 of bob",
    }
    listed = {info["run"]: info["reason"] for info in (await bob.get("/runs")).json()["runs"]}
    assert {run: listed[run] for run in reasons} == reasons

    began = beginnings(fed)
    gate.open.set()
    for run in (first, *reasons):
        await fed.finish(run)
    assert began == [his, admins, *hers]


@pytest.mark.whole
@with_admin
async def test_a_run_that_a_restart_interrupted_goes_on_before_those_of_others(fed: Federation) -> None:
    alice, bob = await user_of(fed, "alice"), await user_of(fed, "bob")
    as_admin(fed)
    gate = Gate(fed)
    first = await submit(alice, num_rounds=1)
    await gate.reached.wait()
    second = await submit(bob, num_rounds=1)
    await fed.stop("cloud")
    gate.open.set()
    await fed.start_cloud()
    began = beginnings(fed)
    for run in (first, second):
        await fed.finish(run)
    assert began == [first, second]
