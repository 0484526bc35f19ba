"""Nodes in the API: registration, tokens, health, and the views of edges, devices and topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from cloud_server.nodes.infos import agent_info
from shared.service.protocol import SAID
from shared.storage.key_value import StoreUnavailable
from tests.federation import AGENT_PORT, CLOUD_PORT, EDGE_PORT, Federation, PassOn, small_spec

NONCE = "0123456789abcdef"
HELLO = {"agent": "a-x", "name": "x", "devices": 1, "profile": "standard", "port": 9400, "nonce": NONCE}


# ---- registration


def unknown_process(answer: Any) -> FastAPI:
    """A process that answers `GET /nonce`."""
    app = FastAPI()
    app.state.asked = 0

    @app.get("/nonce")
    async def nonce(request: Request, response: Response) -> Any:
        response.headers.update(SAID)
        app.state.asked += 1
        return answer

    return app


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"nonce": "another-nonce-of-16"}, "did not send this registration"),
        ({"nonce": NONCE, "more": 1}, "did not show its nonce"),
        ("hello", "did not show its nonce"),
        (RedirectResponse("http://127.0.0.1:9401/nonce", headers=SAID), "did not show its nonce"),
        (None, "did not show its nonce"),
    ],
    ids=["another nonce", "more than a nonce", "no object", "a redirect", "nothing"],
)
@pytest.mark.parametrize("path", ["/agents", "/edges"])
@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_node_that_does_not_show_the_nonce_is_not_registered(
    path: str, answer: Any, message: str, fed: Federation
) -> None:
    fed.router.apps[9400] = unknown_process(answer)
    fed.router.apps[9401] = elsewhere = unknown_process({"nonce": NONCE})
    hello = HELLO if path == "/agents" else {"edge": "e", "port": 9400, "nonce": NONCE}
    refused = await fed.client.post(path, json=hello)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert message in refused.json()["detail"]
    assert elsewhere.state.asked == 0
    assert (await fed.client.get("/agents")).json() == {"agents": []}
    assert (await fed.client.get("/edges")).json() == {"edges": []}


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_node_with_a_closed_port_is_not_registered(fed: Federation) -> None:
    refused = await fed.client.post("/agents", json=HELLO)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    for wrong in ({"port": 0}, {"nonce": "short"}, {"agent": "../x"}, {"devices": 0}, {"url": "http://evil"}):
        assert (await fed.client.post("/agents", json={**HELLO, **wrong})).status_code == 422


async def test_callers_outside_the_allowed_networks_are_refused(tmp_path: Path) -> None:
    settings = {"allowed_networks": "10.0.0.0/8"}
    async with Federation(tmp_path / "f", n_edges=0, agent_devices=(), cloud=settings) as fed:
        fed.router.apps[9400] = asked = unknown_process({"nonce": NONCE})
        for method, path in (("POST", "/agents"), ("GET", "/runs")):
            refused = await fed.client.request(method, path, json=HELLO if method == "POST" else None)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert asked.state.asked == 0

    tokens = {"tier_token": "tier", "api_token": "api"}
    async with Federation(tmp_path / "g", n_edges=0, agent_devices=(), cloud=settings, common=tokens) as fed:
        fed.router.apps[9400] = asked = unknown_process({"nonce": NONCE})
        refused = await fed.client.post("/agents", json=HELLO, headers={"authorization": "Bearer tier"})
        assert (refused.status_code, refused.json()["detail"]) == (
            403,
            "127.0.0.1 is in none of the networks 10.0.0.0/8: add its network to CLOUD_ALLOWED_NETWORKS",
        )
        assert asked.state.asked == 0
        ready = (await fed.client.get("/readyz")).json()
        assert "CLOUD_ALLOWED_NETWORKS" in ready["warnings"][0]


@pytest.mark.parametrize("source", ["100.64.3.7", "130.149.7.201", "2001:638::1"])
@pytest.mark.parametrize("token", ["tier", None])
async def test_a_node_of_any_network_registers_with_a_token_and_none_without(
    source: str, token: str | None, tmp_path: Path
) -> None:
    async with Federation(tmp_path, n_edges=0, agent_devices=(), common={"tier_token": token}) as fed:
        fed.router.apps[9400] = unknown_process({"nonce": NONCE})
        inner = httpx2.ASGITransport(fed.apps["cloud"], client=(source, 1))
        headers = SAID | ({"authorization": f"Bearer {token}"} if token else {})
        async with httpx2.AsyncClient(transport=inner, base_url="http://cloud", headers=headers) as node:
            answers = [
                await node.post("/agents", json=HELLO),
                await node.post("/edges", json={"edge": "e", "port": 9400, "nonce": NONCE}),
            ]
        if token:
            assert [answer.status_code for answer in answers] == [200, 200]
            assert [host.url for host in fed.cloud.registry.agents.values()] == [
                f"http://[{source}]:9400" if ":" in source else f"http://{source}:9400"
            ]
        for answer in answers if not token else ():
            assert answer.status_code == 403
            assert f"{source} is in none of the networks 127.0.0.0/8" in answer.json()["detail"]
            assert "set tokens, or add its network to ALLOWED_NETWORKS" in answer.json()["detail"]


# ---- health


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_readiness_names_what_is_missing(fed: Federation) -> None:
    assert (await fed.client.get("/healthz")).json()["status"] == "ok"
    answer = await fed.client.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["an edge", "a device"])
    await fed.start_edge(0)
    await fed.until(lambda: bool(fed.cloud.registry.live_edges()))
    assert (await fed.client.get("/readyz")).json()["missing"] == ["a device"]
    await fed.start_agent(0, devices=1)
    await fed.until(lambda: fed.n_agents() == 1)
    answer = await fed.client.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (200, [])

    async def ping() -> None:
        raise StoreUnavailable("redis is away")

    fed.store.ping = ping  # type: ignore[method-assign]
    answer = await fed.client.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["Redis: redis is away"])
    assert (await fed.client.get(f"http://127.0.0.1:{EDGE_PORT}/readyz")).json()["missing"] == ["Redis: redis is away"]


@pytest.mark.layout(agent_devices=(2, 3))
async def test_metrics_count_nodes_and_runs(fed: Federation) -> None:
    lines = (await fed.client.get("/metrics")).text.splitlines()
    there = {"strata_cloud_devices 5.0", "strata_cloud_training 0.0", "strata_cloud_run_rounds 0.0"}
    states = {f'strata_cloud_{tier}{{state="alive"}} 2.0' for tier in ("agents", "edges")}
    assert there | states <= set(lines)


@pytest.mark.layout(agent_devices=(1, 1))
async def test_service_discovery_lists_the_live_tiers_for_prometheus(fed: Federation) -> None:
    edges = [
        {"targets": [f"127.0.0.1:{EDGE_PORT + n}"], "labels": {"tier": "edge", "edge": f"edge-{n + 1}"}}
        for n in range(2)
    ]
    agents = [f"127.0.0.1:{AGENT_PORT}", f"127.0.0.1:{AGENT_PORT + 1}"]
    found = (await fed.client.get("/metrics/targets")).json()
    assert found == [*edges, {"targets": agents, "labels": {"tier": "agent"}}]
    await fed.lose("agent-1")
    found = (await fed.client.get("/metrics/targets")).json()
    assert found == [*edges, {"targets": agents[:1], "labels": {"tier": "agent"}}]


# ---- views


@pytest.mark.layout(agent_devices=(2, 1), profiles=("jetson", "phone_low"))
async def test_topology_shows_edges_devices_and_seats(fed: Federation) -> None:
    found = (await fed.client.get("/topology")).json()
    assert (found["n_devices"], found["n_agents"], found["wanted"]) == (3, 2, {})
    assert [edge["edge"] for edge in found["edges"]] == ["edge-1", "edge-2"]
    assert sum(edge["n_agents"] for edge in found["edges"]) == 2
    assert found["edges"] == [
        {**edge, "last_seen_s": old["last_seen_s"]}
        for edge, old in zip((await fed.client.get("/edges")).json()["edges"], found["edges"], strict=True)
    ]
    one = (await fed.client.get(f"/agents/{fed.agent_id(0)}")).json()
    assert (one["name"], one["devices"], one["profile"], one["state"]) == ("agent-0", 2, "jetson", "alive")
    assert {device["name"] for device in found["agents"]} == {"agent-0", "agent-1"}


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1), ttl_s=300.0)
async def test_a_silent_agent_is_suspect_then_lost_and_revives_with_a_heartbeat(fed: Federation) -> None:
    agent = fed.agent_id(1)

    def state() -> str:
        return str(agent_info(fed.cloud.registry, agent).state)

    await fed.stop("agent-1")
    for share, expected in ((0.4, "alive"), (0.2, "suspect"), (0.5, "lost")):
        await fed.pass_time(share * fed.ttl_s, agent)
        assert state() == expected
    await fed.start_agent(1)
    await fed.until(lambda: state() != "lost")
    assert state() == "revived"
    await fed.pass_time(0.9 * fed.ttl_s)
    assert state() == "revived"
    await fed.pass_time(0.2 * fed.ttl_s)
    assert state() == "alive"


async def test_an_edge_reports_a_new_agent_without_waiting_for_its_next_heartbeat(tmp_path: Path) -> None:
    fed = Federation(tmp_path / "f", n_edges=1, agent_devices=(1,))
    fed.heartbeat_s = 3600.0
    async with fed:
        assert agent_info(fed.cloud.registry, fed.agent_id(0)).edge == "edge-1"


@pytest.mark.layout(n_edges=1, agent_devices=(1,), common={"tier_token": "t", "api_token": "a"})
async def test_the_cloud_sends_the_tier_token_to_registered_tiers_only(fed: Federation) -> None:
    seen: dict[int, set[str]] = {}

    async def note(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        seen.setdefault(request.url.port or 80, set()).add(request.headers.get("authorization", ""))
        return await pass_on()

    fed.router.tamper = note
    fed.client.headers["authorization"] = "Bearer a"
    assert (await fed.run(small_spec(num_edges=1, num_devices=1, num_rounds=1))).status == "completed"
    await fed.until(lambda: len(seen[CLOUD_PORT]) == 2)  # a heartbeat
    assert seen == {CLOUD_PORT: {"Bearer t", "Bearer a"}, EDGE_PORT: {"Bearer t"}, AGENT_PORT: {"Bearer t"}}


# ---- the document


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_the_openapi_document_is_complete(fed: Federation) -> None:
    document = (await fed.client.get("/openapi.json")).json()
    paths = {(method.upper(), path) for path, found in document["paths"].items() for method in found}
    assert paths == {
        ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/metrics/targets"),
        ("POST", "/plans"), ("POST", "/runs"), ("GET", "/runs"),
        ("GET", "/runs/{run_id}"), ("PATCH", "/runs/{run_id}"), ("DELETE", "/runs/{run_id}"),
        ("POST", "/runs/{run_id}/rounds"),
        ("POST", "/runs/{run_id}/pause"), ("POST", "/runs/{run_id}/resume"), ("POST", "/runs/{run_id}/stop"),
        ("GET", "/runs/{run_id}/rounds"), ("GET", "/runs/{run_id}/rounds/{round_no}"),
        ("GET", "/runs/{run_id}/seats"), ("GET", "/runs/{run_id}/events"),
        ("GET", "/runs/{run_id}/models/{name}"), ("GET", "/runs/{run_id}/files"),
        ("GET", "/runs/{run_id}/files/{name}"), ("GET", "/topology"), ("PUT", "/topology"), ("GET", "/edges"),
        ("GET", "/agents"), ("GET", "/agents/{agent}"), ("PATCH", "/agents/{agent}"), ("GET", "/algorithms"),
        ("GET", "/edges/{edge}/twins"), ("GET", "/agents/{agent}/twin"),
        ("GET", "/identities/authority"), ("POST", "/identities"), ("POST", "/identities/check"),
        ("GET", "/identities"),
        ("GET", "/removals"), ("POST", "/removals"),
        ("GET", "/tokens"), ("POST", "/tokens"), ("DELETE", "/tokens/{name}"),
        ("DELETE", "/identities/{node_class}/{name}"),
        ("POST", "/agents"), ("POST", "/edges"), ("POST", "/heartbeats"), ("POST", "/fleet"),
        ("POST", "/polls"), ("GET", "/requests/{request_id}"), ("POST", "/requests/{request_id}"),
    }  # fmt: skip
    known = set(document["components"]["schemas"])
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            assert operation["description"], path
            errors = {code: found["content"] for code, found in operation["responses"].items() if code >= "400"}
            assert all("application/problem+json" in kinds for kinds in errors.values()), path
            assert {"400", "405", "408", "413", "422", "431", "503"} <= errors.keys()
            assert "security" in operation or path in ("/healthz", "/readyz")
            status = next(status for status in operation["responses"] if status.startswith("2"))
            content = operation["responses"][status].get("content", {})
            assert (status == "204") == (content == {}), path
            assert all(kind["schema"] for kind in content.values()), path
    assert _references(document) <= known
    assert document["info"]["title"] == "StrataFL cloud"


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"].rpartition("/")[2]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(_references(value) for value in node.values()))
    return set().union(*(_references(value) for value in node)) if isinstance(node, list) else set()


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_algorithms_come_with_the_schemas_of_their_parameters(fed: Federation) -> None:
    listed = {a["name"]: a for a in (await fed.client.get("/algorithms")).json()["algorithms"]}
    assert {"fedavg", "fedprox"} <= set(listed)
    assert "McMahan" in listed["fedavg"]["paper"]
    assert listed["fedavg"]["params"]["properties"] == {}
    assert "mu" in listed["fedprox"]["params"]["properties"]


@pytest.mark.layout(n_edges=1, agent_devices=())
async def test_an_oversized_body_is_refused_before_it_is_read(fed: Federation) -> None:
    for port, path, limit in (
        (CLOUD_PORT, "runs", 2**20),
        (CLOUD_PORT, "heartbeats", 2**24),
        (EDGE_PORT, "heartbeats", 2**24),
    ):
        url = f"http://127.0.0.1:{port}/{path}"
        answer = await fed.client.post(url, content=b"", headers={"content-length": str(limit + 1)})
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
