"""Between tiers nothing goes where the environment says: no proxy, no foreign authorities."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cloud_server.app import create_app as create_cloud
from cloud_server.settings import CloudSettings
from device_agent.app import create_app as create_agent
from device_agent.settings import AgentSettings
from edge_server.app import create_app as create_edge
from edge_server.settings import EdgeSettings
from shared.core.addresses import is_loopback
from shared.core.errors import StrataError
from shared.results.tracking.mlflow import MlflowServer
from shared.service.api.membership import FleetReport
from shared.service.protocol import SAID
from shared.service.settings import CommonSettings
from strata.api.client import Client
from strata.fleet.cloud_client import CloudClient
from tests.fakes.memory_store import MemoryStore

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "the-tiers-own"  # noqa: S105 - of this test
PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


class Recorder:
    """A server that keeps the head of each request and answers 503."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.heard = asyncio.Event()
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        self.heard.set()
        writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Recorder]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


@asynccontextmanager
async def proxy_and_peer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Recorder, Recorder]]:
    """A proxy that the environment names, and the server that a tier calls."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with Recorder().listening() as proxy, Recorder().listening() as peer:
        for name in PROXIES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        yield proxy, peer


async def first_heard(*recorders: Recorder) -> None:
    """Waits until one of them has got a request."""
    waits = [asyncio.create_task(recorder.heard.wait()) for recorder in recorders]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def an_edge(port: int, folder: Path, common: CommonSettings) -> Any:
    settings = EdgeSettings(cloud_url=f"http://127.0.0.1:{port}", port=1, state_dir=folder, common=common)
    return create_edge(settings, store=MemoryStore())


def an_agent(port: int, folder: Path, common: CommonSettings) -> Any:
    return create_agent(AgentSettings(cloud_url=f"http://127.0.0.1:{port}", port=1, state_dir=folder, common=common))


@pytest.mark.parametrize("create", [an_edge, an_agent])
async def test_a_tier_registers_at_the_cloud_itself(
    create: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy_and_peer(monkeypatch) as (proxy, peer):
        app = create(peer.port, tmp_path, CommonSettings(tier_token=TOKEN))
        async with app.router.lifespan_context(app):
            await first_heard(proxy, peer)
    assert proxy.heads == []
    assert f"authorization: Bearer {TOKEN}" in peer.heads[0]


async def test_the_cloud_calls_a_node_back_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy_and_peer(monkeypatch) as (proxy, peer):
        common = CommonSettings(tier_token=TOKEN)
        settings = CloudSettings(state_dir=tmp_path / "state", runs_dir=tmp_path / "runs", common=common)
        app = create_cloud(settings, store=MemoryStore())
        hello = {"edge": "edge-1", "port": peer.port, "nonce": "0123456789abcdef"}
        inner = httpx2.ASGITransport(app, client=("127.0.0.1", 1))
        headers = {"authorization": f"Bearer {TOKEN}", **SAID}
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=inner, base_url="http://cloud", headers=headers) as client,
        ):
            assert (await client.post("/edges", json=hello)).is_error, "no edge answers there"
    assert proxy.heads == []
    assert peer.heads


async def test_the_fleet_reports_to_the_cloud_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy_and_peer(monkeypatch) as (proxy, peer):
        with CloudClient(f"http://127.0.0.1:{peer.port}", TOKEN) as client, pytest.raises(StrataError):
            await asyncio.to_thread(client.report, FleetReport(fleet="f", services={"device": 1}))
    assert proxy.heads == []
    assert peer.heads


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost"])
async def test_a_user_reaches_a_cloud_and_a_tracking_server_of_this_machine_without_a_proxy(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    async with proxy_and_peer(monkeypatch) as (proxy, peer):
        url = f"http://{host}:{peer.port}"
        with Client(url, token=TOKEN) as client, pytest.raises(StrataError):
            await asyncio.to_thread(client.readiness)
        async with MlflowServer(url) as server:
            with pytest.raises(StrataError):
                await server._experiment("e")
    assert proxy.heads == []


async def test_a_user_reaches_a_cloud_elsewhere_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy_and_peer(monkeypatch) as (proxy, _):
        with Client("http://cloud.invalid:8000", token=TOKEN) as client, pytest.raises(StrataError):
            await asyncio.to_thread(client.readiness)
    assert proxy.heads[0].startswith("GET http://cloud.invalid:8000/readyz ")


def test_every_http_client_of_the_product_decides_about_the_environment() -> None:
    """httpx2 follows it unless told otherwise, so a client that does not say is a mistake."""
    clients = ("httpx2.Client", "httpx2.AsyncClient")
    packages = ("cloud_server", "edge_server", "device_agent", "shared", "strata", "benchmarks")
    found = {}
    for path in (path for package in packages for path in (ROOT / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "httpx2" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in clients:
                found[path.name] = {keyword.arg for keyword in node.keywords}
    assert {"client.py", "connections.py", "mlflow.py"} <= found.keys()
    assert [name for name, keywords in found.items() if "trust_env" not in keywords] == []


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("strata.localhost", True),
        ("127.0.0.1", True),
        ("127.255.0.9", True),
        ("::1", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("cloud", False),
        ("127.0.0.1.example", False),
        ("notlocalhost", False),
        ("", False),
    ],
)
def test_loopback_is_this_machine_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
