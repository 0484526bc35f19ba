"""Clients trust the public authorities, which are read only for TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from shared.core.errors import Unreachable
from shared.identity.authority import make_authority
from shared.identity.names import CLOUD
from shared.identity.node_keys import NodeKeys
from shared.service.client import tier_client
from shared.service.public_trust import PublicTrust
from strata.api.topology_client import TopologyClient
from tests.shared.identity.test_certificates import DAY_S, pem

ANSWER = b"HTTP/1.1 200 OK\r\nstrata-protocol: 1 test\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"


@asynccontextmanager
async def server(context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server, over TLS if it has a context; yields its host and port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side of TLS: its certificate is of the authority of SSL_CERT_FILE, which is no public one."""
    authority, keys = make_authority(), NodeKeys(CLOUD, tmp_path / "cloud")
    (tmp_path / "authority.pem").write_text(authority.pem, encoding="ascii")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    keys.install(pem(authority.issue(keys.request(), CLOUD, DAY_S, ("127.0.0.1",))), authority.pem)
    keys.server.verify_mode = ssl.CERT_NONE  # of the other side, which needs no certificate
    return keys.server


def get(url: str, trust: PublicTrust) -> str:
    with httpx2.Client(verify=trust, trust_env=False) as client:
        return client.get(url).text


async def test_the_authorities_of_the_environment_are_trusted_where_it_may_name_them(signed: ssl.SSLContext) -> None:
    async with server(signed) as place:
        assert await asyncio.to_thread(get, f"https://{place}", PublicTrust(trust_env=True)) == "ok"
        async with httpx2.AsyncClient(verify=PublicTrust(trust_env=True), trust_env=False) as client:
            assert (await client.get(f"https://{place}")).text == "ok"
            with pytest.raises(httpx2.ConnectError, match="Hostname mismatch"):
                await client.get(f"https://{place}", extensions={"sni_hostname": "elsewhere"})


async def test_a_certificate_of_no_public_authority_is_refused(signed: ssl.SSLContext) -> None:
    async with server(signed) as place, tier_client() as client:
        with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
            await client.get(f"https://{place}")
        with TopologyClient(f"https://{place}") as user, pytest.raises(Unreachable, match="certificate verify failed"):
            await asyncio.to_thread(user.readiness)


async def test_authorities_are_read_for_tls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[dict[str, object]] = []

    def create(**given: object) -> ssl.SSLContext:
        read.append(given)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(httpx2, "create_ssl_context", create)
    async with server() as place, tier_client() as client:
        assert (await client.get(f"http://{place}")).text == "ok"
        assert read == []
        for _ in range(2):
            with pytest.raises(httpx2.ConnectError):
                await client.get(f"https://{place}")
    assert read == [{"trust_env": False}]
