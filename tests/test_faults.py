"""Faults on every hop: a round continues while its quorum is met, the record names the losses, and nothing hangs."""

from __future__ import annotations

import asyncio
import math
import struct

import httpx2
import pytest
import torch
from safetensors.torch import load

from edge_server.roster import Roster
from shared.federation.context import Context
from shared.federation.experiment import Experiment, ExperimentCache
from shared.federation.messages import Task
from shared.federation.real_time import PROFILE_HEADER
from shared.federation.spec_parser import parse_spec
from shared.federation.visits.trainer import trainer_for
from shared.run_records.rounds import RoundDetail
from shared.service.client import GARBLED_TIMES
from tests.faults import (
    Reply,
    answer,
    at,
    broken,
    ending_in,
    flipped,
    garbage,
    half,
    half_order,
    hang,
    together,
    without_token,
)
from tests.federation import AGENT_PORT, Federation, PassOn, small_spec
from tests.shared.algorithms.layouts import ran

SHORT_TIMEOUT = {"visit_s": 12}
"""Of the wall clock: the other devices have to keep it on a busy machine too."""


def lost_seats(detail: RoundDetail) -> dict[int, str]:
    """Returns the reason for each lost seat from the list of failures; the seats' rows must agree."""
    found = {f.seat: f.reason for f in detail.failures if f.seat is not None}
    rows = {row.seat: row.reason for row in detail.seats if row.outcome == "failed"}
    found |= {seat: f.reason for f in detail.failures for seat in f.seats}
    assert rows == found
    return found


async def seats_of(fed: Federation, run_id: str, number: int) -> list[int]:
    """Returns the seats of an agent."""
    agent = fed.agent_id(number)
    return [seat.seat for seat in (await fed.seats(run_id)).seats if seat.agent == agent]


async def global_model(fed: Federation, run_id: str) -> dict[str, torch.Tensor]:
    return load((await fed.client.get(f"/runs/{run_id}/models/global")).content)


# ---- a device fails


FAULTS: list[tuple[Reply, str, str]] = [
    (garbage, "wire", "not valid JSON"),
    (half, "garbled", "broke off"),
    (half_order, "garbled", "broke off"),
    (flipped, "garbled", "does not match its checksum"),
    (ending_in(struct.pack("<f", math.nan)), "not_finite", "NaN"),
    (ending_in(struct.pack("<f", 1e6)), "out_of_bound", "1e+06"),
    (broken, "internal", "it is broken"),
]
"""Faults of the first agents, one each, with the reason and words of the record."""


@pytest.mark.layout(n_edges=1, agent_devices=(1,) * 9)
async def test_failing_devices_are_named_and_the_round_continues(fed: Federation) -> None:
    fed.router.tamper = together(
        *(
            at(AGENT_PORT + agent, "/visits", reply, times=GARBLED_TIMES if reason == "garbled" else 1)
            for agent, (reply, reason, _) in enumerate(FAULTS)
        )
    )
    info = await fed.run(small_spec(num_edges=1, num_devices=9, quorum=0.1, timeouts={"visit_s": 60}))
    assert (info.status, info.reason) == ("completed", None)
    seats = [(await seats_of(fed, info.run, agent))[0] for agent in range(len(FAULTS))]
    first, second = await fed.round(info.run, 1), await fed.round(info.run, 2)
    assert lost_seats(first) == {seat: reason for seat, (_, reason, _) in zip(seats, FAULTS, strict=True)}
    told = {failure.seat: failure.detail for failure in first.failures}
    for seat, (_, _, message) in zip(seats, FAULTS, strict=True):
        assert message in told[seat]
    assert (first.n_used, second.n_used) == (2, 9)
    assert lost_seats(second) == {}


@pytest.mark.slow
async def test_a_device_that_does_not_answer_in_time_is_named(fed: Federation) -> None:
    fed.router.tamper = at(AGENT_PORT + 2, "/visits", hang, times=1)
    info = await fed.run(small_spec(timeouts=SHORT_TIMEOUT))
    first, second = await fed.round(info.run, 1), await fed.round(info.run, 2)
    assert lost_seats(first) == {(await seats_of(fed, info.run, 2))[0]: "timeout"}
    assert "did not answer within 12 s" in first.failures[0].detail
    assert (first.n_used, second.n_used) == (5, 6)


@pytest.mark.whole
async def test_fedavg_without_a_lost_device_is_the_mean_over_the_others(fed: Federation) -> None:
    fed.router.tamper = at(AGENT_PORT + 4, "/visits", garbage, times=1)
    info = await fed.run(small_spec(num_rounds=1))
    (lost,) = await seats_of(fed, info.run, 4)
    found = await global_model(fed, info.run)
    experiment = ExperimentCache(None, fed.common.cache_dir).of(parse_spec(info.spec.model_dump(mode="json")))
    expected = _mean_by_hand(experiment, without=lost)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].to(torch.float64), tensor, rtol=0, atol=1e-7)
    with_all = _mean_by_hand(experiment, without=-1)
    assert max((expected[name] - with_all[name]).abs().max().item() for name in expected) > 1e-3


def _mean_by_hand(experiment: Experiment, *, without: int) -> dict[str, torch.Tensor]:
    """Returns w + sum n_k (w_k - w) / sum n_k in float64, over seats trained in sequence."""
    total, n = {name: torch.zeros(t.shape, dtype=torch.float64) for name, t in experiment.initial.items()}, 0
    for seat in experiment.population.seats:
        if seat.number == without:
            continue
        ctx: Context = experiment.ctx(phase="train", round_no=1, n_clients=6, edge=seat.home_edge).at(seat=seat.number)
        trainer = trainer_for(experiment, Task(epochs=1, batch_size=experiment.spec.batch_size), seat.train, seat.test)
        trained = trainer.fit(ctx, experiment.initial).model
        for name, tensor in trained.items():
            total[name] += len(seat.train) * (tensor.to(torch.float64) - experiment.initial[name])
        n += len(seat.train)
    return {name: experiment.initial[name].to(torch.float64) + tensor / n for name, tensor in total.items()}


async def test_a_repeated_order_trains_once_and_is_answered_with_the_same_bytes(fed: Federation) -> None:
    undisturbed = (await ran(small_spec())).info
    pairs: list[tuple[bytes, bytes]] = []

    async def twice(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path not in ("/visits", "/rounds"):
            return await pass_on()
        if len(pairs) % 2:
            first, again = await asyncio.gather(pass_on(), pass_on())  # during the work
        else:
            first, again = await pass_on(), await pass_on()
        pairs.append((await first.aread(), await again.aread()))
        return answer(pairs[-1][0], first.headers)

    fed.router.tamper = twice
    info = await fed.run(small_spec())
    visits = [fed.apps[f"agent-{n}"].state.agent.host.n_visits for n in range(6)]
    assert info.model_sha256 == undisturbed.model_sha256
    assert visits == [3] * 6  # two rounds and the evaluation after the last
    assert len(pairs) == 3 * (6 + 2)
    assert all(first == again for first, again in pairs)


async def test_an_answer_from_another_run_is_refused(fed: Federation) -> None:
    kept: list[httpx2.Response] = []

    async def keep(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        kept.append(await pass_on())
        await kept[-1].aread()
        return answer(kept[-1].content, kept[-1].headers)

    async def stray(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        return answer(kept[0].content, kept[0].headers)

    fed.router.tamper = at(AGENT_PORT, "/visits", keep)
    await fed.run(small_spec(num_rounds=1))
    fed.router.tamper = at(AGENT_PORT, "/visits", stray, times=1)
    info = await fed.run(small_spec(seed=1))
    first = await fed.round(info.run, 1)
    assert lost_seats(first) == {(await seats_of(fed, info.run, 0))[0]: "wire"}
    assert "the answer belongs to 'visits/" in first.failures[0].detail


@pytest.mark.layout(common={"tier_token": "right", "api_token": "api"})
async def test_an_agent_with_another_token_is_named(fed: Federation) -> None:
    fed.client.headers["authorization"] = "Bearer api"
    fed.router.tamper = at(AGENT_PORT + 1, "/visits", without_token, times=1)
    info = await fed.run(small_spec(num_rounds=1))
    assert lost_seats(await fed.round(info.run, 1)) == {(await seats_of(fed, info.run, 1))[0]: "unauthorised"}


@pytest.mark.slow
async def test_an_unreachable_agent_with_heartbeats_is_given_up_at_its_time_limit(fed: Federation) -> None:
    async def refused(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        raise httpx2.ConnectError("no route", request=request)

    fed.router.tamper = at(AGENT_PORT + 3, "/visits", refused)
    info = await fed.run(small_spec(num_rounds=1, timeouts=SHORT_TIMEOUT))
    first = await fed.round(info.run, 1)
    assert list(lost_seats(first).values()) == ["timeout"]
    assert "ConnectError: no route" in first.failures[0].detail


@pytest.mark.whole
async def test_an_agent_that_falls_silent_during_its_visit_is_lost_before_its_time_limit(fed: Federation) -> None:
    beats, passing = fed.apps["agent-5"].state.agent.membership, list[asyncio.Task[None]]()

    async def die(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        await beats.stop()
        passing.append(asyncio.create_task(fed.pass_time(1.1 * fed.ttl_s, fed.agent_id(5))))
        return await hang(request, pass_on)

    fed.router.tamper = at(AGENT_PORT + 5, "/visits", die, times=1)
    info = await fed.run(small_spec(timeouts={"visit_s": 3000}))
    await asyncio.gather(*passing)
    assert info.status == "completed"
    seats = await seats_of(fed, info.run, 5)
    assert lost_seats(await fed.round(info.run, 1)) == {seats[0]: "lost"}
    second = await fed.round(info.run, 2)
    assert lost_seats(second) == {seats[0]: "lost"}  # known to be lost, so it got no request
    assert f"the cloud receives no heartbeats from agent {fed.agent_id(5)}" in second.failures[0].detail


@pytest.mark.whole
async def test_a_slow_agent_with_heartbeats_is_awaited_beyond_the_ttl(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    check, still_awaited = Roster.check_alive, asyncio.Event()

    def check_alive(roster: Roster, agent: str, since: float, ttl_s: float) -> None:
        check(roster, agent, since, ttl_s)
        if roster.clock() - since > 2 * ttl_s:
            still_awaited.set()

    async def slow(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        await fed.pass_time(2.1 * fed.ttl_s)
        await still_awaited.wait()
        return await pass_on()

    monkeypatch.setattr(Roster, "check_alive", check_alive)
    fed.router.tamper = at(AGENT_PORT, "/visits", slow, times=1)
    info = await fed.run(small_spec(num_rounds=1))
    assert lost_seats(await fed.round(info.run, 1)) == {}


@pytest.mark.layout(agent_devices=(3, 3), n_edges=1)
async def test_a_sum_with_nan_costs_its_own_seats_only(fed: Federation) -> None:
    fed.router.tamper = at(AGENT_PORT, "/visits", ending_in(struct.pack("<d", math.nan)), times=1)
    info = await fed.run(small_spec(num_edges=1, num_rounds=1))
    first = await fed.round(info.run, 1)
    assert lost_seats(first) == dict.fromkeys(await seats_of(fed, info.run, 0), "not_finite")
    assert "delta head.weight holds NaN" in first.failures[0].detail
    assert first.n_used == 3
    assert all(torch.isfinite(tensor).all() for tensor in (await global_model(fed, info.run)).values())


# ---- quorum of devices


@pytest.mark.whole
async def test_without_the_quorum_of_devices_the_run_fails_and_names_the_seats(fed: Federation) -> None:
    fed.router.tamper = at(AGENT_PORT, "/visits", garbage)
    info = await fed.run(small_spec(quorum=1.0))
    (seat,) = await seats_of(fed, info.run, 0)
    assert info.status == "failed"
    assert info.rounds == 0
    assert info.reason is not None
    assert info.reason.startswith(f"round 1: quorum of 6 of 6 tasks missed: device {seat}: wire (")

    fed.router.tamper = None
    await fed.client.post(f"/runs/{info.run}/resume")
    assert (await fed.finish(info.run)).status == "completed"


# ---- wrong orders


async def test_invalid_orders_are_refused_with_a_reason(fed: Federation) -> None:
    orders: list[bytes] = []

    async def keep(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        orders.append(request.content)
        return await pass_on()

    fed.router.tamper = at(AGENT_PORT, "/visits", keep, times=1)
    await fed.run(small_spec(num_rounds=1))
    url = f"http://127.0.0.1:{AGENT_PORT}/visits"

    async def ask(old: bytes, new: bytes) -> tuple[int, str, str]:
        assert len(old) == len(new)
        assert orders[0].count(old) == 1
        got = await fed.client.post(url, content=orders[0].replace(old, new))
        return got.status_code, got.json()["code"], got.json()["detail"]

    status, code, detail = await ask(b'\\"message\\":0', b'\\"message\\":7')
    assert (status, code, detail) == (400, "wire", "a task names a message beyond the request's 1")
    status, code, detail = await ask(b'{\\"seat\\":', b'{\\"tea!\\":')
    assert (status, code) == (400, "wire")
    status, code, detail = await ask(b'\\"seed\\":0', b'\\"seed\\":9')
    assert (status, code) == (409, "conflict")
    assert detail == (
        "the population digest differs from the edge's; do both use the same data set and package versions?"
    )
    for body in (b"", b"\0" * 7, b"\xff" * 64, orders[0][:-1]):
        got = await fed.client.post(url, content=body)
        assert got.status_code in (400, 413)
        assert got.headers["content-type"] == "application/problem+json"
    host = fed.apps["agent-0"].state.agent.host
    n_visits = host.n_visits
    got = await fed.client.post(url, content=orders[0], headers={PROFILE_HEADER: "abacus"})
    assert (got.status_code, got.json()["detail"]) == (400, "no profile 'abacus'")
    assert host.n_visits == n_visits  # the order is refused before any training
    got = await fed.client.post(url, content=orders[0], headers={"strata-crc32": "0" * 8})
    assert got.json()["detail"] == "the body does not match its checksum"
