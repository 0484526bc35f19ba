"""The cloud calls back each node that registers: it must answer at its address, as the process that has registered."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.core.addresses import Network, in_url, inside, outside
from shared.core.errors import BadInput, Conflict, Forbidden, StrataError, Unreachable
from shared.identity.names import Identity
from shared.service.api.membership import AgentRegistration, EdgeRegistration, NonceAnswer, process_of
from shared.service.client import Caller
from shared.service.reverse.records import address_of

log = logging.getLogger(__name__)
CALL_BACK_S = 5.0
"""Longest wait for the nonce of a node that registers, in seconds."""
HOLDER_S = 2.0
"""Longest wait for the nonce of the process that has registered as the same node before."""
MOST_TOLD = 100
"""Refused registrations that are told apart; of further ones each is told again."""
REACHED = "that can be reached from the cloud, or that dial out"
EXTEND = "add its network to CLOUD_ALLOWED_NETWORKS"
RECENT_S = 60.0
"""Seconds for which `/readyz` tells a refused registration."""
OTHER = {
    "device": "two agents have one id, as from a copied state folder: give this one an empty AGENT_STATE_DIR",
    "edge": "two edges have one name: give this one another EDGE_NAME",
}
"""What to do about a second process of a node, by class."""


class Refused(NamedTuple):
    """A node whose registration was refused, as it is told to the runs that train."""

    kind: str
    name: str
    reason: str


@dataclass
class CallBack:
    """Calls nodes back.

    Attributes:
        caller: the HTTP client.
        networks: in which nodes may be.
        untold: refused registrations that the runs have not been told of.
        clock: monotonic seconds.
    """

    caller: Caller
    networks: list[Network]
    untold: list[Refused] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    _told: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)

    async def url_of(
        self, node: Identity, source: str | None, registration: AgentRegistration | EdgeRegistration
    ) -> str:
        """The URL of the node that registers, once the process there has shown the nonce of the registration.

        Raises:
            Forbidden: it is outside the allowed networks, cannot be reached, or another process answers there.
        """
        dials_out = registration.connect == "up"
        url = address_of(registration.nonce) if dials_out else self._url_at(node, source, registration.port)
        try:
            shown = await self._nonce(node, url, CALL_BACK_S)
        except Unreachable as error:
            kind, setting = ("edges", "EDGE_CONNECT") if node.node_class == "edge" else ("devices", "AGENT_CONNECT")
            why = f"the cloud cannot call you back at {url}: this deployment needs {kind} {REACHED} ({setting}=up)"
            if dials_out:
                why = f"the cloud got no answer of {url}, which dials out: it has to poll the cloud while it registers"
            raise self._refusal(node, url, f"{why}; {error.detail}") from None
        except (StrataError, ValueError) as error:
            raise Forbidden(f"{url} did not show its nonce: {error}") from None
        if not hmac.compare_digest(shown.encode(), registration.nonce.encode()):
            raise Forbidden(f"{url} did not send this registration")
        return url

    def url_for_agents(self, node: Identity, source: str | None, registration: EdgeRegistration) -> str:
        """The URL at which agents reach an edge.

        Raises:
            Forbidden: it is outside the allowed networks.
        """
        return self._url_at(node, registration.host or source, registration.port)

    def _url_at(self, node: Identity, host: str | None, port: int | None) -> str:
        if port is None:
            raise BadInput("a node that listens says at which port", field="port")
        url = f"{'https' if self.caller.keys else 'http'}://{in_url(str(host))}:{port}"
        if not inside(host, self.networks):
            raise self._refusal(node, url, outside(host, self.networks, EXTEND))
        return url

    async def check_alone(self, node: Identity, url: str, held_at: str, holder: str, nonce: str) -> None:
        """Checks that no other process of a node, which has registered before, still answers.

        Args:
            node: that registers.
            url: where it registers.
            held_at: where the process answered that has registered before.
            holder: that process; empty if it is not known.
            nonce: of this registration.

        Raises:
            Conflict: it still answers: it goes on, and this one is refused.
        """
        if not holder or holder == process_of(nonce):
            return
        try:
            shown = await self._nonce(node, held_at, HOLDER_S)
        except (StrataError, ValueError):
            return
        if process_of(shown) == holder:
            why = f"{node} at {held_at} goes on, and another process of that name at {url} is refused: "
            raise Conflict(self._refusal(node, url, why + OTHER.get(node.node_class, "it has another name")).detail)

    def recent(self) -> list[str]:
        """The registrations that were refused in the last `RECENT_S` seconds, in words."""
        since = self.clock() - RECENT_S
        return [f"{node}: {why}" for (node, _), (at, why) in sorted(self._told.items()) if at >= since]

    def take_untold(self) -> list[Refused]:
        """The registrations that were refused since the last call, each once."""
        found, self.untold = self.untold, []
        return found

    async def _nonce(self, node: Identity, url: str, limit_s: float) -> str:
        raw = await self.caller.call_json("GET", f"{url}/nonce", limit_s=limit_s, peer=node)
        return NonceAnswer.model_validate(raw).nonce

    def _refusal(self, node: Identity, url: str, reason: str) -> Forbidden:
        """The error of a refused registration, which is logged and kept for the runs when it is new."""
        key = str(node), url
        if key not in self._told:
            log.warning("a registration as %s: %s", node, reason)
            if len(self.untold) < MOST_TOLD:
                self.untold.append(Refused("agent" if node.node_class == "device" else "edge", node.name, reason))
        if key in self._told or len(self._told) < MOST_TOLD:
            self._told[key] = self.clock(), reason
        return Forbidden(reason)
