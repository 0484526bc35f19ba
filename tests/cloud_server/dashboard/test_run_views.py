"""The dashboard's view of a run of a real federation."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from cloud_server.dashboard import run_views
from cloud_server.dashboard.run_views import RunViews
from shared.core.errors import BadInput
from tests.federation import EDGE_PORT, Federation, PassOn, small_spec
from tests.waits import HANG_S


async def test_twins_come_from_the_edges_and_an_edge_that_hangs_is_left_out(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    hanging: set[int] = set()

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path.endswith("/twins") and request.url.port in hanging:
            await asyncio.Event().wait()
        return await pass_on()

    monkeypatch.setattr(run_views, "SEATS_EVERY_S", 0.0)
    fed.router.tamper = tamper
    views = RunViews(fed.cloud)
    run = await fed.submit(small_spec(num_rounds=100_000, twins=True))
    while len((view := await views.with_seats(run)).twins) < 2:  # noqa: ASYNC110 - polls as a page does
        await asyncio.sleep(0.02)
    assert {edge: {twin.seat for twin in twins} for edge, twins in view.twins.items()} == {
        edge: {seat.seat for seat in view.seats if seat.edge == edge} for edge in ("edge-1", "edge-2")
    }
    placed = {(seat.agent, seat.seat) for seat in view.seats if seat.agent}
    assert {(agent, seat) for agent, own in view.hosted.items() for seat in own} == placed
    monkeypatch.setattr(run_views, "EDGES_TIMEOUT_S", 0.2)
    hanging.add(EDGE_PORT)
    while set((await views.with_seats(run)).twins) != {"edge-2"}:  # on a busy machine both may be left out
        pass
    hanging.clear()
    monkeypatch.setattr(run_views, "EDGES_TIMEOUT_S", HANG_S)
    while len((await views.with_seats(run)).twins) < 2:  # noqa: ASYNC110 - polls as a page does
        await asyncio.sleep(0.02)
    await fed.control(run, "stop")
    await fed.until_status(run, "stopped")
    assert (await views.with_seats(run)).twins == {}


@pytest.mark.whole
async def test_visits_in_flight_of_asynchronous_devices_come_from_the_edges_as_they_happen(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    monkeypatch.setattr(run_views, "SEATS_EVERY_S", 0.0)
    sync = {"devices": {"mode": "asynchronous", "buffer": 1}, "edges": "synchronous"}
    views = RunViews(fed.cloud)
    run = await fed.submit(small_spec(num_rounds=100_000, sync=sync))
    oldest, seen = 0, set[int]()
    while oldest < 2 or len(seen) < 2:
        ages = (await views.with_seats(run)).visits_in_flight
        oldest, seen = max(oldest, *ages.values(), 0), seen | ages.keys()
        await asyncio.sleep(0.02)
    view = await views.with_seats(run)
    assert seen <= {seat.seat for seat in view.seats}
    assert view.in_flight == {}  # the cloud waits for all edges
    await fed.control(run, "stop")
    await fed.until_status(run, "stopped")
    assert (await views.with_seats(run)).visits_in_flight == {}


@pytest.mark.layout(n_edges=1)
async def test_a_run_opened_before_its_start_has_the_scores_of_its_own_metric_and_needs_no_data_at_the_end(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    monkeypatch.setattr(run_views, "SEATS_EVERY_S", 0.0)
    cloud = fed.cloud
    views = RunViews(cloud)
    run = await fed.submit(small_spec(metrics=["perplexity"]))
    pending = await views.with_seats(run)
    assert (pending.sums.metric.label, pending.seats) == ("accuracy", ())
    await fed.start_edge(1)
    info = await fed.finish(run)
    view = await views.run(run)
    trained = {number: score.own for number, score in view.sums.scores.items()}
    await views.add_final_scores(view)
    tested = view.sums.scores
    assert len(tested) == 6
    assert trained == {number: score.own for number, score in tested.items()}
    received = [score.received for score in tested.values() if score.received is not None]
    assert sum(received) / len(received) == pytest.approx(info.clients["received"].mean)
    assert len((await views.with_seats(run)).seats) == 6

    async def gone(*_: object) -> None:
        raise BadInput("the data is not here")

    monkeypatch.setattr(cloud.runs, "seats", gone)
    assert (await views.with_seats(run)).seats == ()
