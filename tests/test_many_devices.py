"""Runs of thousands of devices of which a round visits a few: no tier makes, sends or records the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from cloud_server.runs import results_writer, round_record
from device_agent.settings import AgentSettings
from edge_server.rounds.round_log import RoundLog
from shared.core.errors import BadInput
from shared.core.number_sets import NumberSet
from shared.federation.population.devices import Devices
from shared.results.folder import SEATS
from shared.service.api.membership import AgentRegistration
from shared.service.api.nodes import WantedTopology
from shared.spec.experiment import ExperimentSpec
from tests.faults import at
from tests.federation import EDGE_PORT, PassOn
from tests.shared.algorithms.layouts import Recorder, ended, federation, ran, results_so_far, run

N, A_ROUND, ROUNDS, TESTED = 1200, 10, 2, 8


def many(**changes: Any) -> dict[str, Any]:
    """Ten of twelve hundred devices train in a round, and eight are tested in the end."""
    spec = {
        "data": {"name": "digits", "n_train": 300, "n_test": 100},
        "partition": {"name": "sampled", "samples": 10},
        "num_devices": N,
        "num_edges": 2,
        "num_rounds": ROUNDS,
        "select": "random",
        "fraction_train": A_ROUND / N,
        "test_clients": TESTED,
    }
    return {**spec, **changes}


@pytest.mark.parametrize(
    "changes", [{}, {"partition": "iid", "data": "digits", "fraction_train": A_ROUND / N}], ids=str
)
async def test_a_run_makes_the_seats_that_it_visits_and_tests_and_no_others(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiers of this test share a process, each with an experiment of its own."""
    made: list[int] = []
    make = Devices.seat

    def noted(devices: Devices, number: int, *args: Any) -> Any:
        made.append(number)
        return make(devices, number, *args)

    monkeypatch.setattr(Devices, "seat", noted)
    monkeypatch.setattr(results_writer, "SEATS_A_PAGE", 0)  # the list in the results folder
    async with federation(tmp_path, agent_devices=(N,)) as fed:
        spec = many(num_rounds=ROUNDS, **changes)
        gate, run_id = await fed.submit_and_hold(spec, closed_at=2, path="/rounds", port=EDGE_PORT)
        # all tiers know the population now; one with dealt samples has gone through them
        before = set(made)  # by the plan, which looks at some
        del made[:]
        gate.open.set()
        await fed.finish(run_id)
        seen = list(made)  # before the test derives the population itself
        done = await results_so_far(fed, run_id)
    rows = [row for detail in done.rounds for row in detail.seats]
    assert [len(detail.seats) for detail in done.rounds] == [A_ROUND] * ROUNDS
    assert done.info.final["clients_received"].n <= TESTED
    due = A_ROUND * (ROUNDS + 1) + TESTED  # and those of the round that began before
    n_experiments = 1 + 2 + 1  # of the agent, the edges and the cloud
    assert len(set(seen)) <= due
    assert A_ROUND < len(seen) <= n_experiments * due
    assert {row.seat for row in rows} <= before.union(seen)


@pytest.mark.whole
async def test_results_depend_neither_on_the_number_of_agents_nor_on_their_seats() -> None:
    one = await ran(many(), agent_devices=(N,))
    other = await ran(many(), agent_devices=(1, 300, 20), n_edges=2)
    assert one.info.model_sha256 == other.info.model_sha256
    assert one.links() == other.links()
    assert one.info.final == other.info.final


@pytest.mark.whole
async def test_what_travels_and_is_stored_does_not_grow_with_the_number_of_devices(tmp_path: Path) -> None:
    """A placement names the seats of an agent as a progression."""
    sizes = []
    for n in (200, N):
        bodies: dict[str, int] = {}

        async def count(request: httpx2.Request, pass_on: PassOn, bodies: dict[str, int] = bodies) -> httpx2.Response:
            key = f"{request.url.port} {request.method} {request.url.path}"
            bodies[key] = max(bodies.get(key, 0), len(await request.aread()))
            return await pass_on()

        async with federation(tmp_path, agent_devices=(n // 2, n // 2)) as fed:
            fed.router.tamper = count
            info = await fed.run(many(num_devices=n, fraction_train=A_ROUND / n))
            taken = [event.data for event in await fed.events(info.run, "seat.taken")]
            stored = await fed.cloud.repository.placement(info.run)
        assert [data["n_seats"] for data in taken] == [n // 2, n // 2]
        assert {seat for data in taken for seat in NumberSet.parse(data["seats"])} == set(range(n))
        sizes.append((sum(bodies.values()), len(stored.model_dump_json())))
    (few_bytes, few_stored), (many_bytes, many_stored) = sizes
    assert many_bytes < few_bytes * 1.05 + 200
    assert many_stored < few_stored + 100


@pytest.mark.whole
async def test_a_lost_edge_with_many_seats_is_one_failure_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_record, "MAX_LOST_ROWS", 20)
    async with federation(tmp_path, agent_devices=(N,)) as fed:
        losing: list[asyncio.Task[None]] = []

        async def lose_edge(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
            losing.append(asyncio.create_task(fed.lose("edge-1")))
            raise httpx2.ReadError("gone", request=request)

        fed.router.tamper = at(EDGE_PORT + 1, "/rounds", lose_edge, times=1)
        done = await ended(fed, await fed.submit(many()))
        await asyncio.gather(*losing)
    (failure,) = done.rounds[0].failures
    assert failure.seats == NumberSet(range(1, N, 2))
    assert sum(row.outcome == "failed" for row in done.rounds[0].seats) == 20
    assert [row.n_used for row in done.rounds[1].edges] == [A_ROUND, 0]  # its devices visit the other edge


@pytest.mark.whole
async def test_a_paused_run_resumes_with_the_same_bits_and_its_seats_are_read_by_page(tmp_path: Path) -> None:
    whole = await ran(many(), agent_devices=(N,))
    async with federation(tmp_path, agent_devices=(N,)) as fed:
        run_id = await fed.start_and_pause(many(), 1)
        answer = await fed.client.get(f"/runs/{run_id}/seats", params={"skip": N - 2})
        assert [(seat["seat"], seat["home"], seat["n_train"]) for seat in answer.json()["seats"]] == [
            (N - 2, 0, 10),
            (N - 1, 1, 10),
        ]
        assert (await fed.client.get(f"/runs/{run_id}/seats", params={"skip": N})).json() == {"seats": []}
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
        kept = (fed.folder / "runs" / run_id / SEATS).read_text().splitlines()
    assert done.info.model_sha256 == whole.info.model_sha256
    assert len(kept) == N


@pytest.mark.whole
async def test_devices_without_state_leave_no_versions(tmp_path: Path) -> None:
    """Otherwise orders and checkpoints would grow with every device that has ever taken part."""
    bases: list[int] = []
    fields = RoundLog.answer_fields

    def noted(log: RoundLog) -> dict[str, Any]:
        bases.append(len(log.base_versions))
        return fields(log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundLog, "answer_fields", noted)
        await run(tmp_path, many(), agent_devices=(N,))
        assert set(bases) == {0}
        await run(tmp_path, many(algorithm="scaffold"), agent_devices=(N,))
        assert max(bases) == A_ROUND // 2


@pytest.mark.whole
async def test_held_out_devices_are_tested_by_at_most_as_many_as_train(tmp_path: Path) -> None:
    sampled = await ran(many(held_out_fraction=0.5, test_clients=400, num_rounds=1), agent_devices=(N,))
    for detail in sampled.rounds:
        trained = sum(row.outcome == "used" for row in detail.seats)
        tested = sum(row.outcome == "evaluated" for row in detail.seats)
        assert (trained, tested) == (A_ROUND // 2, A_ROUND // 2)
    recorder = Recorder()
    all_of_few = many(num_devices=40, fraction_train=0.25, held_out_fraction=0.5, test_clients="all", num_rounds=1)
    every = await run(tmp_path, all_of_few, tamper=recorder, agent_devices=(40,))
    assert [sum(row.outcome == "evaluated" for row in detail.seats) for detail in every.rounds] == [20]


@pytest.mark.parametrize(
    "of",
    [
        lambda n: ExperimentSpec(num_devices=n),
        lambda n: ExperimentSpec(max_devices=n),
        lambda n: ExperimentSpec(test_clients=n),
        lambda n: AgentSettings(devices=n),
        lambda n: AgentRegistration(agent="a-1", name="a", devices=n, profile="standard", port=1, nonce="0" * 16),
        lambda n: WantedTopology(devices=n),
        lambda n: WantedTopology(devices={"device": n}),
    ],
    ids=["num_devices", "max_devices", "test_clients", "agent", "registration", "topology", "service"],
)
def test_spec_agent_and_api_have_the_same_limit(of: Callable[[int], object]) -> None:
    """An agent of a run with more devices than it may host would die at its start."""
    assert of(1_000_000)
    with pytest.raises((ValidationError, BadInput)):
        of(1_000_001)
