"""Tiers of two protocols refuse each other, and say which of them to upgrade."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

import httpx2
import pytest
from fastapi import Request

from shared.core.errors import OtherProtocol, Unauthorised
from shared.core.records import Record
from shared.core.versions import VERSION
from shared.federation import messages
from shared.service.api import membership
from shared.service.app import make_app
from shared.service.client import Caller, tier_client
from shared.service.protocol import (
    PROTOCOL,
    PROTOCOL_HEADER,
    SAID,
    check_answered,
    check_protocol,
    of_same_protocol,
    unnoted,
)
from tests.federation import Federation, small_spec

OURS = f"this cloud speaks protocol {PROTOCOL} (StrataFL {VERSION})"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "its caller says no protocol, so it is older: upgrade its caller"),
        ("", "its caller says no protocol, so it is older: upgrade its caller"),
        ("0 0.1", "its caller says protocol '0 0.1': upgrade its caller"),
        (f"{PROTOCOL + 1} 9.9", f"its caller says protocol '{PROTOCOL + 1} 9.9': upgrade this cloud"),
        ("9" * 5000, f"its caller says protocol '{'9' * 40}': upgrade its caller"),
        ("\u0661", "its caller says protocol '\u0661': upgrade its caller"),
    ],
)
def test_another_protocol_is_refused_with_both_and_which_to_upgrade(said: str | None, message: str) -> None:
    with pytest.raises(OtherProtocol) as refused:
        check_protocol({} if said is None else {PROTOCOL_HEADER: said}, "its caller", "this cloud")
    assert refused.value.detail == f"{OURS}, {message}; all tiers need one version, see docs/operations.md"
    assert (refused.value.status, refused.value.code) == (409, "other_protocol")


def test_the_same_protocol_of_any_version_is_let_in() -> None:
    for version in (VERSION, "0.9.1", ""):
        check_protocol({PROTOCOL_HEADER: f"{PROTOCOL} {version}".strip()}, "its caller", "this cloud")


@pytest.mark.parametrize(("status", "headers", "is_refused"), [
    (200, {}, True), (200, SAID, False), (204, {PROTOCOL_HEADER: "0"}, True),
    (502, {}, False), (302, {}, False), (422, {PROTOCOL_HEADER: "7"}, True), (503, SAID, False),
])  # fmt: skip
def test_an_error_without_a_protocol_is_the_error_that_it_is(
    status: int, headers: dict[str, str], is_refused: bool
) -> None:
    answer = httpx2.Response(status, headers=headers, request=httpx2.Request("GET", "http://cloud:8000/x"))
    if is_refused:
        with pytest.raises(OtherProtocol, match="the tier at http://cloud:8000"):
            check_answered(answer)
    else:
        check_answered(answer)


async def test_a_stranger_is_refused_as_such_and_a_tier_of_another_protocol_is_noted() -> None:
    noted: list[str] = []

    async def note(request: Request, error: OtherProtocol) -> None:
        noted.append(error.detail)

    async def closed(request: Request) -> None:
        raise Unauthorised("no token")

    async def opened(request: Request) -> None: ...

    asked = Request({"type": "http", "headers": []})
    with pytest.raises(Unauthorised):
        await of_same_protocol(closed, "this cloud", note)(asked)
    assert noted == []
    with pytest.raises(OtherProtocol):
        await of_same_protocol(opened, "this cloud", note)(asked)
    assert len(noted) == 1
    own = Request({"type": "http", "headers": [(PROTOCOL_HEADER.encode(), SAID[PROTOCOL_HEADER].encode())]})
    await of_same_protocol(opened, "this cloud", unnoted)(own)


async def test_a_tiers_client_says_the_protocol_and_every_answer_of_a_tier_has_it() -> None:
    app, seen = make_app("test"), list[str]()

    @app.get("/x")
    async def x(request: Request) -> dict[str, Any]:
        seen.append(request.headers[PROTOCOL_HEADER])
        return {}

    async with tier_client(httpx2.ASGITransport(app)) as client:
        assert (await client.get("http://tier/x")).headers[PROTOCOL_HEADER] == SAID[PROTOCOL_HEADER]
        assert (await client.get("http://tier/none")).headers[PROTOCOL_HEADER] == SAID[PROTOCOL_HEADER]
        assert Caller(client)
    assert seen == [SAID[PROTOCOL_HEADER]]


# ---- tiers of another protocol


@pytest.mark.layout(n_edges=1, agent_devices=(1,), heartbeat_s=0.2)
async def test_nodes_of_another_protocol_are_listed_with_the_reason_and_harm_nothing(
    fed: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    """An edge and an agent that are started with another version beside those of the cloud's."""
    other = {PROTOCOL_HEADER: "0 0.1"}
    hello = {"port": 9400, "nonce": "0123456789abcdef", "versions": {}}
    for path, body, said in (
        ("/edges", {**hello, "edge": "old-edge", "of": ["a", "later", "version"]}, other),
        ("/agents", {**hello, "agent": "a-old", "name": "old-agent"}, {PROTOCOL_HEADER: ""}),
        ("/heartbeats", {"edge": "old-edge"}, other),
        ("/edges", {**hello, "edge": "edge-1"}, other),  # the name of one that is heard
        ("/edges", {**hello, "edge": "../x"}, other),
        ("/fleet", {"fleet": "f"}, other),
    ):
        answer = await fed.client.post(path, json=body, headers=said)
        assert (answer.status_code, answer.json()["code"]) == (409, "other_protocol"), path
    broken = await fed.client.post("/edges", content=b"[" * 5, headers={**other, "content-type": "application/json"})
    assert broken.status_code in (409, 422)

    edges = {edge["edge"]: edge for edge in (await fed.client.get("/edges")).json()["edges"]}
    assert {name: edge["state"] for name, edge in edges.items()} == {"edge-1": "alive", "old-edge": "left_out"}
    assert "says protocol '0 0.1': upgrade its caller" in edges["old-edge"]["reason"]
    agents = {agent["name"]: agent for agent in (await fed.client.get("/agents")).json()["agents"]}
    assert agents["old-agent"]["state"] == "left_out"
    assert "says no protocol, so it is older" in agents["old-agent"]["reason"]
    topology = (await fed.client.get("/topology")).json()
    assert {edge["edge"] for edge in topology["edges"]} == {"edge-1", "old-edge"}
    assert topology["n_agents"] == 1
    warnings = (await fed.client.get("/readyz")).json()["warnings"]
    assert any(warning.startswith("edge old-edge: this cloud speaks") for warning in warnings)
    assert caplog.text.count("edge old-edge at 127.0.0.1 is refused") == 1  # by two requests

    assert (await fed.run(small_spec(num_devices=1, num_edges=1))).status == "completed"
    fed.clock.skip(121.0)
    fed._all_heard([])
    assert "old-edge" not in (await fed.client.get("/edges")).text


@pytest.mark.layout(n_edges=1, agent_devices=(1,), heartbeat_s=0.2)
async def test_a_node_that_finds_a_cloud_of_another_protocol_says_so_and_waits(fed: Federation) -> None:
    """The cloud is replaced by an older one: its answers name no protocol."""
    edge = fed.apps["edge-0"].state.edge

    async def older(request: httpx2.Request, pass_on: Any) -> httpx2.Response:
        answer: httpx2.Response = await pass_on()
        if request.url.port == 9000:
            answer.headers.pop(PROTOCOL_HEADER, None)
        return answer

    fed.router.tamper = older
    await fed.until(lambda: edge.membership.refusal is not None)
    assert "says no protocol, so it is older: upgrade the tier at http://127.0.0.1:9000" in edge.membership.refusal
    fed.router.tamper = None
    await fed.until(lambda: edge.membership.refusal is None)


FIELDS_OF_PROTOCOL = {1: "df912adae9644a90"}
"""For each version of the protocol, a digest of the fields that the tiers' records have in it."""


def test_records_between_tiers_change_with_the_version_of_the_protocol_only() -> None:
    """Another digest under the present version means that a tier of before may misread what this one sends.

    Raise `PROTOCOL`, unless no version with the present one has been published.
    """
    records = {
        f"{record.__module__}.{record.__qualname__}": {
            name: repr(field.annotation) for name, field in record.model_fields.items()
        }
        for module in (membership, messages)
        for record in vars(module).values()
        if isinstance(record, type) and issubclass(record, Record) and "[" not in record.__qualname__
    }
    assert len(records) > 20
    text = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(records, sort_keys=True))
    assert sha256(text.encode()).hexdigest()[:16] == FIELDS_OF_PROTOCOL[PROTOCOL]
