"""Shares by the real clock: they follow what visits were measured to take.

Nothing is said of how long anything takes here: what twins and shares say is compared with what was measured.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared import twins
from shared.twins import TwinList
from tests.algorithms.ways import ended, federation
from tests.federation import AGENT_PORT, PassOn, small_spec

SPS, SCALE = 500.0, 0.02
SPEC: dict[str, Any] = small_spec(
    num_devices=3,
    num_edges=1,
    num_rounds=2,
    client="edge",
    edge_worker=False,
    schedule="free_compute",
    clock="real",
    time_scale=SCALE,
    devices={"profile": {"compute_sps": SPS, "delay_s": 5, "latency_s": 0}, "edge_latency_s": 0},
)


async def slow_first(request: httpx.Request, pass_on: PassOn) -> httpx.Response:
    """The first agent takes half a second longer for each visit."""
    answer = await pass_on()
    if (request.url.port, request.url.path) == (AGENT_PORT, "/visits"):
        await asyncio.sleep(0.5)
    return answer


async def test_free_compute_is_what_was_measured_and_shares_follow_it(tmp_path: Path) -> None:
    async with federation(tmp_path, n_edges=1, rooms=(1, 1, 1)) as fed:
        fed.router.tamper = slow_first
        done = await ended(fed, await fed.submit(SPEC), tmp_path)
        told = await fed.client.get("/edges/edge-1/twins")
        seats = {seat.agent: seat.seat for seat in (await fed.seats(done.info.run)).devices}
        slow = seats[fed.agent_id(0)]
    first, second = ({row.seat: row for row in detail.seats} for detail in done.rounds)
    assert {row.n_samples for row in first.values()} == {100}  # nothing was measured yet
    free, counted = {}, {}
    for seat, twin in TwinList.model_validate(told.json()).by_seat().items():
        row, seen = first[seat], twin.history[0]
        assert row.measured_s is not None
        assert seen.took_s == pytest.approx(row.measured_s / SCALE)
        ratio = (row.measured_s / SCALE - row.down_s - row.up_s) / row.compute_s
        assert twin.telemetry.free_sps == pytest.approx(SPS / ((1 + ratio) / 2), rel=1e-6)
        free[seat] = twin.telemetry.free_sps
        counted[seat] = free[seat] * (twins.CAUTION if twins.is_bad(seen) else 1)
    assert min(free, key=lambda seat: free[seat]) == slow
    for seat, row in second.items():
        assert row.n_samples == pytest.approx(300 * counted[seat] / sum(counted.values()), abs=1)
