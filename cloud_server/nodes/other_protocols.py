"""Nodes that the cloud refuses, since they speak another protocol: who they are, as far as they can be understood."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import Request

from shared.core.errors import OtherProtocol
from shared.core.validation import ID
from shared.service.api.nodes import AgentInfo, EdgeInfo
from shared.service.peers import peer_in

log = logging.getLogger(__name__)
Kind = Literal["agent", "edge"]
KEPT_S = 120.0
"""Seconds since its last request for which such a node is listed."""
MOST = 1000
"""Most such nodes that are listed; of more, those heard last."""
_KINDS: dict[str, Kind] = {"/agents": "agent", "/edges": "edge", "/heartbeats": "edge"}


@dataclass(frozen=True)
class OtherNode:
    """A node of another protocol.

    Attributes:
        kind: what it registers as.
        node: its id.
        name: as its environment calls it.
        reason: why it is refused.
        at: monotonic seconds of its last request.
    """

    kind: Kind
    node: str
    name: str
    reason: str
    at: float


@dataclass
class OtherProtocols:
    """The nodes of other protocols.

    Attributes:
        clock: monotonic seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _nodes: dict[tuple[str, str], OtherNode] = field(default_factory=dict)

    async def note(self, request: Request, error: OtherProtocol) -> None:
        """Note a request that was refused; one of a node that is new here is logged."""
        kind = _KINDS.get(request.url.path)
        if kind is None:
            return
        said = _object(await request.body())
        peer = peer_in(request)
        node = peer.identity.name if peer else _id(said.get(kind))
        if node is None:
            return
        known = self._nodes.pop((kind, node), None)
        name = _id(said.get("name")) or (known.name if known else node)
        if known is None or known.reason != error.detail:
            log.warning("%s %s at %s is refused: %s", kind, name, request.client and request.client.host, error.detail)
        self._nodes[kind, node] = OtherNode(kind, node, name, error.detail, self.clock())
        while len(self._nodes) > MOST:
            del self._nodes[next(iter(self._nodes))]

    def recent(self) -> list[OtherNode]:
        """The nodes that were heard a short time ago, by kind and id."""
        since = self.clock() - KEPT_S
        return [node for _, node in sorted(self._nodes.items()) if node.at >= since]

    def words(self) -> list[str]:
        """These nodes, each with the reason."""
        return [f"{node.kind} {node.name}: {node.reason}" for node in self.recent()]

    def edges(self, known: Mapping[str, EdgeInfo]) -> tuple[EdgeInfo, ...]:
        """All edges by name: those that are known, and those of other protocols as left out."""
        others = {
            each.node: EdgeInfo(
                edge=each.node, name=each.name, url="", state="left_out", reason=each.reason, n_agents=0,
                last_seen_s=round(self.clock() - each.at, 3),
            )
            for each in self.recent() if each.kind == "edge" and not _is_heard(known.get(each.node))
        }  # fmt: skip
        return tuple(info for _, info in sorted({**known, **others}.items()))

    def agents(self, known: Mapping[str, AgentInfo]) -> tuple[AgentInfo, ...]:
        """All agents by id, as `edges`."""
        others = {
            each.node: AgentInfo(
                agent=each.node, name=each.name, state="left_out", reason=each.reason, devices=0, profile="",
                last_seen_s=round(self.clock() - each.at, 3),
            )
            for each in self.recent() if each.kind == "agent" and not _is_heard(known.get(each.node))
        }  # fmt: skip
        return tuple(info for _, info in sorted({**known, **others}.items()))


def _is_heard(info: EdgeInfo | AgentInfo | None) -> bool:
    """Whether a process of this protocol is that node."""
    return info is not None and info.state not in ("lost", "left")


def _object(body: bytes) -> dict[str, Any]:
    """A JSON object of any version; empty if it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _id(value: object) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(ID, value) else None
