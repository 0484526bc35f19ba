"""Nodes that dial out: the same runs as with nodes that are called."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.service.reverse.records import NONCE_HEADER
from tests.federation import AGENT_PORT, CLOUD_PORT, Federation, PassOn, small_spec
from tests.soak.records import losses_of
from tests.waits import HANG_S


async def record_of(fed: Federation, spec: dict[str, Any]) -> dict[str, Any]:
    """What a run has recorded, without what depends on the wall clock and on names of processes."""
    info = await fed.run(spec)
    found: dict[str, Any] = {"sha256": info.model_sha256, "status": info.status}
    for number in range(1, info.rounds + 1):
        detail = (await fed.round(info.run, number)).model_dump(mode="json")
        rows = [{key: value for key, value in row.items() if key not in ("agent", "wall_s")} for row in detail["seats"]]
        links = {key: detail[key] for key in ("socket_bytes", "n_visits", "n_used", "failures", "attempts")}
        found[str(number)] = (rows, links)
    return found


@pytest.mark.parametrize("up", [("agents",), ("edges",), ("agents", "edges")], ids="+".join)
async def test_a_run_has_the_same_record_whoever_opens_the_connections(up: tuple[str, ...], tmp_path: Path) -> None:
    found = []
    for tiers in ((), up):
        async with Federation(tmp_path / f"{len(tiers)}", agent_devices=(2, 2, 2), up=tiers) as fed:
            found.append(await record_of(fed, small_spec()))
            called = {port for port, _ in fed.router.calls}
            assert any(port >= AGENT_PORT for port in called) == ("agents" not in tiers)
            paths = {path for port, path in fed.router.calls if port < AGENT_PORT}
            assert ("/rounds" in paths) == ("edges" not in tiers)
    assert found[0] == found[1]


# ---- faults


class Held:
    """Holds the first answer of an agent: it has trained, and the edge waits for it."""

    def __init__(self, fed: Federation, number: int = 0) -> None:
        self.fed, self.reached, self.open = fed, asyncio.Event(), asyncio.Event()
        self.nonce = fed.apps[f"agent-{number}"].state.agent.membership.registration.nonce
        self.port = AGENT_PORT + number
        fed.router.tamper = self.tamper

    async def tamper(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        path = request.url.path
        answers = path.startswith("/requests/") and request.method == "POST"
        if not self.reached.is_set() and (
            (path == "/visits" and request.url.port == self.port)
            or (answers and request.headers[NONCE_HEADER] == self.nonce and request.url.port != CLOUD_PORT)
        ):
            self.reached.set()
            await self.open.wait()
        return await pass_on()

    async def run(self, spec: dict[str, Any]) -> str:
        run_id = await self.fed.submit(spec)
        async with asyncio.timeout(HANG_S):
            await self.reached.wait()
        return run_id


@pytest.mark.whole
async def test_an_agent_that_is_lost_during_a_request_costs_its_devices(tmp_path: Path) -> None:
    async with Federation(tmp_path, agent_devices=(2, 2, 2), up=("agents",)) as fed:
        held = Held(fed)
        run_id = await held.run(small_spec(quorum=0.5))
        await fed.lose("agent-0")
        held.open.set()
        info = await fed.finish(run_id)
        details = [await fed.round(run_id, number) for number in (1, 2)]
        failed = {(row.agent, row.reason) for detail in details for row in detail.seats if row.outcome == "failed"}
        assert failed == {(fed.agent_id(0), "lost")}
        await fed.start_agent(0)
        await fed.until(lambda: fed.n_agents() == 3)
        again = await fed.run(small_spec(quorum=0.5, losses=losses_of(details)))
        assert again.model_sha256 == info.model_sha256


@pytest.mark.parametrize("restarted", ["agent-0", "edge-0", "cloud"])
@pytest.mark.whole
async def test_a_process_that_is_restarted_during_a_request_loses_nothing(restarted: str, tmp_path: Path) -> None:
    digests = []
    for tiers in ((), ("agents", "edges")):
        async with Federation(tmp_path / f"{len(tiers)}", agent_devices=(2, 2, 2), up=tiers) as fed:
            if not tiers:
                digests.append((await fed.run(small_spec())).model_sha256)
                continue
            held = Held(fed)
            run_id = await held.run(small_spec())
            await (fed.restart_cloud() if restarted == "cloud" else fed.restart_node(restarted))
            held.open.set()
            info = await fed.finish(run_id)
            assert not any(detail.failures for detail in [await fed.round(run_id, n) for n in (1, 2)])
            digests.append(info.model_sha256)
    assert digests[0] == digests[1]


async def test_after_broken_connections_nothing_is_trained_twice(tmp_path: Path) -> None:
    """Each second answer to a poll, and each second answer of an agent, does not arrive."""
    async with Federation(tmp_path, n_edges=1, agent_devices=(2, 2), up=("agents", "edges")) as fed:
        calls = Counter[str]()

        async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
            kind = f"{request.method} {request.url.path.split('/')[1]}"
            answer = await pass_on()
            if kind in ("POST polls", "GET requests", "POST requests"):
                calls[kind] += 1
                if not calls[kind] % 2:
                    raise httpx2.ReadError("cut", request=request)
            return answer

        fed.router.tamper = tamper
        info = await fed.run(small_spec(num_devices=4, num_edges=1))
        agents = [fed.apps[f"agent-{number}"].state.agent for number in range(2)]
        trained = sum(agent.metrics.samples._value.get() for agent in agents)
        assert min(calls.values()) > 1
        fed.router.tamper = None
        again = await fed.run(small_spec(num_devices=4, num_edges=1))
        twice = sum(agent.metrics.samples._value.get() for agent in agents)
        assert trained == twice - trained > 0
        assert info.model_sha256 == again.model_sha256


async def test_a_node_that_says_up_and_does_not_poll_is_refused(tmp_path: Path) -> None:
    async with Federation(tmp_path, n_edges=0, agent_devices=()) as fed:
        hello = {"agent": "a-x", "name": "x", "devices": 1, "profile": "standard", "nonce": "0123456789abcdef"}
        refused = await fed.client.post("/agents", json=hello | {"connect": "up"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert "which dials out: it has to poll the cloud while it registers" in refused.json()["detail"]
        missing = await fed.client.post("/agents", json=hello)
        assert (missing.status_code, missing.json()["field"]) == (422, "port")
