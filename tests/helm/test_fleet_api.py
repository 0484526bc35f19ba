"""The fleet's client against kmock, a server that keeps objects as the API server of Kubernetes does."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.identity.authority import make_authority
from strata.fleet.reconciler import Fleet
from strata.fleet.scale_api import ClusterError, Scale, ScaleApi
from strata.fleet.stateful_sets import StatefulSets
from tests.helm.cluster import certificate_for
from tests.strata.fleet.test_reconciler import FakeCloud

kmock = pytest.importorskip("kmock", reason="`make helm-test` installs kmock")
aiohttp = pytest.importorskip("aiohttp.test_utils")
pytestmark = pytest.mark.helm
SETS = kmock.resource("apps", "v1", "statefulsets")


class TlsServer(aiohttp.RawTestServer):  # type: ignore[misc, name-defined]
    """kmock's server, over TLS."""

    context: ssl.SSLContext

    async def start_server(self, *args: Any, **options: Any) -> None:
        await super().start_server(*args, ssl=self.context, **options)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Any]:
    """An API server with a StatefulSet of agents and one of edges; the files of a service account lie beside it."""
    authority = make_authority()
    for name, text in {"token": "the-token", "ca.crt": authority.pem, "namespace": "fl"}.items():
        (tmp_path / name).write_text(text)
    TlsServer.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    TlsServer.context.load_cert_chain(certificate_for(authority, "127.0.0.1", tmp_path / "api.pem"))
    async with kmock.KubernetesEmulator() as found, kmock.Server(found, server_cls=TlsServer):
        for name, replicas in {"s-device": 3, "s-edge": 2}.items():
            count = {"replicas": replicas}
            about = {"name": name, "namespace": "fl", "resourceVersion": "7"}
            found.objects[SETS, "fl", name] = {"metadata": about, "spec": count, "status": count}
        yield found


@pytest.fixture
def api(server: Any, tmp_path: Path) -> Iterator[ScaleApi]:
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.servers[0].port)}
    with ScaleApi(tmp_path, where) as found:
        yield found


async def elsewhere(call: Any, *args: Any) -> Any:
    """Calls in another thread what waits for the server, which this one runs."""
    return await asyncio.to_thread(functools.partial(call, *args))


async def test_scales_are_read_and_changed(server: Any, api: ScaleApi) -> None:
    assert await elsewhere(api.read, "s-device") == Scale(wanted=3, running=3, version="7")
    await elsewhere(api.write, "s-device", 5, "7")
    assert server.objects[SETS, "fl", "s-device"]["spec"]["replicas"] == 5
    requests = list(server[kmock.subresource("scale")])
    assert [request.method.value.lower() for request in requests] == ["get", "patch"]
    assert {request.headers["Authorization"] for request in requests} == {"Bearer the-token"}


async def test_the_fleet_scales_what_the_server_keeps(server: Any, api: ScaleApi) -> None:
    fleet = Fleet("f", StatefulSets(api, "s-", {"device": 1}, "edge"), FakeCloud(edges=3, device=1))
    await elsewhere(fleet.settle)
    wanted = {name: server.objects[SETS, "fl", name]["spec"]["replicas"] for name in ("s-device", "s-edge")}
    assert (wanted, fleet.error) == ({"s-device": 1, "s-edge": 3}, None)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "does not accept the service account's token"),
        (403, "may not get statefulsets/scale of StatefulSet s-device"),
        (404, "there is no StatefulSet s-device of namespace fl"),
        (409, "was changed at the same time"),
        (500, "refused to get the scale"),
    ],
)
async def test_a_refusal_says_who_refused_what(server: Any, api: ScaleApi, status: int, message: str) -> None:
    server[kmock.subresource("scale")] << status << {"kind": "Status", "message": "because"}
    with pytest.raises(ClusterError, match=rf"{message}.*\({status}: because\)"):
        await elsewhere(api.read, "s-device")


async def test_a_set_that_is_not_there_is_named(api: ScaleApi) -> None:
    with pytest.raises(ClusterError, match="there is no StatefulSet s-other of namespace fl"):
        await elsewhere(api.read, "s-other")


async def test_a_server_of_another_authority_is_not_believed(server: Any, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(make_authority().pem)
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.servers[0].port)}
    message = "CERTIFICATE_VERIFY_FAILED"
    with ScaleApi(tmp_path, where) as other, pytest.raises(ClusterError, match=message):
        await elsewhere(other.read, "s-device")
    assert list(server[kmock.subresource("scale")]) == []
