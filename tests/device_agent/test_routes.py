"""What an agent says about itself, and which orders it refuses."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.identity.names import CLOUD, Peer, edge_identity
from shared.identity.node_keys import NodeKeys
from shared.identity.revocations import RevocationSigner
from shared.identity.signing import NEVER, Signer
from shared.service.order_headers import CHECKSUM_HEADER, FOR_HEADER
from shared.service.peers import PEER
from tests.federation import AGENT_PORT, EDGE_PORT, Federation, PassOn, small_spec


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_an_agent_is_ready_once_an_edge_receives_its_heartbeats(fed: Federation) -> None:
    url = f"http://127.0.0.1:{AGENT_PORT}/readyz"
    await fed.start_agent(0, devices=1)
    answer = await fed.client.get(url)
    assert answer.status_code == 503
    assert answer.json()["missing"] == ["an edge that receives this agent's heartbeats"]
    await fed.start_edge(0)
    await fed.until(lambda: fed.n_agents() == 1)
    answer = await fed.client.get(url)
    assert (answer.status_code, answer.json()["missing"]) == (200, [])


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_an_order_for_another_agent_at_the_same_address_is_refused_untouched(fed: Federation) -> None:
    """Two containers may have had the address one after the other."""
    order = await captured(fed, num_devices=1)
    host = fed.apps["agent-0"].state.agent.host
    n_visits = host.n_visits
    headers = {**order.headers, FOR_HEADER: "a-another"}
    answer = await fed.client.post(str(order.url), content=order.content, headers=headers)
    assert answer.status_code == 421
    assert host.n_visits == n_visits == 2


async def captured(fed: Federation, num_devices: int = 2) -> httpx2.Request:
    """Runs a round of all devices at the one agent; returns its order."""
    sent: list[httpx2.Request] = []

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path == "/visits":
            sent.append(request)
        return await pass_on()

    fed.router.tamper = tamper
    await fed.run(small_spec(num_edges=1, num_devices=num_devices, num_rounds=1))
    fed.router.tamper = None
    return sent[0]


@pytest.mark.layout(n_edges=1, agent_devices=(2,))
async def test_an_order_that_visits_a_seat_twice_is_refused(fed: Federation) -> None:
    order = await captured(fed)
    twice = order.content.replace(rb"visits\":[{\"seat\":0", rb"visits\":[{\"seat\":1")
    assert twice != order.content
    headers = {**order.headers, CHECKSUM_HEADER: f"{zlib.crc32(twice):08x}"}
    answer = await fed.client.post(str(order.url), content=twice, headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (400, "visits")
    assert "devices [1, 1]: each may come once" in answer.json()["detail"]


@pytest.mark.layout(n_edges=1, agent_devices=(2,))
async def test_an_edge_gives_orders_in_its_own_name(fed: Federation) -> None:
    """Where nodes show certificates; here the connection's peer is set by hand."""
    order = await captured(fed)
    app = fed.router.apps[AGENT_PORT]

    async def shown(scope: Any, receive: Any, send: Any) -> None:
        peer = Peer(identity=edge_identity("edge-2"), serial="a1", not_after=2**40)
        await app({**scope, "state": {PEER: peer}}, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(shown)) as client:
        answer = await client.post(str(order.url), content=order.content, headers=order.headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "edge edge-2 may not speak for the edge 'edge-1'" in answer.json()["detail"]


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_an_agent_and_an_edge_take_the_list_of_revoked_certificates_from_the_cloud(
    tmp_path: Path, fed: Federation
) -> None:
    signer = Signer(NodeKeys(CLOUD, tmp_path / "cloud-keys"), 1)
    signed = RevocationSigner(signer, {"a1"}).newer_than(NEVER)
    for port, membership in (
        (AGENT_PORT, fed.apps["agent-0"].state.agent.membership),
        (EDGE_PORT, fed.apps["edge-0"].state.edge.membership),
    ):
        membership.revoked.cloud_key.trust(signer.public_key)
        assert "a1" not in membership.revoked
        answer = await fed.client.put(f"http://127.0.0.1:{port}/revoked", json={"revoked": signed})
        assert answer.status_code == 204
        assert "a1" in membership.revoked
