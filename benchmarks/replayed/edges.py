"""Edges that are pretended: one process registers them, sends heartbeats and answers for all of them.

Each has an address of its own in 127.0.0.0/8, as in a real network, and one agent, which the edge hears.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.replayed.answers import Recorded
from shared.core.versions import versions
from shared.federation.order_keys import EdgeOrderFields
from shared.federation.placements import EdgePlacement
from shared.service.api.membership import AgentRegistration, EdgeHeartbeat, EdgeRegistration, RosterEntry, process_of
from shared.service.bodies import BodyResponse
from shared.service.order_headers import ORDER_KEY_HEADER, order_key
from shared.service.protocol import SAID
from shared.service.retry import pause_s
from shared.wire import codec
from strata.launcher.environment import listening

PAUSE_S = 0.01
"""Between two heartbeats."""
JOINING = 20
"""Edges that register at the same time."""


class Refused(Exception):
    """The cloud refused a request."""


def _names(number: int) -> tuple[str, str]:
    """The names of an edge and of its agent."""
    return f"edge-{number + 1:04}", f"agent-{number + 1:04}"


@dataclass
class Connection:
    """HTTP requests from one address to the cloud, one after another."""

    source: str
    port: int
    token: str
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self.streams is not None:
            self.streams[1].close()
            with contextlib.suppress(OSError):
                await self.streams[1].wait_closed()
            self.streams = None

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body of the answer.

        Raises:
            Refused: the status is another one than 200.
        """
        if self.streams is not None and self.streams[0].at_eof():  # the cloud closes connections that are idle
            await self.close()
        if self.streams is None:
            local = (self.source, 0)
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, local_addr=local, limit=2**24)
        reader, writer = self.streams
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in SAID.items())
        writer.write(f"{head}authorization: Bearer {self.token}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        answer = await reader.readexactly(length)
        if " 200 " not in status:
            raise Refused(f"{path}: {status}: {answer[:500]!r}")
        return answer


@dataclass
class PretendedEdges:
    """Edges from the first heartbeat to the end of a `with`, in a thread of their own.

    Attributes:
        n: how many; they are named `edge-0001` and so on.
        devices: of the agent of each.
        cloud_port, token: of the cloud.
        recorded: the answer that each gives.
        joined: whether all have registered.
        heartbeat_bytes: bodies of heartbeats and their answers.
        refusals: requests that failed, in words.
        failed: the error that ended the thread.
    """

    n: int
    devices: int
    cloud_port: int
    token: str
    recorded: Recorded
    joined: bool = False
    heartbeat_bytes: int = 0
    refusals: list[str] = field(default_factory=list)
    failed: BaseException | None = None
    _seats: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    _stop: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        sources = [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(self.n)]
        self._clouds = [Connection(source, self.cloud_port, self.token) for source in sources]

    def __enter__(self) -> PretendedEdges:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the thread has ended
            self._stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.failed = error

    async def _main(self) -> None:
        listener = listening("0.0.0.0", 0)  # noqa: S104 - each edge is called at its own address
        self._port, self._loop = listener.getsockname()[1], asyncio.get_running_loop()
        routes = [
            Route("/nonce", self._show_nonce),
            Route("/placements", self._take_placement, methods=["PUT"]),
            Route("/rounds", self._answer, methods=["POST"]),
        ]
        server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off"))
        ended = asyncio.Event()
        self._stop = partial(self._loop.call_soon_threadsafe, ended.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await self._join_all()
            self.joined = True
            await ended.wait()
        finally:
            server.should_exit = server.force_exit = True
            await serving
            listener.close()
            for cloud in self._clouds:
                await cloud.close()

    # ---- what edges send

    async def _join_all(self) -> None:
        joining = asyncio.Semaphore(JOINING)
        await asyncio.gather(*(self._join(number, joining) for number in range(self.n)))

    async def _join(self, number: int, joining: asyncio.Semaphore) -> None:
        """Registers an edge and its agent, again after each failure as a real edge does, and sends a heartbeat."""
        cloud = self._clouds[number]
        for failures in itertools.count(1):
            try:
                async with joining:
                    await self._register(number, cloud)
                    await self._beat(number, cloud)
                return
            except (Refused, OSError, EOFError) as error:
                self.refusals.append(f"{cloud.source}: {error!r}")
                await cloud.close()
            await asyncio.sleep(pause_s(1.0, failures))

    def beat(self, n: int) -> None:
        """Send so many heartbeats, of one edge after the other."""
        asyncio.run_coroutine_threadsafe(self._beats(n), self._loop).result()

    async def _beats(self, n: int) -> None:
        for number in range(n):
            await self._beat(number % self.n, self._clouds[number % self.n])
            await asyncio.sleep(PAUSE_S)

    async def _register(self, number: int, cloud: Connection) -> None:
        edge, agent = _names(number)
        own = {"port": self._port, "nonce": self._nonce, "versions": versions(), "max_body_bytes": 2**31}
        await cloud.post("/edges", EdgeRegistration(edge=edge, **own).model_dump())
        with_devices = AgentRegistration(agent=agent, name=agent, devices=self.devices, profile="standard", **own)
        await cloud.post("/agents", with_devices.model_dump())

    async def _beat(self, number: int, cloud: Connection) -> None:
        (edge, agent), process = _names(number), process_of(self._nonce)
        roster = (RosterEntry(agent=agent, age_s=0.0, process=process),)
        beat = EdgeHeartbeat(edge=edge, roster=roster, process=process).model_dump()
        self.heartbeat_bytes += len(json.dumps(beat)) + len(await cloud.post("/heartbeats", beat))

    # ---- what edges answer

    async def _show_nonce(self, request: Request) -> Response:
        return JSONResponse({"nonce": self._nonce}, headers=SAID)

    async def _take_placement(self, request: Request) -> Response:
        placement = EdgePlacement.model_validate((await request.json())["placement"])
        self._seats[placement.edge] = tuple(placement.seats)
        return JSONResponse({}, headers=SAID)

    async def _answer(self, request: Request) -> Response:
        order = EdgeOrderFields.model_validate(codec.read_header(await request.body()).record)
        body = self.recorded.of(order.edge, order.round_no, self._seats[order.edge])
        key = order_key("rounds", order.run_id, order.round_no, order.edge)
        return BodyResponse(body, {ORDER_KEY_HEADER: key, **SAID})
