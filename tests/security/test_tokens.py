"""Every route of every tier needs its token, and no registration makes a tier call a forged address."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import Depends, FastAPI

from device_agent.membership import EdgeAddress
from shared.service.app import make_app
from shared.service.auth import guard
from shared.service.body_limit import ANONYMOUS_BYTES, BodyLimit
from tests.federation import AGENT_PORT, CLOUD_PORT, Federation, PassOn

TOKENS = {"tier_token": "the-tiers-own", "api_token": "the-users-own"}
DOCUMENTS = {"/openapi.json"}
OPEN = DOCUMENTS | {"/healthz", "/readyz"}
ASKED = {"/identities/authority", "/requests/{request_id}"}
"""Those of them that other tiers GET."""
FOR_TIERS = {"/agents", "/edges", "/heartbeats", "/fleet", "/identities", "/identities/check", "/polls"} | ASKED
"""Routes of the cloud for other tiers; all routes of edges and agents are for tiers."""


def routes_of(routes: Any) -> Iterator[tuple[str, str]]:
    """Yields every method and path of an app, those of included routers too."""
    for route in routes:
        if hasattr(route, "path"):
            yield from ((method, route.path) for method in route.methods)
        else:
            yield from routes_of(route.effective_candidates())


def token_of(tier: str, method: str, path: str) -> str:
    asks = method == "POST" or path in ASKED
    is_for_tiers = tier != "cloud" or (asks and path in FOR_TIERS)
    return TOKENS["tier_token" if is_for_tiers else "api_token"]


async def test_every_route_of_every_tier_accepts_its_own_token_only(tmp_path: Path) -> None:
    tried: dict[str, int] = {}
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,), common=TOKENS) as fed:
        for name, app in fed.apps.items():
            tier = name.partition("-")[0]
            found = sorted(set(routes_of(app.routes)))
            assert {path for _, path in found} >= OPEN
            for number, (method, path) in enumerate(found):
                # Each route has its own caller, since an address that shows many wrong tokens has to wait.
                inner = httpx2.ASGITransport(app, raise_app_exceptions=False, client=(f"10.0.0.{number}", 1))
                async with httpx2.AsyncClient(transport=inner, base_url="http://tier") as http:
                    url = path.replace("{round_no}", "1").replace("{", "").replace("}", "").replace(":path", "")
                    own = token_of(tier, method, path)
                    (other,) = set(TOKENS.values()) - {own}

                    async def ask(
                        token: str | None, method: str = method, url: str = url, http: httpx2.AsyncClient = http
                    ) -> httpx2.Response:
                        headers = {} if token is None else {"authorization": f"Bearer {token}"}
                        return await http.request(method, url, headers=headers, json={})

                    named = "API" if own == TOKENS["api_token"] else "tier"
                    for wrong in (None, "", "guess", own[:-1], own + "x", other):
                        refused = await ask(wrong)
                        assert (refused.status_code == 401) == (path not in OPEN), (tier, method, path, wrong)
                        told = f"the {named} token is missing or wrong"
                        assert path in OPEN or refused.json()["detail"] == told, (tier, method, path, wrong)
                    assert (await ask(own)).status_code not in (401, 403, 405, 500), (tier, method, path)
                    tried[tier] = tried.get(tier, 0) + 1
    assert tried["cloud"] > 25
    assert tried.keys() == {"cloud", "edge", "agent"}


async def test_a_route_without_a_token_check_would_be_found() -> None:
    app = make_app("probe")

    @app.post("/forgotten")
    async def forgotten() -> None:
        """A route without a token check."""

    assert ("POST", "/forgotten") in set(routes_of(app.routes))


@pytest.mark.parametrize("path", ["/agents", "/edges"])
async def test_a_forged_source_is_not_called_back(tmp_path: Path, path: str) -> None:
    """The address that is called back is that of the socket, not of a header."""
    hello = {"port": 9400, "nonce": "0123456789abcdef"}
    hello |= {"agent": "a", "name": "a", "devices": 1, "profile": "p"} if path == "/agents" else {"edge": "e"}
    called: list[str] = []

    async def note(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.port != CLOUD_PORT:
            called.append(f"{request.url.host}:{request.url.port}")
        return await pass_on()

    async with Federation(tmp_path / "f", n_edges=0, agent_devices=()) as fed:
        fed.router.tamper, fed.router.apps[9400] = note, make_app("stranger")
        headers = {"x-forwarded-for": "10.9.9.9", "x-real-ip": "10.9.9.9", "host": "10.9.9.9"}
        assert (await fed.client.post(path, json=hello, headers=headers)).status_code == 403
        further = {**hello, "url": "http://10.9.9.9:80", "host": "10.9.9.9"}
        assert (await fed.client.post(path, json=further)).status_code == 422
    assert called == ["127.0.0.1:9400"]


FOREIGN = (
    *("http://8.8.8.8:80", "http://127.0.0.1:80@8.8.8.8:80", "http://127.0.0.1:80/path", "http://127.0.0.1:80?x"),
    *("https://127.0.0.1:80", "file:///etc/passwd", "http://localhost:80", "http://127.1:80", "http://0x7f000001:80"),
    *("http://[::ffff:8.8.8.8]:80", "http://127.0.0.1", "http://["),
)


async def test_an_order_cannot_make_an_agent_send_heartbeats_elsewhere(tmp_path: Path) -> None:
    known = EdgeAddress("edge-1", f"http://127.0.0.1:{AGENT_PORT}")
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:
        membership = fed.apps["agent-0"].state.agent.membership
        for url in FOREIGN:
            with membership.working_for(EdgeAddress("edge-1", url)):
                assert all(edge.url != url for edge in membership.edges), url
        with membership.working_for(EdgeAddress("../edge-1", known.url)), membership.working_for(known):
            assert list(membership.edges) == [known]


# ---- before a token is checked


def limited(*tokens: str | None) -> FastAPI:
    app = make_app("probe")
    app.add_middleware(BodyLimit, tokens=tokens, limit=2**20)

    @app.post("/take")
    async def take(body: str) -> None:
        """Reads a body."""

    return app


@pytest.mark.parametrize(
    ("tokens", "shown", "size", "status"),
    [
        (("a", "b"), None, ANONYMOUS_BYTES, 422),
        (("a", "b"), None, ANONYMOUS_BYTES + 1, 401),
        (("a", "b"), "c", ANONYMOUS_BYTES + 1, 401),
        (("a", "b"), "a", ANONYMOUS_BYTES + 1, 422),
        (("a", "b"), "b", 2**20, 422),
        (("a", "b"), "b", 2**20 + 1, 413),
        (("a", None), None, ANONYMOUS_BYTES + 1, 422),
    ],
)
async def test_a_caller_without_a_token_cannot_exhaust_the_memory(
    tokens: Any, shown: str | None, size: int, status: int
) -> None:
    """Status 422 means that the body was read, and is not JSON."""
    inner = httpx2.ASGITransport(limited(*tokens))
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {shown}"} if shown else {})
    async with httpx2.AsyncClient(transport=inner, base_url="http://tier") as http:
        answer = await http.post("/take", content=b"x" * size, headers=headers)
    assert answer.status_code == status
    assert "token" in answer.text or status != 401


async def test_tokens_of_bodies_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    inner = httpx2.ASGITransport(limited("a", "b"))
    async with httpx2.AsyncClient(transport=inner, base_url="http://tier") as http:
        await http.post("/take", content=b"x" * (ANONYMOUS_BYTES + 1), headers={"authorization": "Bearer c"})
    assert compared == [(b"c", b"a"), (b"c", b"b")]


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), (None, 200)]
)
async def test_in_development_mode_pages_of_other_sites_are_refused(site: str | None, status: int) -> None:
    app = make_app("probe")
    networks: Any = [ipaddress.ip_network("127.0.0.0/8")]

    @app.post("/stop", dependencies=[Depends(guard(None, networks, "API"))])
    async def stop() -> None:
        """A page may send this request without a preflight of the browser."""

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://cloud") as http:
        answer = await http.post("/stop", headers={"sec-fetch-site": site} if site else {})
    assert answer.status_code == status
