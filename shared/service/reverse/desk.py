"""The requests that wait for nodes which dial out, by process. They live as long as whoever made them waits."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.core.errors import Conflict, Forbidden, NotFound, NotReady, TooMany
from shared.identity.names import Peer
from shared.service.api.membership import MAX_AGENTS
from shared.service.reverse.records import MAX_HELD, MAX_TAKEN, AnswerHead, PollAnswer, RequestHead

WAIT_S = 20.0
"""Longest time for which a poll waits for a request: routers forget connections that are silent for a minute."""
GONE_S = 10.0
"""Seconds after its last poll was answered after which a process that polls no more counts as gone."""
CLOSED_S = 3.0
"""The same after a poll whose connection the process, or its end, has closed."""


@dataclass
class Answer:
    """An answer whose body is still arriving; `taken` is set once its body has been read or is not wanted."""

    head: AnswerHead
    body: AsyncIterator[bytes]
    peer: Peer | None
    taken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Waiting:
    """A request that waits for its answer.

    Attributes:
        body: in parts.
        server_name: that the certificate of the node must have; None where nodes show none.
        answer: None if the process is gone.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: Sequence[Any]
    server_name: str | None
    request: str = field(default_factory=lambda: secrets.token_hex(16))
    answer: asyncio.Future[Answer | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def n_bytes(self) -> int:
        """Size of the body."""
        return sum(map(len, self.body))

    @property
    def head(self) -> RequestHead:
        """What the node is told of it."""
        return RequestHead(
            request=self.request,
            method=self.method,
            target=self.target,
            headers=self.headers,
            n_bytes=self.n_bytes,
        )

    def give_up(self) -> None:
        """Lets go of an answer that has come and is not read."""
        if self.answer.done() and not self.answer.cancelled() and (found := self.answer.result()):
            found.taken.set()

    def check(self, peer: Peer | None) -> None:
        """Refuses another node than the one to which the request goes.

        Raises:
            Forbidden: its certificate is another one's.
        """
        if self.server_name is not None and (peer is None or peer.identity.server_name != self.server_name):
            raise Forbidden(f"the request is not for {peer.identity if peer else 'a node without certificate'}")


@dataclass(eq=False)
class _Process:
    """A process that dials out.

    Attributes:
        waiting: requests by id, oldest first.
        edges: that asked the process to poll them, and that it has not been told of.
        poll: number of the newest poll.
        polls: whether it is open.
        wanted: how many wait for its first poll.
        changed: is done once there is something new for the polls that wait for it.
        seen: set while the process counts as present.
    """

    waiting: dict[str, Waiting] = field(default_factory=dict)
    edges: dict[str, str] = field(default_factory=dict)
    poll: int = 0
    polls: bool = False
    wanted: int = 0
    changed: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    going: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Lets open polls look for news."""
        self.changed.set_result(None)
        self.changed = asyncio.get_running_loop().create_future()

    def news(self, held: Sequence[str]) -> PollAnswer:
        """What a poll is answered with, given the requests that the node has in work."""
        known, room = set(held), min(MAX_TAKEN, MAX_HELD - len(held))
        mine = [each for name, each in self.waiting.items() if name not in known and not each.answer.done()]
        edges, self.edges = self.edges, {}
        return PollAnswer(
            requests=tuple(each.head for each in mine[:room]),
            withdrawn=tuple(request for request in held if request not in self.waiting),
            edges=edges,
        )


@dataclass
class Desk:
    """Keeps requests for processes that dial out.

    Where nodes show certificates, a process is who polls with its nonce and the certificate of one node: each edge that
    an agent polls learns the nonce, and could otherwise poll in the agent's place.

    Attributes:
        closing: set when this tier shuts down: polls then end.
        on_missing: called when a request is for a process that does not poll here.
    """

    closing: asyncio.Event
    on_missing: Callable[[], None] = lambda: None
    _processes: dict[str, dict[str | None, _Process]] = field(default_factory=dict)

    # ---- for this tier

    def missing(self) -> tuple[str, ...]:
        """The processes that do not poll here and for which there are requests."""
        return tuple(
            sorted(
                process
                for process, nodes in self._processes.items()
                if any(each.wanted and not each.seen.is_set() for each in nodes.values())
            )
        )

    def call(self, process: str, edge: str, url: str) -> None:
        """Asks a process, if it polls here, to poll an edge as well."""
        for found in self._processes.get(process, {}).values():
            found.edges[edge] = url
            found.wake()

    async def present(self, process: str, server_name: str | None, within_s: float) -> None:
        """Waits until a process polls here, with the certificate of this name where nodes show one.

        Raises:
            TimeoutError: it does not within `within_s` seconds.
        """
        found = self._of(process, server_name)
        if found.seen.is_set():
            return
        found.wanted += 1
        try:
            self.on_missing()
            async with asyncio.timeout(within_s):
                await found.seen.wait()
        finally:
            found.wanted -= 1
            self._forget_unused(process, server_name)

    def put(self, process: str, waiting: Waiting) -> None:
        """Adds a request."""
        found = self._of(process, waiting.server_name)
        found.waiting[waiting.request] = waiting
        found.wake()

    def withdraw(self, process: str, waiting: Waiting) -> None:
        """Removes a request, whose answer nobody waits for any more."""
        found = self._known(process, waiting.server_name)
        if found is None or waiting.request not in found.waiting:
            return
        del found.waiting[waiting.request]
        if waiting.answer.cancelled() or not waiting.answer.done():
            found.wake()
        self._forget_unused(process, waiting.server_name)

    # ---- for the nodes

    async def poll(
        self, process: str, held: Sequence[str], peer: Peer | None, disconnected: asyncio.Future[Any]
    ) -> PollAnswer:
        """What is new for a process, as soon as there is something, or after `WAIT_S` seconds.

        A request that the process does not hold is handed out again: the answer to an earlier poll was lost.

        Args:
            process: that polls.
            held: the requests that it has in work.
            peer: whose certificate it showed.
            disconnected: is done when the connection of the poll has been closed.

        Raises:
            Conflict: a newer poll of the process has come.
            NotReady: this tier shuts down.
            TooMany: `MAX_AGENTS` processes poll.
        """
        node = peer.identity.server_name if peer else None
        found = self._of(process, node)
        number = found.poll = found.poll + 1
        found.wake()  # an earlier poll ends
        self._begin(found)
        loop, after_s = asyncio.get_running_loop(), CLOSED_S
        closing, ends = asyncio.ensure_future(self.closing.wait()), loop.time() + WAIT_S
        try:
            while True:
                if found.poll != number:
                    raise Conflict("a newer poll of this process has come")
                if self.closing.is_set():
                    raise NotReady("this process shuts down")
                changed, left = found.changed, ends - loop.time()
                answer = found.news(held)
                if answer != PollAnswer() or left <= 0:
                    after_s = GONE_S
                    return answer
                if disconnected.done():
                    return answer
                ends_wait: set[asyncio.Future[Any]] = {changed, closing, disconnected}
                await asyncio.wait(ends_wait, timeout=left, return_when="FIRST_COMPLETED")
        finally:
            closing.cancel()
            if found.poll == number:
                found.polls = False
                found.going = loop.call_later(after_s, self._gone, process, node)

    def find(self, process: str, request: str, peer: Peer | None) -> Waiting:
        """A request of a process.

        Raises:
            NotFound: the process has no such request (any more).
            Forbidden: it is for a node with another certificate.
        """
        for found in self._processes.get(process, {}).values():
            if waiting := found.waiting.get(request):
                waiting.check(peer)
                return waiting
        raise NotFound("this process has no such request; whoever made it may have stopped waiting")

    async def answer(self, waiting: Waiting, answer: Answer) -> None:
        """Hands an answer to whoever waits for it, and waits until its body has been read.

        Raises:
            Conflict: the request has been answered.
        """
        if waiting.answer.done():
            raise Conflict("the request has been answered")
        waiting.answer.set_result(answer)
        await answer.taken.wait()

    # ---- processes

    def _known(self, process: str, server_name: str | None) -> _Process | None:
        return self._processes.get(process, {}).get(server_name)

    def _of(self, process: str, server_name: str | None) -> _Process:
        if process not in self._processes and len(self._processes) >= MAX_AGENTS:
            raise TooMany(f"{len(self._processes)} processes poll, the limit is {MAX_AGENTS}")
        return self._processes.setdefault(process, {}).setdefault(server_name, _Process())

    def _begin(self, found: _Process) -> None:
        found.polls = True
        found.seen.set()
        if found.going is not None:
            found.going.cancel()
            found.going = None

    def _gone(self, process: str, server_name: str | None) -> None:
        if (found := self._known(process, server_name)) is None or found.polls:
            return
        found.seen.clear()
        for waiting in found.waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_result(None)
        self._forget_unused(process, server_name)

    def _forget_unused(self, process: str, server_name: str | None) -> None:
        found = self._known(process, server_name)
        if found is not None and not (found.polls or found.seen.is_set() or found.waiting or found.wanted):
            del self._processes[process][server_name]
            if not self._processes[process]:
                del self._processes[process]
