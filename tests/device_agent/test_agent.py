"""An agent: its id, its seats' states, its heartbeats, and which edges an order may name."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

from device_agent.membership import EdgeAddress, Membership, agent_id
from device_agent.metrics import AgentMetrics
from shared.identity.revocations import Revocations
from shared.identity.signing import CloudKey
from shared.service.api.membership import AgentHeartbeat, AgentRegistration
from shared.service.client import Caller
from shared.service.needs import Needs
from tests.federation import Federation, PassOn, small_spec
from tests.shared.algorithms.layouts import ran

HELLO = AgentRegistration(agent="a-1", name="a", devices=1, profile="standard", port=1, nonce="0" * 16)


# ---- the agent's id


def test_an_id_is_drawn_once_and_survives(tmp_path: Path) -> None:
    first = agent_id(tmp_path / "a")
    assert agent_id(tmp_path / "a") == first
    assert agent_id(tmp_path / "b") != first
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["agent-id"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"../../etc", b"x" * 100], ids=["empty", "bytes", "path", "long"]
)
def test_a_damaged_id_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "agent-id").write_bytes(content)
    drawn = agent_id(tmp_path)
    assert drawn.startswith("a-")
    assert agent_id(tmp_path) == drawn


@pytest.mark.parametrize("fsync", [True, False])
async def test_the_ids_of_tiers_wait_for_the_disk_only_with_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    async with Federation(tmp_path, n_edges=1, agent_devices=(1, 1), common={"fsync": fsync}):
        assert len(flushed) == 3 * 2 * fsync  # of the cloud and of both agents, a file and its folder


# ---- restarts


@pytest.mark.layout(n_edges=1, agent_devices=(6,))
async def test_a_late_order_for_updates_of_an_earlier_round_gets_none_of_the_current_round(fed: Federation) -> None:
    """A paused agent that continues reads an order that the edge has given up."""
    orders: list[bytes] = []
    stale: list[httpx2.Response] = []

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path == "/uploads" and request.content not in orders:
            orders.append(request.content)
            if len(orders) == 2:
                stale.append(await fed.client.post(str(request.url), content=orders[0]))
        return await pass_on()

    fed.router.tamper = tamper
    info = await fed.run(small_spec(num_edges=1, round_deadline_s=1e6))
    rows = [row for number in (1, 2) for row in (await fed.round(info.run, number)).seats]
    assert [row.outcome for row in rows] == ["used"] * 12
    assert [answer.status_code for answer in stale] == [200]
    assert b"the agent no longer holds this update" in stale[0].content


@pytest.mark.whole
async def test_an_agent_restarted_between_rounds_keeps_id_and_states(fed: Federation) -> None:
    plain = (await ran(small_spec(num_rounds=3))).info
    info = await fed.run(small_spec(num_rounds=1))
    ids = [fed.agent_id(number) for number in range(6)]
    for number in range(6):
        await fed.stop(f"agent-{number}")
        await fed.start_agent(number)
    assert [fed.agent_id(number) for number in range(6)] == ids
    end = await fed.add_rounds(info.run, 2)
    assert (end.status, end.model_sha256) == ("completed", plain.model_sha256)
    for number in (2, 3):
        rows = (await fed.round(info.run, number)).seats
        assert [(row.outcome, row.fresh_state) for row in rows] == [("used", False)] * 6


@pytest.mark.layout(agent_devices=(1, 1), n_edges=1)
async def test_an_agent_that_lost_its_folder_starts_with_fresh_state_and_the_record_says_so(
    counter_algorithm: str, fed: Federation
) -> None:
    spec = small_spec(num_devices=2, num_edges=1, num_rounds=1, algorithm=counter_algorithm)
    info = await fed.run(spec)
    (seat,) = [s.seat for s in (await fed.seats(info.run)).seats if s.agent == fed.agent_id(1)]
    for path in (fed.folder / "agent-1" / "seats").rglob("*"):
        if path.is_file():
            path.unlink()
    await fed.add_rounds(info.run, 1)
    rows = (await fed.round(info.run, 2)).seats
    assert {row.seat for row in rows if row.fresh_state} == {seat}


# ---- heartbeats


class FakeHost:
    """Replaces a `DeviceHost`: knows the runs whose states are kept."""

    def __init__(self, *kept: str) -> None:
        self.kept = set(kept)

    async def runs(self) -> list[str]:
        return sorted(self.kept)

    async def forget(self, run_id: str) -> None:
        self.kept.discard(run_id)


def membership(answers: dict[str, Any], heard: list[str], keeper: FakeHost | None = None) -> Membership:
    """Returns a membership whose cloud and edges answer by URL."""

    async def handle(request: httpx2.Request) -> httpx2.Response:
        heard.append(str(request.url))
        found = answers[str(request.url)]
        if isinstance(found, Exception):
            raise found
        return httpx2.Response(200, json=found)

    caller = Caller(httpx2.AsyncClient(transport=httpx2.MockTransport(handle)))
    networks = [ipaddress.ip_network("10.0.0.0/8")]
    host: Any = keeper or FakeHost()
    beat = AgentHeartbeat(agent="a-1")
    revoked = Revocations(CloudKey())
    return Membership(
        caller,
        "http://cloud:8000",
        HELLO,
        lambda: beat,
        0.01,
        list(networks),
        host,
        AgentMetrics(),
        revoked,
        Needs({}, {}),
    )


async def test_states_of_runs_deleted_meanwhile_are_dropped_at_registration() -> None:
    keeper = FakeHost("r1", "r2", "r3")
    welcome = {"edge": "edge-1", "edge_url": "http://10.0.0.1:9100", "runs": ["r2", "r4"]}
    member = membership({"http://cloud:8000/agents": welcome}, [], keeper)
    assert await member.register() == ("edge-1", "http://10.0.0.1:9100")
    assert keeper.kept == {"r2"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://8.8.8.8:80",
        "http://localhost:9100",
        "http://example.org:80",
        "https://10.0.0.1:9100",
        "http://10.0.0.1",
        "http://10.0.0.1:9100/path",
        "http://10.0.0.1:9100?x",
        "http://me@10.0.0.1:9100",
        "http://10.0.0.1:99999",
        "http://[::1",
        "file:///etc/passwd",
    ],
)
async def test_an_order_cannot_make_an_agent_call_arbitrary_addresses(url: str) -> None:
    member = membership({}, [])
    with member.working_for(EdgeAddress("edge-1", url)):
        assert member.edges == {}


async def test_an_agent_sends_heartbeats_to_an_ordering_edge_until_its_work_is_done_even_without_a_home_edge() -> None:
    edge = "http://10.0.0.1:9100"
    heard: list[str] = []
    answers: dict[str, Any] = {
        "http://cloud:8000/agents": httpx2.ConnectError("the cloud is away"),
        f"{edge}/heartbeats": {},
    }
    member = membership(answers, heard)
    member.start()
    address = EdgeAddress("edge-1", edge)
    with member.working_for(address):
        while heard.count(f"{edge}/heartbeats") < 5:  # noqa: ASYNC110 - a heartbeat sets no event
            await asyncio.sleep(0.01)
        answers[f"{edge}/heartbeats"] = httpx2.ReadError("for a moment")
        n_before = len(heard)
        while len(heard) < n_before + 3:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)
        assert address in member.edges
    while address in member.edges:  # noqa: ASYNC110 - it fails and has no orders: dropped
        await asyncio.sleep(0.01)
    await member.stop()
    assert member.heartbeat_edge is None


def home(member: Membership) -> EdgeAddress | None:
    return member.heartbeat_edge


async def test_an_agent_whose_home_edge_is_lost_registers_again() -> None:
    first, second = "http://10.0.0.1:9100", "http://10.0.0.2:9100"
    heard: list[str] = []
    answers: dict[str, Any] = {
        "http://cloud:8000/agents": {"edge": "edge-1", "edge_url": first},
        f"{first}/heartbeats": {},
        f"{second}/heartbeats": {},
    }
    member = membership(answers, heard)
    await member._beat_heartbeat_edge()
    assert home(member) == ("edge-1", first)
    answers |= {
        f"{first}/heartbeats": httpx2.ConnectError("gone"),
        "http://cloud:8000/agents": {"edge": "edge-2", "edge_url": second},
    }
    with pytest.raises(Exception, match="gone"):
        await member._beat_heartbeat_edge()
    assert home(member) is None
    await member._beat_heartbeat_edge()
    assert home(member) == ("edge-2", second)
    assert heard.count("http://cloud:8000/agents") == 2
