"""A client of the cloud's public REST API for edges and agents; it imports neither torch nor FastAPI."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import httpx

from shared.core.errors import BadInput, DeadlineExceeded, Unreachable, WireError
from shared.core.records import Record
from shared.service.api.algorithms import AlgorithmList
from shared.service.api.health import Health
from shared.service.api.nodes import AgentPage, EdgePage, TopologyInfo
from shared.service.token_files import token_of
from strata.api.answers import parse, refused

R = TypeVar("R", bound=Record)
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_TRIES = 4
_BACKOFF_S = 0.2


class TopologyClient:
    """A connection to one cloud; a context manager.

    GETs and the creation of a run (which carries an idempotency key) are repeated when the connection breaks.

    Args:
        url: address of the cloud, such as `http://host:port`.
        token: token for `Authorization: Bearer`; None = STRATA_API_TOKEN or the content of STRATA_API_TOKEN_FILE.
        timeout_s: longest wait for an answer.
        transport: replaces the HTTP transport in tests.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        token = token or _token_of_environment()
        self.url = url.rstrip("/")
        try:
            host = httpx.URL(self.url).host
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=timeout_s,
                transport=transport,
                trust_env=host not in _LOOPBACK,  # no proxy between this machine and itself
            )
        except httpx.InvalidURL as error:
            raise Unreachable(f"{url!r} is not a valid address of a cloud: {error}") from None

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- topology

    def topology(self) -> TopologyInfo:
        """The edges, the agents and the wanted number of devices."""
        return self._get(TopologyInfo, "/topology")

    def scale(self, devices: int | Mapping[str, int]) -> TopologyInfo:
        """Request a number of devices, in total or by service, which the fleet then starts or stops."""
        response = self._request("PUT", "/topology", json={"devices": devices})
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
            raise refused(response)
        return parse(Health, response)

    # ---- requests

    def _get(self, kind: type[R], where: str, **options: Any) -> R:
        return parse(kind, self._request("GET", where, **options))

    def _request(
        self, method: str, where: str, *, errors: bool = True, again: bool = False, **options: Any
    ) -> httpx.Response:
        """Send a request. GETs, and POSTs with `again`, are repeated with a growing wait.

        Args:
            errors: whether an error status raises.
            again: whether this POST may be repeated.
        """
        tries = _TRIES if again or method == "GET" else 1
        for left in reversed(range(tries)):
            try:
                response = self._http.request(method, where, **options)
                break
            except httpx.ConnectError as error:  # nobody listens there: not repeated
                raise self._broken(error) from error
            except httpx.HTTPError as error:
                if not left or isinstance(error, httpx.TimeoutException):
                    raise self._broken(error) from error
                time.sleep(_BACKOFF_S * 2 ** (tries - 1 - left))
        if errors and response.is_error:
            raise refused(response)
        return response

    def _broken(self, error: httpx.HTTPError) -> Unreachable:
        if isinstance(error, httpx.TimeoutException):
            return DeadlineExceeded(f"the cloud at {self.url} did not answer in time")
        return Unreachable(f"no cloud answers at {self.url} ({error})")

    def _json(self, response: httpx.Response) -> dict[str, Any]:
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
