"""Asynchronous devices through the three tiers: beside an event-driven reference, and with delays, restarts, faults."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from shared.federation.aggregation import Accumulator
from shared.federation.messages import Uploads
from shared.wire import codec
from tests.edge_server.rounds.plain_devices import (
    LATENCIES,
    SPEEDS,
    Combine,
    Devices,
    by_samples,
    fedasync,
    fedbuff,
    optimised,
)
from tests.federation import AGENT_PORT, EDGE_PORT, Federation, PassOn, small_spec
from tests.shared.algorithms.conftest import small_models  # noqa: F401 - a fixture
from tests.shared.algorithms.layouts import Ended, answer, body_of, ended, federation, ran, resolved, run
from tests.shared.algorithms.plain_linear import gradient_of, joined
from tests.shared.algorithms.test_server_optimizers import ADAM

POLYNOMIAL = {"name": "polynomial", "a": 0.5}
EVEN: dict[str, Any] = {
    "devices": {"profile": {"up_bps": 1e15, "down_bps": 1e15, "latency_s": 0, "delay_s": 1e5}, "edge_latency_s": 0}
}
"""Devices of equal speed: against such a delay the few bytes by which bodies differ take no time."""


def loose(num_rounds: int = 3, *, algorithm: Any = "fedavg", edges: Any = "synchronous", **devices: Any) -> Any:
    """Returns fields of a spec whose devices are asynchronous."""
    sync = {"devices": {"mode": "asynchronous", **devices}, "edges": edges}
    return {"num_rounds": num_rounds, "algorithm": algorithm, "sync": sync}


def record(done: Ended) -> list[Any]:
    """Returns all that a run records of its models and its simulated visits."""
    return [
        (
            detail.model_sha256,
            detail.simulated_s,
            sorted(
                (
                    (row.edge, row.edge_round, row.wave, row.seat, row.outcome, row.reason),
                    (row.staleness, row.staleness_s, row.begin_s, row.simulated_s),
                    (row.down_bytes, row.up_bytes, row.train_loss),
                )
                for row in detail.seats
            ),
        )
        for detail in done.rounds
    ]


# ---- the reference


BUFF, MIXED = (
    {"name": name, "params": params}
    for name, params in (("fedbuff", {"server_lr": 0.7}), ("fedasync", {"alpha": 0.6, "rho": 0.0}))
)


@pytest.mark.matrix(4)
@pytest.mark.parametrize(
    ("fields", "combine"),
    [
        ({**loose(3, buffer=2, staleness=POLYNOMIAL), "edge_rounds": 3}, by_samples),
        (loose(5, buffer=3, staleness=POLYNOMIAL, algorithm=BUFF), fedbuff(0.7)),
        (loose(8, staleness=POLYNOMIAL, algorithm=MIXED), fedasync(0.6)),
        (loose(5, buffer=3, staleness={"name": "hinge", "a": 2.0, "b": 0}), by_samples),
        (loose(6, buffer=2), by_samples),
        (loose(6, buffer=1, staleness=POLYNOMIAL), by_samples),
        (loose(4, buffer="all", staleness=POLYNOMIAL), by_samples),
        ({**loose(2, buffer=2, algorithm=BUFF), "edge_rounds": 2}, fedbuff(0.7)),
        ({**loose(5, buffer=2, staleness=POLYNOMIAL), "server_optimizer": ADAM}, optimised(ADAM)),
    ],
)
async def test_a_run_is_that_of_the_reference(tmp_path: Path, fields: dict[str, Any], combine: Combine) -> None:
    done = await run(tmp_path, {**SPEEDS, **fields}, n_edges=1, agent_devices=(3, 2))
    expected = Devices(done.experiment, combine).run()
    for detail, rows in zip(done.rounds, expected.rows, strict=True):
        found = [(row.seat, row.edge_round, row.staleness) for row in detail.seats]
        assert found == [(seat, edge_round, tau) for seat, edge_round, tau, _, _ in rows]
        assert [row.staleness_s for row in detail.seats] == pytest.approx([one[3] for one in rows], abs=1e-6)
    ends = list(itertools.accumulate(detail.simulated_s for detail in done.rounds))
    assert ends == pytest.approx([rows[-1][-1] for rows in expected.rows], abs=1e-6)
    assert np.abs(joined(done.model) - expected.model).max() < 1e-4
    assert any(row.staleness for detail in done.rounds for row in detail.seats)


@pytest.mark.whole
async def test_with_equal_speeds_all_devices_count_as_in_a_synchronous_run_bit_for_bit() -> None:
    plain = await ran(small_spec(num_rounds=2, **EVEN), agent_devices=(6,))
    found = await ran(small_spec(**loose(2, buffer="all"), **EVEN), agent_devices=(3, 3))
    assert [detail.model_sha256 for detail in found.rounds] == [detail.model_sha256 for detail in plain.rounds]
    assert {row.staleness for detail in found.rounds for row in detail.seats} == {0}
    assert found.info.accuracy == plain.info.accuracy


def counted(done: Ended) -> list[list[tuple[int, int]]]:
    """Returns seat and staleness of each visit, by round."""
    return [[(row.seat, row.staleness) for row in detail.seats] for detail in done.rounds]


@pytest.mark.whole
async def test_arrivals_of_two_speeds_are_those_written_down(tmp_path: Path) -> None:
    """Visits of seat 0 last 1 s, those of seat 1 last 2.2 s; each is a version."""
    devices = {**SPEEDS["devices"], "edge_latency_s": [[0.25], [0.85]]}
    done = await run(tmp_path, {**SPEEDS, **loose(6), "num_devices": 2, "devices": devices}, n_edges=1)
    assert counted(done) == [[(0, 0)], [(0, 0)], [(1, 2)], [(0, 1)], [(0, 0)], [(1, 2)]]
    ends = list(itertools.accumulate(detail.simulated_s for detail in done.rounds))
    assert ends == pytest.approx([1.0, 2.0, 2.2, 3.0, 4.0, 4.4], abs=1e-6)
    lasted = [detail.seats[0].staleness_s for detail in done.rounds]
    assert lasted == pytest.approx([1.0, 1.0, 2.2, 1.0, 1.0, 2.2], abs=1e-6)


async def test_arrivals_at_one_instant_count_by_seat_and_what_is_beyond_the_buffer_in_the_next_version(
    tmp_path: Path,
) -> None:
    """Three devices of equal speed: against such delays the bytes that bodies and links take are no time at all."""
    devices = {"profile": {**SPEEDS["devices"]["profile"], "delay_s": 1e9}, "edge_latency_s": 0}
    spec = {**SPEEDS, **loose(6, buffer=2), "num_devices": 3, "devices": devices}
    done = await run(tmp_path, spec, n_edges=1, agent_devices=(1, 2))
    cycle = [[(2, 1), (0, 0)], [(1, 1), (2, 1)], [(0, 1), (1, 0)]]
    assert counted(done) == [[(0, 0), (1, 0)], *cycle, *cycle[:2]]


@pytest.mark.whole
async def test_one_device_at_a_time_with_alpha_1_is_sequential_sgd(tmp_path: Path) -> None:
    fields = loose(6, concurrency=1, algorithm={"name": "fedasync", "params": {"alpha": 1.0, "rho": 0.0}})
    done = await run(tmp_path, {**SPEEDS, **fields}, n_edges=1, agent_devices=(5,))
    model = joined(done.experiment.initial)
    seats = [row.seat for detail in done.rounds for row in detail.seats]
    for seat in seats:
        model = model - done.experiment.spec.lr * gradient_of(done.experiment, seat)(model)
    assert len(set(seats)) > 2
    assert {row.staleness for detail in done.rounds for row in detail.seats} == {0}
    assert np.abs(joined(done.model) - model).max() < 1e-4


# ---- nothing but simulated time decides


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("edges", ["synchronous", {"mode": "semi_synchronous", "wanted": 1}, "asynchronous"])
async def test_neither_delays_nor_agents_nor_their_order_change_a_run(tmp_path: Path, edges: Any) -> None:
    load = {"name": "random_walk", "every_s": 0.001, "during_tasks": True}
    devices = {"profile": {"compute_sps": 5, "latency_s": 0.001, "load": load}, "edge_latency_s": 0}
    spec = small_spec(**loose(3, buffer=2, staleness=POLYNOMIAL, edges=edges), devices=devices)
    first = record(await run(tmp_path, spec, agent_devices=(6,)))
    rng = random.Random(0)

    async def delay(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        response = await pass_on()
        if request.url.path == "/visits":
            await asyncio.sleep(rng.random() * 0.2)
        return response

    for agents, order in (((1, 2, 1, 2), (3, 1, 0, 2)), ((1,) * 7, None)):
        assert record(await run(tmp_path, spec, tamper=delay, agent_devices=agents, order=order)) == first


async def test_an_answer_that_comes_first_does_not_count_before_one_that_may_arrive_earlier(tmp_path: Path) -> None:
    first = min(range(len(LATENCIES)), key=LATENCIES.__getitem__)
    asked, placed, free = asyncio.Event(), asyncio.Event(), asyncio.Event()
    hosts: dict[int, int] = {}
    n_answered = 0

    async def hold_the_first(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        nonlocal n_answered
        if request.url.path != "/visits":
            return await pass_on()
        asked.set()
        await placed.wait()
        if (request.url.port or 0) - AGENT_PORT == hosts[first]:
            await free.wait()
        response = await pass_on()
        n_answered += 1
        return response

    async with federation(tmp_path, n_edges=1, agent_devices=(1,) * 5) as fed:
        fed.router.tamper = hold_the_first
        run_id = await fed.submit({**SPEEDS, **loose(1, buffer=1)})
        await asked.wait()
        seats = {seat.agent: seat.seat for seat in (await fed.seats(run_id)).seats}
        hosts |= {seats[fed.agent_id(number)]: number for number in range(5)}
        placed.set()
        await fed.until(lambda: n_answered == 4)
        await asyncio.sleep(0.3)
        assert (await fed.info(run_id)).rounds == 0
        free.set()
        done = await ended(fed, run_id)
    assert [row.seat for row in done.rounds[0].seats] == [first]


# ---- restarts


async def resumed_after(folder: Path, spec: dict[str, Any], *names: str) -> tuple[list[Any], list[Any]]:
    """Returns the record of an undisturbed run, and of one that is paused in mid-flight and goes on after a restart."""
    expected = record(await ran(spec, agent_devices=(3, 3)))
    async with federation(folder, agent_devices=(3, 3)) as fed:
        run_id = await fed.start_and_pause(spec, 2)
        await restart(fed, *names)
        await fed.control(run_id, "resume")
        return expected, record(await ended(fed, run_id))


async def restart(fed: Federation, *names: str) -> None:
    for name in names:
        await (fed.restart_cloud() if name == "cloud" else fed.restart_node(name))
    await fed.until(lambda: len(fed.cloud.registry.live_edges()) == fed.n_edges and fed.n_agents() == 2)


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("algorithm", "restarted"),
    [("scaffold", ("edge-0", "edge-1")), ("scaffold", ()), ("scaffold", ("cloud",)), ("fedavg", ("edge-0", "cloud"))],
)
async def test_visits_in_flight_survive_a_restart_to_the_same_bytes(
    tmp_path: Path, algorithm: str, restarted: tuple[str, ...]
) -> None:
    spec = small_spec(**loose(5, buffer=2, algorithm=algorithm))
    expected, found = await resumed_after(tmp_path, spec, *restarted)
    assert found == expected
    assert any(visit[1][0] for _, _, visits in found for visit in visits)


@pytest.mark.whole
async def test_an_edge_whose_model_has_several_versions_a_round_survives_a_restart(tmp_path: Path) -> None:
    spec = small_spec(**loose(4, buffer=2, staleness=POLYNOMIAL, edges="asynchronous"), edge_rounds=2)
    expected, found = await resumed_after(tmp_path, spec, "edge-0", "edge-1")
    assert found == expected


# ---- faults and lies


@pytest.mark.whole
async def test_dropped_visits_and_devices_that_are_off_are_events_and_their_devices_come_back(tmp_path: Path) -> None:
    profile = {
        "drop_rate": 0.3,
        "availability": {"name": "on_off", "mean_on_s": 1.5, "mean_off_s": 1.0},
        "delay_s": 0.5,
    }
    spec = small_spec(**loose(6, buffer=2), devices={"profile": profile})
    done = await run(tmp_path, spec, agent_devices=(3, 3))
    rows = [row for detail in done.rounds for row in detail.seats]
    assert {row.outcome for row in rows} == {"used", "failed"}
    assert {row.reason for row in rows if row.outcome == "failed"} == {"dropped"}
    came_back = {row.seat for row in rows if row.reason == "dropped"} & {r.seat for r in rows if r.outcome == "used"}
    assert came_back
    assert record(await run(tmp_path, spec, agent_devices=(1, 2, 1, 2))) == record(done)


@pytest.mark.whole
async def test_a_lost_agents_visits_fail_and_the_others_count(tmp_path: Path) -> None:
    spec = small_spec(**loose(5, buffer=2), quorum=0.2, timeouts={"reseat_after_s": 600})
    async with federation(tmp_path, agent_devices=(2, 2, 2)) as fed:
        run_id = await fed.start_and_pause(spec, 2)
        mine = [seat.seat for seat in (await fed.seats(run_id)).seats if seat.agent == fed.agent_id(0)]
        await fed.lose("agent-0")
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    later = [row for detail in done.rounds[2:] for row in detail.seats]
    assert {row.reason for row in later if row.outcome == "failed"} == {"lost"}
    assert {row.seat for row in later if row.outcome == "failed"} <= set(mine)
    assert all(detail.n_used == 4 for detail in done.rounds)


@pytest.mark.whole
async def test_a_sum_in_place_of_single_updates_costs_the_liar_alone(tmp_path: Path) -> None:
    spec = small_spec(**loose(3, buffer=2), quorum=0.2)
    experiment = resolved(**spec)

    async def lie(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        response = await pass_on()
        if (request.url.path, request.url.port) != ("/visits", AGENT_PORT):
            return response
        body, response = await body_of(response)
        found = codec.decode(experiment.wire_types.visit_answer, body, model=experiment.shapes, n_seats=6)
        total = Accumulator(experiment.algorithm.update, experiment.fixed_point)
        for item in found.uploads.contributions:
            total.add(item.update, item.n_samples)
        sizes = {item.seat: 1000 for item in found.uploads.contributions}
        false = found.replace(uploads=Uploads(partial_sum=total.result(), link_bytes=sizes))
        headers = {
            name: value for name, value in response.headers.items() if "crc" not in name and "length" not in name
        }
        return answer(200, bytes(codec.encode(false).join()), headers)

    async with federation(tmp_path, agent_devices=(1,) * 6) as fed:
        fed.router.tamper = lie
        done = await ended(fed, run_id := await fed.submit(spec))
        (liar,) = [seat.seat for seat in (await fed.seats(run_id)).seats if seat.agent == fed.agent_id(0)]
    rows = [row for detail in done.rounds for row in detail.seats]
    assert {row.seat for row in rows if row.outcome == "failed"} == {liar}
    assert {row.reason for row in rows if row.outcome == "failed"} == {"wire"}
    assert all(detail.n_used == 4 for detail in done.rounds)


@pytest.mark.whole
async def test_an_edge_that_weights_stale_updates_as_fresh_ones_loses_its_answer(tmp_path: Path) -> None:
    spec = small_spec(**loose(4, buffer=2, staleness=POLYNOMIAL), quorum=0.5)
    experiment = resolved(**spec)

    async def lie(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        response = await pass_on()
        if (request.url.path, request.url.port) != ("/rounds", EDGE_PORT):
            return response
        body, response = await body_of(response)
        found = codec.decode(experiment.wire_types.round_answer, body, model=experiment.shapes)
        if found.partial_sum is None:
            return response
        fresh = tuple(line.replace(staleness=0) for line in found.lines)
        headers = {key: value for key, value in response.headers.items() if "crc" not in key and "length" not in key}
        return answer(200, bytes(codec.encode(found.replace(lines=fresh)).join()), headers)

    done = await run(tmp_path, spec, tamper=lie, agent_devices=(3, 3))
    reasons = {failure.reason for detail in done.rounds for failure in detail.failures}
    assert reasons == {"wire"}
    assert "weights delta by" in next(failure.detail for detail in done.rounds for failure in detail.failures)
    assert {row.outcome for detail in done.rounds for row in detail.edges if row.home == 1} == {"used"}
