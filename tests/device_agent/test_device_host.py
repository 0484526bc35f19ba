"""What an agent does and keeps while orders come and go."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from device_agent import device_host
from shared.federation.messages import WaveId
from shared.federation.real_time import RealDuration
from shared.service.idempotency import KEEP_S
from tests.federation import AGENT_PORT, Federation, PassOn, small_spec


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_an_agent_says_which_seat_trains_and_how_many_orders_wait(fed: Federation) -> None:
    host = fed.apps["agent-0"].state.agent.host
    assert (host.visiting, host.waiting, host.n_visits) == (None, 0, 0)
    seats_during_visits: list[tuple[int | None, int]] = []
    begin = host._on_visit_start

    def on_start(seat: int) -> None:
        begin(seat)
        seats_during_visits.append((host.visiting, host.waiting))

    host._on_visit_start = on_start
    await fed.run(small_spec(num_edges=1, num_devices=1))
    # Two rounds and the evaluation after them.
    assert seats_during_visits == [(0, 1)] * 3
    assert (host.visiting, host.waiting, host.n_visits) == (None, 0, 3)


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_an_agent_forgets_the_answers_of_a_run_that_orders_nothing_any_more(fed: Federation) -> None:
    orders, late_s = fed.apps["agent-0"].state.agent.orders, 0.0
    orders.clock = lambda: time.monotonic() + late_s
    first = (await fed.run(small_spec(num_edges=1, num_devices=1))).run
    gate, second = await fed.submit_and_hold(small_spec(num_edges=1, num_devices=1), closed_at=2)
    assert {queue.run_id for queue in orders._work} == {first, second}
    late_s = KEEP_S
    gate.open.set()
    await fed.finish(second)
    assert {queue.run_id for queue in orders._work} == {second}


@pytest.mark.layout(n_edges=1, agent_devices=(1,), heartbeat_s=0.2)
async def test_updates_that_are_held_for_a_run_are_dropped_when_it_is_deleted_and_not_before(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(
        small_spec(num_edges=1, num_devices=1, round_deadline_s=1e6), path="/uploads"
    )
    host = fed.apps["agent-0"].state.agent.host
    await host.forget("another")
    assert [held_for for held_for, *_ in host._held] == [run_id]
    await fed.control(run_id, "stop")
    await fed.finish(run_id)
    await fed.until(lambda: not fed.cloud.runs.training)
    assert (await fed.client.delete(f"/runs/{run_id}")).status_code == 204
    await fed.until(lambda: not host._held)
    gate.open.set()


def test_held_updates_wait_for_their_wave_and_those_of_another_run_for_a_while() -> None:
    stage, now = WaveId(run_id="r", round_no=2), time.monotonic()
    order = SimpleNamespace(stage=stage, edge=1)

    def kept(run: str, edge: int, round_no: int, since: float) -> bool:
        held = device_host._Held(WaveId(run_id=run, round_no=round_no), since=since)
        return device_host._may_be_requested((run, edge, None), held, order)  # type: ignore[arg-type]

    assert kept("r", 1, 2, now)
    assert not kept("r", 1, 1, now)
    assert kept("r", 0, 1, now)  # another edge of the run is behind
    assert kept("other", 1, 9, now)
    assert not kept("other", 1, 9, now - KEEP_S - 1)


@pytest.mark.layout(n_edges=1, agent_devices=(2,))
async def test_what_an_agent_measures_of_its_visits(fed: Federation) -> None:
    moved = {"down": 0, "up": 0}

    async def count(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        answer = await pass_on()
        if request.url.path == "/visits":
            moved["down"] += len(request.content)
            moved["up"] += len(await answer.aread())
        return answer

    fed.router.tamper = count
    began = time.monotonic()
    await fed.run(small_spec(num_edges=1, num_devices=2))
    lasted = time.monotonic() - began
    text = (await fed.client.get(f"http://127.0.0.1:{AGENT_PORT}/metrics")).text
    found = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
    assert found["strata_agent_visits_begun_total"] == 6  # two rounds and the evaluation after them
    assert found['strata_agent_socket_bytes_total{direction="down"}'] == moved["down"] > 0
    assert found['strata_agent_socket_bytes_total{direction="up"}'] == moved["up"] > 0
    assert 0 < found["strata_agent_testing_seconds_total"] < lasted
    assert 0 < found['strata_agent_visit_seconds_sum{kind="train"}'] < lasted


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_with_a_real_clock_an_answer_waits_as_long_as_its_visit_takes_in_the_model(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    waits: list[float] = []
    shares: list[tuple[int, float]] = []

    class Duration(RealDuration):
        def wall_s(self) -> float:
            shares.append((self.n_trained, self.share))
            return 1000.0

    async def wait_until(at: float, stop: threading.Event) -> None:
        waits.append(at - time.monotonic())

    monkeypatch.setattr(device_host, "RealDuration", Duration)
    monkeypatch.setattr(device_host, "wait_until", wait_until)
    orders = fed.apps["agent-0"].state.agent.orders
    graces: list[float | None] = []
    answer = orders.answer

    async def noted(*given: Any, grace_s: float | None) -> Any:
        graces.append(grace_s)
        return await answer(*given, grace_s=grace_s)

    orders.answer = noted
    info = await fed.run(small_spec(num_edges=1, num_devices=1, clock="real", round_deadline_s=5000.0))
    assert info.status == "completed"
    assert graces
    assert set(graces) == {0.0}  # an edge that goes away has given the visit up
    graces.clear()
    await fed.run(small_spec(num_edges=1, num_devices=1))
    assert set(graces) == {None}
    assert len(shares) == 3
    assert [(n > 0, share) for n, share in shares] == [(True, 1.0), (True, 1.0), (False, 0.0)]
    assert all(900.0 < wait <= 1000.0 for wait in waits[:3])
