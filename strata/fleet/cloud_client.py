"""The fleet's client of the cloud: one small JSON request with the tier token or, in secure mode, its certificate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

import httpx2
from pydantic import ValidationError

from shared.core.errors import Unreachable, WireError
from shared.identity.join_tokens import JoinToken
from shared.identity.names import CLOUD, Identity
from shared.identity.node_keys import NodeKeys
from shared.service.api.membership import FleetOrders, FleetReport
from shared.service.connections import Connections
from shared.service.protocol import SAID, check_answered
from shared.service.public_trust import PublicTrust
from shared.service.remote_errors import remote_error

ANSWER_S = 5.0


class CloudClient:
    """A connection to the cloud; a context manager.

    Args:
        url: address of the cloud.
        tier_token: the token shared by all tiers; None in development mode.
        joining: in secure mode, the fleet's keys and its join token.
        transport: replaces the HTTP transport in tests.
    """

    def __init__(
        self,
        url: str,
        tier_token: str | None,
        joining: tuple[NodeKeys, JoinToken] | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        headers = {"authorization": f"Bearer {tier_token}"} if tier_token and not joining else {}
        headers |= SAID
        self.url, self._joining = url, joining
        self._called = {"sni_hostname": CLOUD.server_name} if joining else {}
        # No proxy, as between all tiers: only the cloud may see the token.
        self._connections = Connections(
            headers=headers,
            timeout=ANSWER_S,
            transport=transport,
            verify=joining[0].client if joining else PublicTrust(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    def report(self, report: FleetReport) -> FleetOrders:
        """Report the running agents, and return the numbers of devices that the cloud wants.

        Raises:
            Unreachable: the cloud did not answer in time.
            StrataError: the cloud answered with an error.
        """
        if self._joining and time.time() >= self._joining[0].renew_at:
            from shared.service.joining import join_once

            keys, token = self._joining
            join_once(keys, self.url, token)
        try:
            answer = self._connections.request(
                "POST", f"{self.url}/fleet", json=report.model_dump(mode="json"), extensions=dict(self._called)
            )
        except httpx2.HTTPError as error:
            raise Unreachable(f"the cloud at {self.url}: {type(error).__name__}: {error}") from None
        check_answered(answer)
        if answer.status_code != 200:
            raise remote_error(answer.status_code, bytearray(answer.content), self.url)
        try:
            return FleetOrders.model_validate_json(answer.content)
        except ValidationError as error:
            raise WireError(
                f"the cloud at {self.url} gave invalid orders: {error.error_count()} fields are wrong"
            ) from None


def fleet_keys(name: str, folder: Path) -> NodeKeys:
    """The keys of a fleet of this name, in a folder of its own."""
    return NodeKeys(Identity(node_class="fleet", name=name), folder / "identity")
