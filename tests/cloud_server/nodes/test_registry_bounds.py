"""How many nodes a cloud registers and an edge hears: whoever has a token can name any number."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

import edge_server.roster
from cloud_server.nodes import registry as registry_module
from cloud_server.nodes.registry import Registry
from edge_server.roster import Roster
from shared.core.addresses import PRIVATE
from shared.core.errors import TooMany
from shared.core.versions import versions
from shared.service.api.membership import (
    MAX_AGENTS,
    AgentHeartbeat,
    AgentRegistration,
    EdgeHeartbeat,
    EdgeRegistration,
    FleetReport,
    RosterEntry,
)
from shared.service.client import Caller
from tests.fakes.memory_store import MemoryStore

NONCE = "0" * 16


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry with room for two, whose nodes all answer its call-back."""
    monkeypatch.setattr(registry_module, "MAX_AGENTS", 2)
    answers = httpx2.MockTransport(lambda request: httpx2.Response(200, json={"nonce": NONCE}))
    caller = Caller(httpx2.AsyncClient(transport=answers))
    return Registry(MemoryStore(), caller, PRIVATE, ttl_s=10.0)


def agent(name: str) -> AgentRegistration:
    return AgentRegistration(
        agent=name, name=name, devices=1, profile="standard", port=8002, nonce=NONCE, versions=versions()
    )


async def test_one_agent_too_many_is_refused_and_those_before_it_may_come_again(registry: Registry) -> None:
    for name in ("a-1", "a-2", "a-1"):
        await registry.register_agent(agent(name), "127.0.0.1")
    with pytest.raises(TooMany, match="2 nodes are registered, the limit is 2"):
        await registry.register_agent(agent("a-3"), "127.0.0.1")
    assert sorted(registry.agents) == ["a-1", "a-2"]


async def test_one_edge_too_many_is_refused(registry: Registry) -> None:
    for name in ("e-1", "e-2", "e-2"):
        await registry.register_edge(EdgeRegistration(edge=name, port=8001, nonce=NONCE), "127.0.0.1")
    with pytest.raises(TooMany):
        await registry.register_edge(EdgeRegistration(edge="e-3", port=8001, nonce=NONCE), "127.0.0.1")


async def test_an_edge_is_told_only_of_the_agents_that_it_awaits(registry: Registry) -> None:
    """Told of all, a thousand edges with a thousand agents would be told of a million every second."""
    for name in ("a-1", "a-2"):
        await registry.register_agent(agent(name), "127.0.0.1")
    for name in ("e-1", "e-2"):
        await registry.register_edge(EdgeRegistration(edge=name, port=8001, nonce=NONCE), "127.0.0.1")
    heard = (RosterEntry(agent="a-1", age_s=1.0), RosterEntry(agent="a-2", age_s=2.0))
    await registry.record_heartbeat(EdgeHeartbeat(edge="e-1", roster=heard))
    await registry.mark_left("a-2")
    quiet = await registry.record_heartbeat(EdgeHeartbeat(edge="e-2"))
    assert (quiet.heard, quiet.left) == ({}, ())
    waits = await registry.record_heartbeat(EdgeHeartbeat(edge="e-2", awaits=("a-1", "a-2", "gone")))
    assert (sorted(waits.heard), waits.left) == (["a-1", "a-2"], ("a-2",))
    assert all(0 <= age_s < 10 for age_s in waits.heard.values())
    own = await registry.record_heartbeat(EdgeHeartbeat(edge="e-1", roster=heard, awaits=("a-1",)))
    assert own.heard == {}, "it hears that agent itself"


def test_an_edge_hears_so_many_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_server.roster, "MAX_AGENTS", 2)
    roster = Roster()
    for name in ("a-1", "a-2", "a-1"):
        roster.record_heartbeat(AgentHeartbeat(agent=name))
    with pytest.raises(TooMany, match="the limit is 2"):
        roster.record_heartbeat(AgentHeartbeat(agent="a-3"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["roster", "agents", "leaving", "left"])
def test_longer_lists_than_there_can_be_agents_are_refused_by_their_field(kind: str) -> None:
    items: dict[str, Any] = {"roster": {"agent": "a", "age_s": 1.0}}
    items["agents"] = {"name": "a", "service": "s", "devices": 1}
    record: type[EdgeHeartbeat | FleetReport] = EdgeHeartbeat if kind == "roster" else FleetReport
    head: dict[str, Any] = {"edge": "e"} if kind == "roster" else {"fleet": "f", "services": {"s": 1}}
    most = {**head, kind: [items.get(kind, "a")] * MAX_AGENTS}
    record.model_validate_json(json.dumps(most))
    with pytest.raises(ValidationError, match=rf"{kind}\n.*at most {MAX_AGENTS} items"):
        record.model_validate_json(json.dumps({**most, kind: most[kind] + most[kind][:1]}))
