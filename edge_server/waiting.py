"""Waiting for an agent: as long as it is heard and the round is wanted."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TypeVar

from edge_server.roster import Roster
from shared.core.errors import Cancelled, Lost

T = TypeVar("T")
POLL_S = 0.5


async def while_heard(asking: asyncio.Task[T], agent: str, roster: Roster, ttl_s: float, stop: threading.Event) -> T:
    """The answer that is being asked for; the asking ends with the wait.

    Args:
        asking: for the answer, with a limit of its own.
        agent: which is asked; an agent that says nothing for longer than the TTL is lost, however long it may take,
            and one that has left at once.
        roster: who was heard when.
        ttl_s: see `agent`.
        stop: set when nobody waits for the round any more.

    Raises:
        Cancelled: nobody does.
        Lost: the agent is; or what the asking raised.
    """
    since = time.monotonic()
    try:
        while not asking.done():
            await asyncio.wait({asking}, timeout=min(POLL_S, ttl_s))
            if asking.done():
                break
            if stop.is_set():
                raise Cancelled("nobody waits for this round any more")
            silent = roster.silent_s(agent, since)
            if roster.has_left(agent, since):
                raise Lost(f"agent {agent} has left")
            if silent > ttl_s:
                raise Lost(f"agent {agent} was silent for {silent:.1f} s")
        return asking.result()
    finally:
        if not asking.done():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
