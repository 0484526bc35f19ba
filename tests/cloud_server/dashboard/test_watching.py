"""Runs as the dashboard keeps up with them, of a real federation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from cloud_server.dashboard import run_views
from cloud_server.dashboard.run_views import RunViews
from tests.federation import EDGE_PORT, Federation, PassOn, small_spec


async def test_twins_are_those_of_the_edges_and_one_that_hangs_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging: set[int] = set()

    async def tamper(request: httpx.Request, pass_on: PassOn) -> httpx.Response:
        if request.url.path.endswith("/twins") and request.url.port in hanging:
            await asyncio.Event().wait()
        return await pass_on()

    monkeypatch.setattr(run_views, "SEATS_EVERY_S", 0.0)
    async with Federation(tmp_path / "fed") as fed:
        fed.router.tamper = tamper
        look = RunViews(fed.apps["cloud"].state.cloud)
        run = await fed.submit(small_spec(num_rounds=100_000, twins=True))
        async with asyncio.timeout(60):
            while len((seen := await look.seated(run)).twins) < 2:  # noqa: ASYNC110 - asked like a page does
                await asyncio.sleep(0.02)
        assert {edge: {twin.seat for twin in twins} for edge, twins in seen.twins.items()} == {
            edge: {seat.seat for seat in seen.seats if seat.edge == edge} for edge in ("edge-1", "edge-2")
        }
        monkeypatch.setattr(run_views, "TWINS_S", 0.2)
        hanging.add(EDGE_PORT)
        assert set((await look.seated(run)).twins) == {"edge-2"}
        await fed.ask(run, "stop")
        await fed.until_status(run, "stopped")
        assert (await look.seated(run)).twins == {}
