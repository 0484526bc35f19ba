"""A faulty network: a TCP proxy in front of agents and edges that injects faults into chosen orders.

A node advertises the proxy's port in place of its own. The proxy passes everything on unchanged, including the
registration's call back, except the next order (`POST /visits`, `/uploads`, `/rounds`) to a node with an armed fault.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shared.service.order_headers import ORDER_KEY_HEADER
from tests.soak.http11 import Broken, Message, read_message

T = TypeVar("T")
ORDERS = ("/visits", "/uploads", "/rounds")
KINDS = ("reset", "half", "late", "loris_up", "loris_down", "garble_up", "garble_down", "twice", "stray")
"""`up`: on the way to the node; `down`: on the way back."""
PIECES = 100
KEPT = 8
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Fault:
    """A fault of the next order to a node, or of the next POST to other paths.

    Attributes:
        kind: of the fault.
        last_s: duration of a late or slow exchange.
        paths: how they begin.
    """

    kind: str
    last_s: float = 0.0
    paths: tuple[str, ...] = ORDERS


@dataclass
class Route:
    """One node behind the proxy."""

    name: str
    upstream: Callable[[], int]
    port: int = 0
    armed: deque[Fault] = field(default_factory=deque)

    def take(self, request: Message) -> Fault | None:
        """Returns the fault to inject into this request, None for none."""
        armed = self.armed and request.start[0] == b"POST" and request.path.startswith(self.armed[0].paths)
        return self.armed.popleft() if armed else None


class Proxy:
    """The proxy's thread; a context manager.

    Attributes:
        done: kind and node of the faults that took effect.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.routes: dict[str, Route] = {}
        self.done: list[tuple[str, str]] = []
        self._kept: deque[tuple[str, Message]] = deque(maxlen=KEPT)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def listen_before(self, name: str, upstream: Callable[[], int]) -> int:
        """Listen in front of a node; returns the port to advertise. `upstream` returns the node's own port."""
        route = self.routes[name] = Route(name, upstream)
        route.port = asyncio.run_coroutine_threadsafe(self._listen(route), self._loop).result(10)
        return route.port

    def arm(self, name: str, fault: Fault) -> None:
        """Inject this fault into the next order to this node."""
        self.routes[name].armed.append(fault)

    def disarm(self) -> None:
        """Remove all faults that have not taken effect."""
        for route in self.routes.values():
            route.armed.clear()

    async def _listen(self, route: Route) -> int:
        async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await self._serve(route, reader, writer)

        server = await asyncio.start_server(begin, HOST, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    # ---- connections

    async def _serve(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_message(reader)) is not None:
                await _unless_disconnected(reader, self._exchange(route, request, writer))
        except (Broken, OSError):
            _reset(writer)
        finally:
            writer.close()

    async def _exchange(self, route: Route, request: Message, writer: asyncio.StreamWriter) -> None:
        fault = route.take(request)
        if fault is None:
            answer = await self._ask(route, request.raw)
            writer.write(answer.raw)
            if (place := answer.header(ORDER_KEY_HEADER)) and all(place != kept for kept, _ in self._kept):
                self._kept.append((place, answer))
        else:
            self.done.append((fault.kind, route.name))
            await self._inject(route, request, writer, fault)
        await writer.drain()

    async def _inject(self, route: Route, request: Message, writer: asyncio.StreamWriter, fault: Fault) -> None:
        """Inject a fault into an exchange.

        Raises:
            Broken: the connection must end here.
        """
        match fault.kind:
            case "reset":
                if self.rng.random() < 0.5:
                    await self._ask(route, request.raw)
                raise Broken("reset")
            case "half":
                answer = await self._ask(route, request.raw)
                writer.write(answer.head + answer.body[: len(answer.body) // 2])
                await writer.drain()
                raise Broken("half a body")
            case "late":
                answer = await self._ask(route, request.raw)
                await asyncio.sleep(fault.last_s)
                writer.write(answer.raw)
            case "loris_up":
                writer.write((await self._ask(route, request.raw, last_s=fault.last_s)).raw)
            case "loris_down":
                await _trickle(writer, (await self._ask(route, request.raw)).raw, fault.last_s)
            case "garble_up":
                writer.write((await self._ask(route, request.head + self._garbled(request.body))).raw)
            case "garble_down":
                answer = await self._ask(route, request.raw)
                writer.write(answer.head + self._garbled(answer.body))
            case "twice":
                repeated = asyncio.create_task(self._repeat(route, request.raw))
                self._tasks.add(repeated)
                repeated.add_done_callback(self._tasks.discard)
                writer.write((await self._ask(route, request.raw)).raw)
            case "stray":
                answer = await self._ask(route, request.raw)
                writer.write(self._stray_answer(answer).raw)
            case unknown:
                raise AssertionError(f"no such fault: {unknown}")

    async def _ask(self, route: Route, raw: bytes, last_s: float = 0.0) -> Message:
        """Returns the node's answer, over a separate connection, so that the node sees when ours ends."""
        reader, writer = await asyncio.open_connection(HOST, route.upstream())
        try:
            await _trickle(writer, raw, last_s)
            answer = await read_message(reader)
        finally:
            writer.transport.abort()
        if answer is None:
            raise Broken("the node closed")
        return answer

    async def _repeat(self, route: Route, raw: bytes) -> None:
        """Send the same request while the first still runs, and again after it; the answers are not used."""
        try:
            await asyncio.sleep(0.05)
            await self._ask(route, raw)
            await self._ask(route, raw)
        except (Broken, OSError):
            return

    def _garbled(self, body: bytes) -> bytes:
        garbled = bytearray(body)
        for _ in range(min(16, len(garbled))):
            garbled[self.rng.randrange(len(garbled))] ^= self.rng.randrange(1, 256)
        return bytes(garbled)

    def _stray_answer(self, answer: Message) -> Message:
        """Returns an earlier answer to another order, of another run if there is one."""
        mine = answer.header(ORDER_KEY_HEADER)
        others = [(place, kept) for place, kept in self._kept if place != mine]
        strange = [kept for place, kept in others if place.split("/")[1:2] != mine.split("/")[1:2]]
        return (strange or [kept for _, kept in others] or [answer])[0]


async def _unless_disconnected(reader: asyncio.StreamReader, work: Awaitable[T]) -> T:
    """Returns the result of the work, unless the client disconnects before it is done.

    Raises:
        Broken: the client disconnected, or sent something before its answer.
    """
    working, going = asyncio.ensure_future(work), asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({working, going}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Broken("the client disconnected")
        return working.result()
    finally:
        for task in (working, going):
            task.cancel()
        await asyncio.gather(working, going, return_exceptions=True)


async def _trickle(writer: asyncio.StreamWriter, raw: bytes, last_s: float) -> None:
    """Write bytes; if `last_s` is not 0, in pieces over that time."""
    step = -(-len(raw) // PIECES) if last_s else max(len(raw), 1)
    for begin in range(0, len(raw), step):
        writer.write(raw[begin : begin + step])
        await writer.drain()
        await asyncio.sleep(last_s / PIECES)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST, by SO_LINGER 0."""
    found = writer.get_extra_info("socket")
    with suppress(OSError):  # closed already
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
