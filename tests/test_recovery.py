"""Recovery from faults: losses are recorded, and a run has the same bits as one whose spec declares these losses."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from tests.faults import at, garbage
from tests.federation import AGENT_PORT, EDGE_PORT, Federation, Gate, PassOn, small_spec
from tests.shared.algorithms.layouts import ran

LONG = {"visit_s": 3000}


def losses_of(details: list[RoundDetail]) -> list[dict[str, Any]]:
    """Returns the recorded losses in the form of the spec's field."""
    lost = {d.round_no: sorted({row.seat for row in d.seats if row.outcome == "failed"}) for d in details}
    return [{"round_no": round_no, "seats": seats} for round_no, seats in lost.items() if seats]


async def rounds_of(fed: Federation, info: RunInfo) -> list[RoundDetail]:
    return [await fed.round(info.run, number) for number in range(1, info.rounds + 1)]


TABLES = ("links.csv", "devices.ndjson", "edges.ndjson")


def tables(folder: Path, info: RunInfo) -> list[str]:
    """Returns the tables of a results folder that have no wall-clock times, without the ids of agents."""
    texts = [(folder / "runs" / info.run / name).read_text(encoding="utf-8") for name in TABLES]
    return [re.sub('"agent":"[^"]*"', "", text) for text in texts]


async def undisturbed(spec: dict[str, Any], **layout: Any) -> RunInfo:
    return (await ran(spec, **layout)).info


def lose_on_request(fed: Federation, name: str, port: int, path: str, gone: list[asyncio.Task[None]]) -> None:
    """Stop a service as soon as it gets a request, and let its time to live pass."""

    async def reply(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        gone.append(asyncio.create_task(fed.lose(name)))
        raise httpx2.ReadError("gone", request=request)

    fed.router.tamper = at(port, path, reply, times=1)


# ---- losses


async def test_a_run_with_losses_equals_one_whose_spec_declares_them(tmp_path: Path) -> None:
    spec = small_spec(num_rounds=3)
    async with Federation(tmp_path / "disturbed") as fed:
        fed.router.tamper = at(AGENT_PORT + 2, "/visits", garbage, times=2)
        info = await fed.run(spec)
        losses = losses_of(await rounds_of(fed, info))
    assert [loss["round_no"] for loss in losses] == [1, 2]
    layout = (2, 4)  # a different one
    declared = await undisturbed({**spec, "losses": losses}, agent_devices=layout)
    assert declared.model_sha256 == info.model_sha256
    assert (await undisturbed(spec)).model_sha256 != info.model_sha256


@pytest.mark.whole
@pytest.mark.layout(n_edges=1)
async def test_declared_losses_are_recorded_and_do_not_count_for_the_quorum(fed: Federation) -> None:
    losses = [{"round_no": 1, "seats": [0, 1, 2, 3, 4]}, {"round_no": 2, "seats": [5], "wave": 1}]
    info = await fed.run(small_spec(num_edges=1, quorum=1.0, losses=losses))
    assert info.status == "completed"
    first, second = await rounds_of(fed, info)
    assert {row.seat: (row.outcome, row.reason) for row in first.seats} == {
        **dict.fromkeys(range(5), ("failed", "left_out")),
        5: ("used", None),
    }
    assert {f.seat for f in first.failures} == set(range(5))
    assert (first.n_used, second.n_used) == (1, 6)  # there is no wave 1


# ---- edges


@pytest.mark.whole
async def test_devices_of_a_lost_edge_visit_the_others_until_it_returns(fed: Federation) -> None:
    spec = small_spec(num_rounds=4, timeouts=LONG)
    gone: list[asyncio.Task[None]] = []
    lose_on_request(fed, "edge-1", EDGE_PORT + 1, "/rounds", gone)
    run_id = await fed.submit(spec)
    await fed.until(lambda: bool(gone))
    gate = Gate(fed, closed_at=2)  # in round 3: round 2 passes without the edge
    await gate.reached.wait()
    await fed.start_edge(1)
    await fed.until(lambda: fed.cloud.registry.edge_is_live("edge-2"))
    gate.open.set()
    info = await fed.finish(run_id)
    await asyncio.gather(*gone)
    details = await rounds_of(fed, info)
    mine = {s.seat for s in (await fed.seats(run_id)).seats if s.home == 1}
    first, second, _, last = details
    # the round in which the edge was lost continues without its seats and records them
    assert [(f.edge, f.reason, set(f.seats)) for f in first.failures] == [("edge-2", "lost", mine)]
    assert {row.seat for row in first.seats if row.outcome == "failed"} == mine
    # in the next round its devices visit the other edge, and nothing is lost
    assert {row.edge for row in second.seats} == {"edge-1"}
    assert (second.n_used, second.failures) == (6, ())
    assert [(row.edge, row.outcome) for row in second.edges] == [("edge-1", "used"), ("edge-2", "away")]
    # after its return they visit it again
    assert {row.seat for row in last.seats if row.edge == "edge-2"} == mine
    declared = await undisturbed({**spec, "losses": losses_of(details)})
    assert declared.model_sha256 == info.model_sha256


@pytest.mark.whole
async def test_a_round_below_its_quorum_of_edges_is_repeated_on_the_new_round_map(fed: Federation) -> None:
    spec = small_spec(quorum=0.9, timeouts=LONG)
    gone: list[asyncio.Task[None]] = []
    lose_on_request(fed, "edge-1", EDGE_PORT + 1, "/rounds", gone)
    info = await fed.run(spec)
    await asyncio.gather(*gone)
    details = await rounds_of(fed, info)
    events = await fed.events(info.run)
    assert info.status == "completed"
    assert [detail.attempts for detail in details] == [2, 1]
    assert losses_of(details) == []
    retried = [event.data for event in events if event.kind == "round.retried"]
    assert [(data["round_no"], data["attempt"]) for data in retried] == [(1, 1)]
    assert "edge-2" in retried[0]["reason"]
    assert {"kind": "edge", "name": "edge-2"} in [e.data for e in events if e.kind == "node.lost"]
    whole = await undisturbed(spec)
    assert info.model_sha256 == whole.model_sha256


@pytest.mark.whole
async def test_selection_does_not_depend_on_lost_devices(tmp_path: Path) -> None:
    """Half of the seats are selected; one agent is lost all the time, and its seat is selected as if it were alive."""
    spec = small_spec(num_rounds=4, select="random", fraction_train=0.5, timeouts=LONG)
    async with Federation(tmp_path / "f") as fed:
        gone: list[asyncio.Task[None]] = []
        lose_on_request(fed, "agent-3", AGENT_PORT + 3, "/visits", gone)
        info = await fed.run(spec)
        await asyncio.gather(*gone)
        details = await rounds_of(fed, info)
    async with Federation(tmp_path / "whole") as fed:
        whole = await rounds_of(fed, await fed.run(spec))
    drawn = [sorted(row.seat for row in detail.seats) for detail in details]
    assert drawn == [sorted(row.seat for row in detail.seats) for detail in whole]
    assert losses_of(details)
    declared = await undisturbed({**spec, "losses": losses_of(details)})
    assert declared.model_sha256 == info.model_sha256


# ---- agents


async def test_an_agent_restarted_at_another_address_during_its_visit_is_found_and_nothing_is_lost(
    fed: Federation,
) -> None:
    moved: list[asyncio.Task[None]] = []

    async def restart() -> None:
        await fed.stop("agent-2")
        await fed.start_agent(2, port=AGENT_PORT + 50)

    async def reply(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        moved.append(asyncio.create_task(restart()))
        raise httpx2.ReadError("killed", request=request)

    fed.router.tamper = at(AGENT_PORT + 2, "/visits", reply, times=1)
    info = await fed.run(small_spec(timeouts=LONG))
    await asyncio.gather(*moved)
    details = await rounds_of(fed, info)
    assert (AGENT_PORT + 50, "/visits") in fed.router.calls
    assert losses_of(details) == []
    assert not any(row.fresh_state for detail in details for row in detail.seats)
    assert info.model_sha256 == (await undisturbed(small_spec())).model_sha256


@pytest.mark.whole
async def test_events_report_a_silent_node_as_suspect_lost_and_revived(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=1, timeouts=LONG))
    silent, beats = fed.agent_id(5), fed.apps["agent-5"].state.agent.membership

    async def reported() -> list[str]:
        return [e.kind for e in await fed.events(run_id) if e.kind.startswith("node.") and e.data["name"] == silent]

    async def until_reported(state: str) -> None:
        while f"node.{state}" not in await reported():  # noqa: ASYNC110 - states are checked a few times per second
            await asyncio.sleep(0.02)

    await beats.stop()
    await fed.pass_time(0.6 * fed.ttl_s, silent)
    await until_reported("suspect")
    await fed.pass_time(0.5 * fed.ttl_s, silent)
    await until_reported("lost")
    beats.start()
    await until_reported("revived")
    await fed.pass_time(1.1 * fed.ttl_s)
    await until_reported("alive")
    gate.open.set()
    await fed.finish(run_id)
    assert await reported() == ["node.suspect", "node.lost", "node.revived", "node.alive"]


# ---- the cloud


@pytest.mark.whole
async def test_rounds_that_a_killed_cloud_did_not_evaluate_are_evaluated_by_the_next(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    spec, stuck = small_spec(num_rounds=3), asyncio.Event()

    async def never(*args: Any) -> None:
        await stuck.wait()

    monkeypatch.setattr(fed.cloud.runs.services.evaluator, "_evaluate", never)
    gate, run_id = await fed.submit_and_hold(spec, closed_at=3)  # rounds 1 and 2 wait for their evaluation
    await fed.stop("cloud")
    gate.open.set()
    await fed.start_cloud()
    details = await rounds_of(fed, await fed.finish(run_id))
    assert [detail.evaluation for detail in details] == [detail.evaluation for detail in (await ran(spec)).rounds]
    assert all(detail.evaluation for detail in details)
    assert not [key for key in await fed.store.keys("cloud:run:") if ":due:" in key]


@pytest.mark.whole
async def test_rounds_that_a_killed_cloud_did_not_write_are_added_to_the_results_folder(fed: Federation) -> None:
    spec = small_spec(num_rounds=4)
    whole = tables(fed.folder, await fed.run(spec))
    for left in ("nothing", "half a line"):
        gate, run_id = await fed.submit_and_hold(spec, closed_at=4)
        await fed.stop("cloud")
        for table in [fed.folder / "runs" / run_id / name for name in TABLES]:
            lines = table.read_bytes().splitlines(keepends=True)
            table.unlink() if left == "nothing" else table.write_bytes(b"".join(lines[:-3]) + lines[-3][:7])
        gate.open.set()
        await fed.start_cloud()
        assert tables(fed.folder, await fed.finish(run_id)) == whole, left
        await fed.until(lambda: fed.n_agents() == 6)  # the next run has one device at each


async def test_a_run_reports_an_unreachable_store_and_continues_afterwards(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
    fed.store_error = "Redis does not answer"
    gate.open.set()
    while not str((await fed.info(run_id)).reason).startswith("waiting: Redis"):  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.05)
    other = await fed.client.get("/runs/some-other")
    assert (other.status_code, other.json()["code"]) == (503, "store_unavailable")
    await fed.until(lambda: "ping" in fed.refused_calls)  # by the monitor of the store
    fed.store_error = None
    info = await fed.finish(run_id)
    assert (info.status, info.model_sha256) == ("completed", (await undisturbed(small_spec())).model_sha256)
    assert losses_of(await rounds_of(fed, info)) == []
    reasons = [str(event.data.get("reason")) for event in await fed.events(run_id, "run.status")]
    assert any("Redis does not answer" in reason for reason in reasons), reasons


@pytest.mark.whole
async def test_a_run_deleted_while_an_agent_and_an_edge_are_down_is_deleted_there_when_they_return(
    counter_algorithm: str, fed: Federation
) -> None:
    kept, gone = [await fed.run(small_spec(algorithm=counter_algorithm)) for _ in range(2)]
    await fed.stop("agent-3")
    await fed.stop("edge-1")
    assert (await fed.client.delete(f"/runs/{gone.run}")).status_code == 204
    states = fed.folder / "agent-3" / "seats"
    assert {path.name for path in states.iterdir()} == {f"={kept.run}", f"={gone.run}"}
    assert [key for key in await fed.store.keys("edge:edge-2:") if gone.run in key]
    await fed.start_edge(1)
    await fed.start_agent(3)
    await fed.until(lambda: {path.name for path in states.iterdir()} == {f"={kept.run}"})
    await fed.until(lambda: fed.apps["edge-1"].state.edge.membership.registered)
    left = await fed.store.keys("edge:edge-2:")
    assert any(kept.run in key for key in left)
    assert not any(gone.run in key for key in left)


@pytest.mark.whole
async def test_agents_that_swap_addresses_get_their_own_orders(counter_algorithm: str, fed: Federation) -> None:
    """Containers that are restarted together may swap addresses. Each seat's state is at one agent only."""
    spec = small_spec(num_rounds=3, algorithm=counter_algorithm, timeouts=LONG)
    swapped: list[asyncio.Task[None]] = []

    async def swap() -> None:
        await fed.stop("agent-2")
        await fed.stop("agent-3")
        await fed.start_agent(2, port=AGENT_PORT + 3)
        await fed.start_agent(3, port=AGENT_PORT + 2)

    async def reply(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        swapped.append(asyncio.create_task(swap()))
        raise httpx2.ReadError("killed", request=request)

    gate, run_id = await fed.submit_and_hold(spec, closed_at=2)
    fed.router.tamper = at(AGENT_PORT + 2, "/visits", reply, times=1)
    gate.open.set()
    info = await fed.finish(run_id)
    await asyncio.gather(*swapped)
    details = await rounds_of(fed, info)
    assert swapped
    assert losses_of(details) == []
    assert not any(row.fresh_state for detail in details for row in detail.seats)


# ---- a cleaner of temporary files


async def test_a_run_whose_state_is_removed_fails_and_names_the_folder(tmp_path: Path) -> None:
    async with Federation(tmp_path) as fed:
        gate, run = await fed.submit_and_hold(small_spec(num_rounds=6), closed_at=2)
        shutil.rmtree(tmp_path / "cloud")
        gate.open.set()
        info = await fed.finish(run)
    assert info.status == "failed"
    assert re.search("/cloud/.*: No such file or directory", str(info.reason))
