"""Asynchronous tiers whose processes are killed at awkward instants, or lost and back; edges that claim too much."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cloud_server.runs.plain_flights import SPEEDS
from tests.edge_server.rounds.test_asynchronous_round import loose, record
from tests.federation import AGENT_PORT, EDGE_PORT, Federation, PassOn, small_spec
from tests.security.test_false_claims import Forge, lines_with, of_edge
from tests.shared.algorithms.layouts import ended, federation, ran, run

# ---- killed in flight


class LastAnswer:
    """Holds back the n-th answer of a service; the connection is closed in place of it once the service has restarted.

    What the service has done for that answer is done: a client has saved its state, an edge has stored its round.
    """

    def __init__(self, fed: Federation, path: str, port: int, n: int) -> None:
        self.done, self.restarted = asyncio.Event(), asyncio.Event()
        self._where, self._left = (path, port), n
        fed.router.tamper = self._tamper

    async def _tamper(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        answer = await pass_on()
        self._left -= (request.url.path, request.url.port) == self._where
        if self._left == 0 and not self.done.is_set():
            self.done.set()
            await self.restarted.wait()
            raise httpx2.ReadError("the connection was closed", request=request)
        return answer


KILLS = {
    "agent after a visit": ("/visits", AGENT_PORT, 4, ["agent-0"]),
    "edge in a round": ("/visits", AGENT_PORT, 4, ["edge-0"]),
    "edge after a round": ("/rounds", EDGE_PORT, 2, ["edge-0"]),
    "cloud and edges after a round": ("/rounds", EDGE_PORT, 4, ["cloud", "edge-0", "edge-1"]),
}


FIELDS_OF_EDGES: dict[str, Any] = {"synchronous": {}, "semi_synchronous": {"wanted": 1}, "asynchronous": {"buffer": 2}}
LINKS = {"name": "backhaul", "by_home": [{"latency_s": 0.01}, {"latency_s": 0.4}]}
"""Links on which a quick edge may answer twice in a version."""
TOPK = {"up": {"name": "topk", "fraction": 0.3}}
COMPRESSED = {"algorithm": "fedavg", "compression": TOPK, "edge_compression": {**TOPK, "down": "int8"}}


MODES: list[tuple[str, str, dict[str, Any]]] = [
    ("asynchronous", "synchronous", {}),
    ("asynchronous", "semi_synchronous", {}),
    ("asynchronous", "asynchronous", COMPRESSED),
    ("asynchronous", "asynchronous", {}),
    ("synchronous", "asynchronous", {}),
]
EACH_TWICE = [(*MODES[(n + far) % len(MODES)], kill) for far in (0, 2) for n, kill in enumerate(KILLS)]
"""Each place of a kill with two pairs of modes, and each pair with two places or more."""


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize(("devices", "edges", "more", "kill"), EACH_TWICE)
async def test_a_run_whose_processes_are_killed_ends_with_the_same_bytes(
    tmp_path: Path, devices: str, edges: str, more: dict[str, Any], kill: str
) -> None:
    """Clients visit their edge several times in a round, and begin with the states and residuals of earlier visits."""
    sync = {
        "devices": {"mode": devices, **({"buffer": 3} if devices == "asynchronous" else {})},
        "edges": {"mode": edges, **FIELDS_OF_EDGES[edges]},
    }
    fields = {"algorithm": "scaffold", "num_rounds": 4, "edge_rounds": 2, "edge_link": LINKS, **more}
    spec = small_spec(sync=sync, **fields)
    expected = await ran(spec, agent_devices=(3, 3))
    path, port, n, names = KILLS[kill]
    async with federation(tmp_path, agent_devices=(3, 3)) as fed:
        last = LastAnswer(fed, path, port, n)
        run_id = await fed.submit(spec)
        await last.done.wait()
        for name in names:
            await (fed.restart_cloud() if name == "cloud" else fed.restart_node(name))
        last.restarted.set()
        found = await ended(fed, run_id)
    assert record(found) == record(expected)
    assert found.info.model_sha256 == expected.info.model_sha256
    assert not any(row.fresh_state for detail in found.rounds for row in detail.seats)


# ---- lost and back


async def is_back(fed: Federation, number: int) -> None:
    await fed.start_edge(number)
    registry = fed.cloud.registry
    await fed.until(lambda: len(registry.live_edges()) == fed.n_edges)


@pytest.mark.whole
async def test_devices_in_flight_may_go_to_another_edge_and_come_back(tmp_path: Path) -> None:
    """Edge 2 is lost for two rounds; its devices are in mid-visit there when it goes, and elsewhere when it is back."""
    spec = small_spec(**loose(6, buffer=2, algorithm="scaffold"), quorum=0.2, timeouts={"reseat_after_s": 600})
    async with federation(tmp_path, agent_devices=(3, 3)) as fed:
        run_id = await fed.start_and_pause(spec, 2)
        await fed.lose("edge-1")
        await fed.resume_and_pause(run_id, 2)
        await is_back(fed, 1)
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    assert [[row.outcome for row in detail.edges] for detail in done.rounds] == [
        ["used", "away" if detail.round_no in (3, 4) else "used"] for detail in done.rounds
    ]
    assert not any(detail.failures for detail in done.rounds)
    assert not any(row.fresh_state for detail in done.rounds for row in detail.seats)


@pytest.mark.whole
async def test_an_edge_that_serves_the_devices_of_lost_edges_still_counts(tmp_path: Path) -> None:
    """Updates are weighted by samples, and one edge has three times as many as its own."""
    sync = {"edges": {"mode": "asynchronous", "staleness": {"name": "polynomial", "a": 0.5}}}
    spec = {**SPEEDS, "model": "mlp", "num_rounds": 4, "sync": sync, "timeouts": {"reseat_after_s": 600}}
    async with federation(tmp_path, n_edges=3) as fed:
        run_id = await fed.start_and_pause(spec, 1)
        await fed.lose("edge-1")
        await fed.lose("edge-2")
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    last = done.rounds[-1]
    assert (last.edges[0].edge, last.edges[0].outcome) == ("edge-1", "used")
    assert {row.seat for row in last.seats if row.edge == "edge-1"} == set(range(6))


# ---- lies


def twice(reply: Any) -> Any:
    """Has the first visit twice in the lines, and its weight twice in the sum."""
    first, total = reply.lines[0], reply.partial_sum
    means = {name: part.replace(weight=part.weight + first.n_samples) for name, part in total.means.items()}
    n_updates, n_samples = total.n_updates + 1, total.n_samples + first.n_samples
    total = total.replace(means=means, n_updates=n_updates, n_samples=n_samples)
    changes = {"lines": (first, *reply.lines), "partial_sum": total, "n_updates": n_updates, "n_samples": n_samples}
    return reply.model_copy(update=changes)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
async def test_an_edge_that_counts_a_visit_twice_loses_its_answer(tmp_path: Path, mode: str) -> None:
    spec = small_spec(quorum=0.5, **(loose(2, buffer=2) if mode == "asynchronous" else {}))
    done = await run(tmp_path, spec, tamper=of_edge(twice), agent_devices=(3, 3))
    first, second = done.rounds
    (failure,) = first.failures
    seen = "3 updates in edge round 0; at most 2 count" if mode == "asynchronous" else "2 updates in edge round 0 of"
    assert (failure.edge, failure.reason) == ("edge-1", "wire")
    assert seen in failure.detail
    assert {row.edge for row in first.seats if row.outcome == "used"} == {"edge-2"}
    assert {row.edge for row in second.seats if row.outcome == "used"} == {"edge-1", "edge-2"}


@pytest.mark.parametrize(
    ("mode", "forge", "message"),
    [
        ("synchronous", lines_with(staleness=1), "claims to have trained a model 1 versions old, of 1"),
        ("asynchronous", lines_with(staleness=2), "claims to have trained a model 2 versions old, of 2"),
    ],
)
async def test_no_visit_is_older_than_the_run(tmp_path: Path, mode: str, forge: Forge, message: str) -> None:
    fields = {**loose(2, buffer=2), "edge_rounds": 2} if mode == "asynchronous" else {}
    done = await run(tmp_path, small_spec(quorum=0.5, **fields), tamper=of_edge(forge), agent_devices=(3, 3))
    (failure,) = done.rounds[0].failures
    assert (failure.edge, failure.reason) == ("edge-1", "wire")
    assert message in failure.detail
