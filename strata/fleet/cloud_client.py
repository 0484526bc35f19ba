"""The fleet's client of the cloud: one small JSON request with the tier token."""

from __future__ import annotations

from typing import Self

import httpx
from pydantic import ValidationError

from shared.core.errors import Unreachable, WireError
from shared.service.api.membership import FleetOrders, FleetReport
from shared.service.client import remote_error

ANSWER_S = 5.0


class CloudClient:
    """A connection to the cloud; a context manager.

    Args:
        url: address of the cloud.
        tier_token: the token shared by all tiers; None in development mode.
        transport: replaces the HTTP transport in tests.
    """

    def __init__(self, url: str, tier_token: str | None, transport: httpx.BaseTransport | None = None) -> None:
        headers = {"authorization": f"Bearer {tier_token}"} if tier_token else {}
        self.url = url
        # No proxy, as between all tiers: only the cloud may see the token.
        self._http = httpx.Client(headers=headers, timeout=ANSWER_S, transport=transport, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def report(self, report: FleetReport) -> FleetOrders:
        """Report the running agents, and return the numbers of devices that the cloud wants.

        Raises:
            Unreachable: the cloud did not answer in time.
            StrataError: the cloud answered with an error.
        """
        try:
            answer = self._http.post(f"{self.url}/fleet", json=report.model_dump(mode="json"))
        except httpx.HTTPError as error:
            raise Unreachable(f"the cloud at {self.url}: {type(error).__name__}: {error}") from None
        if answer.status_code != 200:
            raise remote_error(answer.status_code, bytearray(answer.content), self.url)
        try:
            return FleetOrders.model_validate_json(answer.content)
        except ValidationError as error:
            raise WireError(
                f"the cloud at {self.url} gave invalid orders: {error.error_count()} fields are wrong"
            ) from None
