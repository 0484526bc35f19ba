"""All processes that an agent which dials out polls: the cloud, and the edges that ask for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp

from shared.core.bounds import LARGEST_EDGES
from shared.identity.names import CLOUD, edge_identity
from shared.service.client import Caller
from shared.service.reverse.taker import Taker

log = logging.getLogger(__name__)
IDLE_S = 60.0
"""Seconds after its last request for which an edge is polled."""


class Uplinks:
    """Polls the cloud always, and an edge from when it asks for this agent until it has had no requests for a while.

    Args:
        caller: the HTTP client.
        app: answers the requests.
        nonce: with which this process registers.
        cloud_url: address of the cloud.
        may_call: whether an edge of this name may be at this address.
    """

    def __init__(
        self, caller: Caller, app: ASGIApp, nonce: str, cloud_url: str, may_call: Callable[[str, str], bool]
    ) -> None:
        self.caller, self.app, self.nonce, self.may_call = caller, app, nonce, may_call
        self._cloud = Taker(caller, app, nonce, cloud_url, CLOUD, self._called)
        self._edges: dict[tuple[str, str], Taker] = {}

    def start(self) -> None:
        """Begins to poll the cloud."""
        self._cloud.start()

    async def stop(self) -> None:
        """Ends all polls, and the requests in work."""
        await asyncio.gather(*(taker.stop() for taker in (self._cloud, *self._edges.values())))

    async def _called(self, edges: Mapping[str, str]) -> None:
        """Polls these edges too, and those no more that have had no requests for a while."""
        since = time.monotonic() - IDLE_S
        for key in [key for key, taker in self._edges.items() if taker.is_idle and taker.used_at < since]:
            await self._edges.pop(key).stop()
        for key in edges.items():
            if key in self._edges:
                self._edges[key].wake()
            elif not self.may_call(*key):
                log.warning("the cloud names an edge outside AGENT_ALLOWED_NETWORKS: %s", key[1][:200])
            elif len(self._edges) < LARGEST_EDGES:
                self._edges[key] = Taker(self.caller, self.app, self.nonce, key[1], edge_identity(key[0]))
                self._edges[key].start()
