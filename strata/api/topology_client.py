"""A client of the cloud's public REST API for edges and agents; it imports neither torch nor FastAPI."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2

from shared.core.addresses import check_url, is_loopback
from shared.core.errors import BadInput, DeadlineExceeded, Unreachable, WireError
from shared.core.proxies import proxy_of
from shared.core.records import Record
from shared.service.api.algorithms import AlgorithmList
from shared.service.api.health import Health
from shared.service.api.identities import IdentityPage
from shared.service.api.nodes import AgentPage, EdgePage, TopologyInfo
from shared.service.api.users import TokenAnswer, UserPage
from shared.service.connections import Connections
from shared.service.public_trust import PublicTrust
from shared.service.token_files import token_of
from strata.api.answers import Refused, parse, path, refused
from strata.api.outages import AWAY, NotConnected, Outages

R = TypeVar("R", bound=Record)
T = TypeVar("T")


class TopologyClient:
    """A connection to one cloud; a context manager.

    To a cloud on another machine the user's own settings apply (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`,
    `SSL_CERT_FILE`, `SSL_CERT_DIR`): the proxy that they name sees what is sent over plain HTTP, the token too.

    A cloud that has answered and answers no more is waited for (`Outages`). GETs and the creation of a run (which
    carries an idempotency key) are repeated when the connection breaks; other requests only if nothing was sent.

    Args:
        url: address of the cloud, such as `http://host:port`.
        token: token for `Authorization: Bearer`; None = STRATA_API_TOKEN or the content of STRATA_API_TOKEN_FILE.
        timeout_s: longest wait for an answer.
        authority: a file with the certificate of the authority that signs the cloud's; None = STRATA_CA_FILE or, where
            that is not set, the authorities that this machine trusts.
        transport: replaces the HTTP transport in tests.
        reconnect_s: how long to wait for a cloud that does not answer; None = STRATA_RECONNECT_S or two minutes.
        check: is called while the cloud does not answer; it raises if the cloud will not come back.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        authority: Path | None = None,
        transport: httpx2.BaseTransport | None = None,
        reconnect_s: float | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        token = token or _token_of_environment()
        self.url = url.rstrip("/")
        self._outages = Outages(self.url, reconnect_s, check)
        try:
            host = httpx2.URL(check_url(self.url, "http", "https")).host
        except (ValueError, httpx2.InvalidURL) as error:
            raise Unreachable(f"{url!r} is not a valid address of a cloud: {error}") from None
        self._proxy = proxy_of(self.url) if transport is None else None
        self._connections = Connections(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_s,
            transport=transport,
            verify=_trusting(authority) or PublicTrust(trust_env=not is_loopback(host)),
            proxy=self._proxy.url if self._proxy else None,
        )

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- topology

    def topology(self) -> TopologyInfo:
        """The edges, the agents and the wanted number of devices."""
        return self._get(TopologyInfo, "/topology")

    def scale(self, devices: int | Mapping[str, int] | None = None, edges: int | None = None) -> TopologyInfo:
        """Request a number of devices, in total or by service, and of edges, which the fleet then starts or stops."""
        given = {"devices": devices, "edges": edges}
        wanted = {name: number for name, number in given.items() if number is not None}
        response = self._request("PUT", "/topology", json=wanted)
        return parse(TopologyInfo, response)

    def edges(self) -> EdgePage:
        """The registered edges."""
        return self._get(EdgePage, "/edges")

    def agents(self) -> AgentPage:
        """The registered agents (device processes)."""
        return self._get(AgentPage, "/agents")

    def algorithms(self) -> AlgorithmList:
        """The algorithms that this cloud knows, with their parameters."""
        return self._get(AlgorithmList, "/algorithms")

    def readiness(self) -> Health:
        """Whether the cloud is ready for a run; not being ready is an answer here, not an error."""
        response = self._request("GET", "/readyz", errors=False)
        if response.is_error and response.status_code != 503:
            raise refused(response, self._through())
        return parse(Health, response)

    # ---- identities

    def identities(self) -> IdentityPage:
        """The nodes that have certificates, in secure mode."""
        return self._get(IdentityPage, "/identities")

    def revoke(self, node_class: str, name: str) -> None:
        """Revoke the certificates of a node, in secure mode; its name is then free for another key."""
        self._request("DELETE", path("identities", node_class, name))

    # ---- users

    def users(self) -> UserPage:
        """The users with their limits and what they use of these; to a user, that user alone."""
        return self._get(UserPage, "/tokens")

    def add_token(self, name: str, *, max_runs: int | None = None, max_bytes: int | None = None) -> TokenAnswer:
        """Add a user; the answer has the token, which the cloud does not keep."""
        body = {"name": name, "max_runs": max_runs, "max_bytes": max_bytes}
        return parse(TokenAnswer, self._request("POST", "/tokens", json=body))

    def remove_token(self, name: str) -> None:
        """Make a user's token void."""
        self._request("DELETE", path("tokens", name))

    # ---- requests

    def _get(self, kind: type[R], where: str, **options: Any) -> R:
        return parse(kind, self._request("GET", where, **options))

    def _request(
        self, method: str, where: str, *, errors: bool = True, again: bool = False, **options: Any
    ) -> httpx2.Response:
        """Send a request and wait for the answer as `patiently` does.

        Args:
            errors: whether an error status raises.
            again: whether this POST may be repeated.
        """

        def answer() -> httpx2.Response:
            try:
                response = self._connections.request(method, where, **options)
            except httpx2.HTTPError as error:
                raise self._broken(error) from error
            if errors and response.is_error:
                raise refused(response, self._through())
            return response

        return self.patiently(answer, again=again or method == "GET")

    def patiently(self, take: Callable[[], T], *, again: bool = True) -> T:
        """What `take` returns, which asks the cloud and is called anew while that does not answer.

        Args:
            take: raises `Unreachable` or `Refused` if there is no answer.
            again: whether it may be called anew once something was sent.
        """
        while True:
            try:
                found = take()
            except (Unreachable, Refused) as error:
                if isinstance(error, Refused) and error.status not in AWAY:
                    self._outages.answered()
                    raise
                if not again and not isinstance(error, NotConnected):
                    raise
                self._outages.bear(error)
            else:
                self._outages.answered()
                return found

    def wait_at_most(self, seconds: float) -> None:
        """Wait no longer for the cloud from now on."""
        self._outages.wait_s = min(self._outages.wait_s, seconds)

    def _broken(self, error: httpx2.HTTPError) -> Unreachable:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
            return NotConnected(f"no cloud answers at {self.url} ({error or 'in time'}){self._through()}")
        if isinstance(error, httpx2.TimeoutException):
            return DeadlineExceeded(f"the cloud at {self.url} did not answer in time{self._through()}")
        return Unreachable(f"no cloud answers at {self.url} ({error}){self._through()}")

    def _through(self) -> str:
        return f", through the proxy that {self._proxy.variable} names" if self._proxy else ""

    def _json(self, response: httpx2.Response) -> dict[str, Any]:
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise WireError(f"{self.url} did not return a JSON object: is it a cloud?")
        return value


def _token_of_environment() -> str | None:
    name = "STRATA_API_TOKEN"
    try:
        return token_of(name, os.environ.get(name), os.environ.get(f"{name}_FILE"))
    except ValueError as error:
        raise BadInput(str(error)) from None


def _trusting(authority: Path | None) -> ssl.SSLContext | None:
    """The certificates to trust: those of this authority alone; None = those that this machine trusts.

    Raises:
        BadInput: the file cannot be read, or is no certificate.
    """
    path = authority or os.environ.get("STRATA_CA_FILE")
    if not path:
        return None
    try:
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:  # an `ssl.SSLError` is one too
        raise BadInput(f"STRATA_CA_FILE: {path} holds no certificate: {error}", field="STRATA_CA_FILE") from None
