"""The state store of an edge: placements, states and their files over many rounds and restarts, and their deletion."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_server.rounds.edge_checkpoint import EdgeMemory
from edge_server.rounds.stale_updates import LateUpdateBuffer
from edge_server.rounds.twins import Twins
from edge_server.state_store import EdgeStateStore
from shared.runtime.compute_thread import ComputeThread
from shared.storage import redis_keys
from shared.storage.blobs import Blobs
from shared.storage.states import Version
from tests.fakes.memory_store import MemoryStore
from tests.federation import EDGE_PORT, Federation, small_spec
from tests.shared.algorithms.layouts import ran, resolved


def blobs(fed: Federation, number: int) -> list[str]:
    return sorted(path.name for path in (fed.folder / f"edge-{number}" / "blobs").iterdir())


def edge_spec(**changes: Any) -> dict[str, Any]:
    return small_spec(algorithm="probe_edge", client="edge", schedule="equal", **changes)


async def edge_counts(fed: Federation, run_id: str, round_no: int) -> list[int]:
    """Returns the number of rounds counted in each edge's state."""
    figures = (await fed.round(run_id, round_no)).figures
    return [figures[edge]["rounds"] for edge in sorted(figures)]


async def visit_counts(fed: Federation, run_id: str, round_no: int) -> set[int]:
    """Returns the numbers of visits counted in the seats' states after the last wave of a round."""
    rows = (await fed.round(run_id, round_no)).seats
    return {int(row.figures["visits"]) for row in rows if row.wave == max(r.wave for r in rows)}


async def test_a_placement_that_an_edge_does_not_hold_is_sent_again(fed: Federation) -> None:
    plain = (await ran(small_spec())).info
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
    for number in (1, 2):
        (key,) = await fed.store.keys(redis_keys.edge_placements(f"edge-{number}", run_id))
        await fed.store.delete(key)
    fed.router.calls.clear()
    gate.open.set()
    info = await fed.finish(run_id)
    assert info.model_sha256 == plain.model_sha256
    # The cloud ordered the evaluation after round 2, then sent the placement, then repeated the order.
    assert [call for call in fed.router.calls if call[0] >= EDGE_PORT and call[0] < EDGE_PORT + 2].count(
        (EDGE_PORT, "/placements")
    ) == 1


@pytest.mark.whole
async def test_an_edge_keeps_one_placement_however_often_seats_move(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=4, max_devices=8), closed_at=2)
    await fed.start_agent(6, devices=2)
    await fed.until(lambda: fed.n_agents() == 7)
    gate.open.set()
    await fed.finish(run_id)
    assert [len(await fed.store.keys(redis_keys.edge_placements(f"edge-{n}", run_id))) for n in (1, 2)] == [1, 1]


@pytest.mark.whole
async def test_after_many_rounds_an_edge_keeps_two_states_of_a_run_and_their_files(
    counter_algorithm: str, fed: Federation
) -> None:
    info = await fed.run(small_spec(num_rounds=12, algorithm=counter_algorithm))
    assert info.status == "completed"
    for number in (0, 1):
        states = await fed.store.scan(redis_keys.edge_states(f"edge-{number + 1}", info.run, number))
        assert [key.rpartition(":")[2][:8] for key in states] == ["00000011", "00000012"]
        assert {value.decode() for value in states.values()} <= set(blobs(fed, number))
        assert len(blobs(fed, number)) <= 2
    # The cloud: one state, and a table for each round.
    assert len(list((fed.folder / "cloud" / "blobs").iterdir())) == 1 + 12
    # The agents: at most the last committed state and the one before it, for each seat.
    for number in range(6):
        kept = list((fed.folder / f"agent-{number}" / "seats").glob("*/*"))
        assert [len(list(seat.iterdir())) for seat in kept] == [2]


@pytest.mark.layout(n_edges=1, agent_devices=(2,), heartbeat_s=0.2)
async def test_a_deleted_run_leaves_nothing_at_edge_and_agent(counter_algorithm: str, fed: Federation) -> None:
    spec = small_spec(num_edges=1, num_devices=2, algorithm=counter_algorithm)
    first, second = await fed.run(spec), await fed.run(spec)
    folder = fed.folder / "agent-0" / "seats"
    assert (await fed.client.delete(f"/runs/{first.run}")).status_code == 204
    await fed.until(lambda: {path.name for path in folder.iterdir()} == {f"={second.run}"})
    left = await fed.store.keys(redis_keys.edge_runs("edge-1"))
    assert {redis_keys.run_at_edge("edge-1", key) for key in left} == {second.run}
    await fed.client.delete(f"/runs/{second.run}")
    await fed.until(lambda: not list(folder.iterdir()) and not blobs(fed, 0))
    assert await fed.store.keys(redis_keys.edge_runs("edge-1")) == []


@pytest.mark.whole
async def test_states_count_each_round_once_although_edges_and_agents_restart_between_them(fed: Federation) -> None:
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
    end = await fed.add_rounds(info.run, 2)
    assert [await edge_counts(fed, info.run, n) for n in (1, 2, 3)] == [[1, 1], [2, 2], [3, 3]]
    assert [await visit_counts(fed, info.run, n) for n in (1, 2, 3)] == [{2}, {4}, {6}]
    assert end.model_sha256 == plain.model_sha256


async def test_the_newest_checkpoint_is_handed_out_once_and_then_read_from_its_file_and_both_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round changes the memory with which it begins; one that repeats it must not begin with that."""
    experiment = resolved(num_devices=2, late="next_round", round_deadline_s=5)
    states = SimpleNamespace(runs=list)
    thread, files = ComputeThread(), Blobs(tmp_path, fsync=False)
    store = EdgeStateStore("edge-1", MemoryStore(), files, cast("Any", states), thread)
    ended, following = (
        cast("Any", SimpleNamespace(run_id="r", round_no=n, edge=0, base=Version(n - 1) if n > 1 else None))
        for n in (1, 2)
    )
    state = experiment.algorithm.edge_state()
    memory = EdgeMemory(state, LateUpdateBuffer(losses={3: 0.25, 1: 0.5}))
    await store.commit(experiment, ended, memory, Twins({}))
    opened: list[str] = []
    open_blob = files.open

    def noted(digest: str) -> memoryview:
        opened.append(digest)
        return open_blob(digest)

    monkeypatch.setattr(files, "open", noted)
    first = await store.memory(experiment, following)
    assert (opened, first.state, list(first.late.losses.items())) == ([], state, [(1, 0.5), (3, 0.25)])
    first.late.losses[1] = 9.0
    again = await store.memory(experiment, following)
    assert (len(opened), again.state, list(again.late.losses.items())) == (1, state, [(1, 0.5), (3, 0.25)])
    thread.close()


@pytest.mark.slow
@pytest.mark.parametrize("visit", [3, 4], ids=["first wave", "second wave"])
async def test_states_count_no_visit_twice_when_a_round_is_repeated(visit: int, fed: Federation) -> None:
    plain = await fed.run(edge_spec())
    gate, run_id = await fed.submit_and_hold(edge_spec(), closed_at=visit)  # in round 2
    await fed.stop("cloud")
    gate.open.set()
    await fed.start_cloud()
    end = await fed.finish(run_id)
    assert await edge_counts(fed, run_id, 2) == [2, 2]
    assert await visit_counts(fed, run_id, 2) == {4}
    assert end.model_sha256 == plain.model_sha256
