"""An in-process federation: the three real services exchange real bytes without sockets.

`Federation` runs one cloud, some edges and agents as ASGI applications; a transport routes requests by port. A test
injects faults with `router.tamper`, which gets the request and a function that passes it (or another one) on.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx2
from fastapi import FastAPI

from cloud_server.app import create_app as create_cloud
from cloud_server.nodes.liveness import LastSeen
from cloud_server.settings import CloudSettings
from device_agent.app import create_app as create_agent
from device_agent.settings import AgentSettings
from edge_server.app import create_app as create_edge
from edge_server.settings import EdgeSettings
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import FINAL, RunInfo, SeatPage
from shared.service.protocol import SAID
from shared.service.settings import CommonSettings, Environment
from shared.storage import redis_keys
from shared.storage.key_value import StoreUnavailable
from tests.data_cache import data_cache
from tests.fakes.memory_store import MemoryStore
from tests.waits import HANG_S

CLOUD_PORT, EDGE_PORT, AGENT_PORT = 9000, 9100, 9200
PassOn = Callable[..., Awaitable[httpx2.Response]]
Tamper = Callable[[httpx2.Request, PassOn], Awaitable[httpx2.Response]]


S = TypeVar("S", bound=Environment)
_SETTINGS: dict[tuple[Any, ...], Any] = {}
"""Settings by kind and environment; to read them takes as long as all else of starting a tier."""


def settings_of(kind: type[S], **changes: Any) -> S:
    """Returns the settings that the environment gives, with changes, which are not validated."""
    prefixes = str(kind.model_config["env_prefix"]), "STRATA_"
    key = kind, *sorted(item for item in os.environ.items() if item[0].startswith(prefixes))
    if key not in _SETTINGS:
        _SETTINGS[key] = kind()
    found: S = _SETTINGS[key].model_copy(update=changes)
    return found


class SkippingClock:
    """The monotonic clock, on which a test can skip seconds; `skipped_at` is the time right after it last did."""

    def __init__(self) -> None:
        self.skipped_at = self._skipped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped_s

    def skip(self, seconds: float) -> None:
        self._skipped_s += seconds
        self.skipped_at = self()


class Router(httpx2.AsyncBaseTransport):
    """Routes requests to ASGI applications by port.

    Attributes:
        calls: the requests as (port, path), without heartbeats.
        n_heartbeats: how many are being answered.
    """

    def __init__(self) -> None:
        self.apps: dict[int, FastAPI] = {}
        self.tamper: Tamper | None = None
        self.calls: list[tuple[int, str]] = []
        self.n_heartbeats = 0
        self._in_flight: dict[int, set[asyncio.Task[httpx2.Response]]] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        port = request.url.port or 80
        if port not in self.apps:
            raise httpx2.ConnectError(f"no application listens on {port}", request=request)
        is_heartbeat = request.url.path.endswith("heartbeats")
        if not is_heartbeat:
            self.calls.append((port, request.url.path))
        await request.aread()  # so that it can be passed on twice

        async def pass_on(other: httpx2.Request | None = None) -> httpx2.Response:
            self.n_heartbeats += is_heartbeat
            try:
                return await self._through(port, other or request)
            finally:
                self.n_heartbeats -= is_heartbeat

        return await (self.tamper(request, pass_on) if self.tamper else pass_on())

    async def _through(self, port: int, request: httpx2.Request) -> httpx2.Response:
        inner = httpx2.ASGITransport(self.apps[port], raise_app_exceptions=False)
        task = asyncio.create_task(inner.handle_async_request(request))
        self._in_flight.setdefault(port, set()).add(task)
        try:
            await asyncio.wait({task})
            if task.cancelled():
                raise httpx2.ReadError("the connection was closed", request=request)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            self._in_flight[port].discard(task)

    def close_port(self, port: int) -> None:
        """Close a port and cancel the requests in progress."""
        del self.apps[port]
        for task in self._in_flight.get(port, ()):
            task.cancel()


class Federation:
    """One cloud, `n_edges` edges, and agents that can host the numbers of devices in `agent_devices`.

    A node counts as lost only after `pass_time` or `lose`: on a busy machine the real time to live is too long to pass.
    A test that waits for what heartbeats bring shortens `heartbeat_s`. `up` names the tiers (`agents`, `edges`) whose
    nodes dial out; such agents have no port.
    """

    def __init__(
        self,
        folder: Path,
        *,
        n_edges: int = 2,
        agent_devices: tuple[int, ...] = (1,) * 6,
        order: tuple[int, ...] | None = None,
        common: dict[str, Any] | None = None,
        cloud: dict[str, Any] | None = None,
        ttl_s: float = 30.0,
        heartbeat_s: float = 2.0,
        profiles: tuple[str, ...] | None = None,
        up: Collection[str] = (),
    ) -> None:
        self.folder, self.n_edges, self.agent_devices = folder, n_edges, agent_devices
        self.order = order or tuple(range(len(agent_devices)))
        self.ttl_s, self.cloud_extra = ttl_s, cloud or {}
        self.heartbeat_s, self.up = min(heartbeat_s, ttl_s / 10), up
        self.profiles = profiles or ("standard",) * len(agent_devices)
        self.common = settings_of(CommonSettings, **{"cache_dir": data_cache(), "fsync": False, **(common or {})})
        self.router, self.clock = Router(), SkippingClock()
        self.store = MemoryStore(self.clock)
        self.store_error: str | None = None  # the reason for which the store does not answer
        self.refused_calls: set[str] = set()  # the names of the store's methods that were called meanwhile
        self.apps: dict[str, FastAPI] = {}
        self._stacks: dict[str, AsyncExitStack] = {}

    async def __aenter__(self) -> Federation:
        await self.start_cloud()
        for number in range(self.n_edges):
            await self.start_edge(number)
        registry = self.cloud.registry
        await self.until(lambda: len(registry.live_edges()) == self.n_edges)  # an agent then registers only once
        for number in self.order:
            await self.start_agent(number)
        self.client = httpx2.AsyncClient(
            transport=self.router, base_url=f"http://127.0.0.1:{CLOUD_PORT}", timeout=HANG_S, headers=SAID
        )
        await self.until(lambda: self.n_agents() == len(self.agent_devices))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.aclose()
        for name in [*reversed(list(self._stacks))]:
            await self.stop(name)

    # ---- services

    @property
    def cloud(self) -> Any:
        """What the cloud is made of; that of its last start, where it has been stopped."""
        return self.apps["cloud"].state.cloud

    async def start_cloud(self) -> None:
        usual: dict[str, Any] = {
            "port": CLOUD_PORT,
            "state_dir": self.folder / "cloud",
            "runs_dir": self.folder / "runs",
            "common": self.common,
            "heartbeat_s": self.heartbeat_s,
            "ttl_s": self.ttl_s,
            "settle_s": 0.2,
        }
        extra = self.cloud_extra
        settings = CloudSettings(**usual, **extra) if extra else settings_of(CloudSettings, **usual)
        await self._start("cloud", CLOUD_PORT, create_cloud(settings, self.router, PersistentStore(self), self.clock))

    async def start_edge(self, number: int) -> None:
        settings = settings_of(
            EdgeSettings,
            name=f"edge-{number + 1}",
            port=EDGE_PORT + number,
            cloud_url=f"http://127.0.0.1:{CLOUD_PORT}",
            state_dir=self.folder / f"edge-{number}",
            common=self.common,
            heartbeat_s=self.heartbeat_s,
            ttl_s=self.ttl_s,
            connect="up" if "edges" in self.up else "listen",
        )
        app = create_edge(settings, self.router, PersistentStore(self), self.clock)
        await self._start(f"edge-{number}", settings.port, app)

    async def start_agent(self, number: int, devices: int | None = None, port: int | None = None) -> None:
        settings = settings_of(
            AgentSettings,
            name=f"agent-{number}",
            port=port or AGENT_PORT + number,
            cloud_url=f"http://127.0.0.1:{CLOUD_PORT}",
            devices=devices or self.agent_devices[number],
            profile=self.profiles[number] if number < len(self.profiles) else "standard",
            state_dir=self.folder / f"agent-{number}",
            common=self.common,
            heartbeat_s=self.heartbeat_s,
            connect="up" if "agents" in self.up else "listen",
        )
        port = settings.port if settings.listens else None
        await self._start(f"agent-{number}", port, create_agent(settings, self.router))

    async def _start(self, name: str, port: int | None, app: FastAPI) -> None:
        stack = AsyncExitStack()
        if port is not None:
            self.router.apps[port] = app
        await stack.enter_async_context(app.router.lifespan_context(app))
        self._stacks[name], self.apps[name] = stack, app

    async def stop(self, name: str) -> None:
        """Stop a service and close its port."""
        gone = [port for port, app in self.router.apps.items() if app is self.apps[name]]
        for port in gone:
            self.router.close_port(port)
        await self._stacks.pop(name).aclose()

    async def restart_cloud(self) -> None:
        """Stop the cloud and start it again."""
        await self.stop("cloud")
        await self.start_cloud()

    async def restart_node(self, name: str) -> None:
        """Stop an edge or an agent and start it again."""
        await self.stop(name)
        tier, _, number = name.partition("-")
        await (self.start_edge if tier == "edge" else self.start_agent)(int(number))

    async def restart(self, change: Callable[[], object]) -> None:
        """Stop all services, change something, and start them again on the same store and folders."""
        names = list(self._stacks)
        for name in reversed(names):
            await self.stop(name)
        change()
        await self.start_cloud()
        for name in names[1:]:
            tier, _, number = name.partition("-")
            await (self.start_edge if tier == "edge" else self.start_agent)(int(number))
        await self.until(lambda: self.n_agents() == len(self.agent_devices))

    async def lose(self, name: str) -> None:
        """Stop an edge or an agent, and let its time to live pass."""
        if name in self._stacks:
            await self.stop(name)
        await self.pass_time(1.1 * self.ttl_s, self.node_id(name))

    async def pass_time(self, seconds: float, *silent: str) -> None:
        """Let time pass for times to live. Live nodes are heard meanwhile, except the silent ones with these ids."""
        registry, n_steps = self.cloud.registry, math.ceil(4 * seconds / self.ttl_s)
        nodes = (registry.seen_agents | registry.seen_edges).items()
        others = [seen for node, seen in nodes if node not in silent and seen.is_live(self.clock())]
        for _ in range(n_steps):  # each is shorter than the silence after which a node is suspect
            await self.until(lambda: not self.router.n_heartbeats)  # which say how long ago nodes were heard
            self.clock.skip(seconds / n_steps)
            await self.until(lambda: self._all_heard(others))

    def _all_heard(self, nodes: list[LastSeen]) -> bool:
        """Whether the cloud heard all these after the clock last skipped; if not, all send heartbeats at once."""
        if all(seen.at >= self.clock.skipped_at for seen in nodes):
            return True
        for name in self._stacks.keys() - {"cloud"}:
            state = self.apps[name].state
            if name.startswith("edge"):
                state.edge.membership.send_heartbeat_now()
            for loop in state.agent.membership._loops if name.startswith("agent") else ():
                loop.wake()
        return False

    def n_agents(self) -> int:
        """Returns the number of agents that the cloud counts as alive and that send heartbeats to an edge."""
        registry = self.cloud.registry
        heard = [seen for seen in registry.seen_agents.values() if seen.edge is not None]
        return min(len(registry.live_agents()), len(heard))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; the limit is generous for a busy machine."""
        async with asyncio.timeout(HANG_S):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.02)

    # ---- runs

    def agent_id(self, number: int) -> str:
        """Returns the id of an agent."""
        return self.node_id(f"agent-{number}")

    def node_id(self, name: str) -> str:
        """Returns the id of an edge or an agent, which may have been stopped."""
        state = self.apps[name].state
        return str(state.agent.membership.registration.agent if name.startswith("agent") else state.edge.settings.edge)

    async def submit(self, spec: dict[str, Any]) -> str:
        answer = await self.client.post("/runs", json={"spec": spec})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["run"])

    async def submit_and_hold(self, spec: dict[str, Any], **gate: Any) -> tuple[Gate, str]:
        """Submit a run, of which a gate holds an order; returns both once one waits there."""
        closed = Gate(self, **gate)
        run_id = await self.submit(spec)
        held, ended = (
            asyncio.ensure_future(each) for each in (closed.reached.wait(), self.until_status(run_id, *FINAL))
        )
        await asyncio.wait({held, ended}, return_when=asyncio.FIRST_COMPLETED)
        assert held.done(), f"no order was held until the run ended: {await ended}"
        ended.cancel()
        return closed, run_id

    async def finish(self, run_id: str) -> RunInfo:
        """Wait until a run has ended; a completed one has done something, which two equal runs alone would not show."""
        info = await self.until_status(run_id, *FINAL)
        if info.status == "completed":
            assert info.rounds == info.num_rounds > 0
            assert 0 <= (info.accuracy or 0) <= 1
            assert "global" not in info.models or re.fullmatch("[0-9a-f]{64}", info.model_sha256 or "")
        return info

    async def run(self, spec: dict[str, Any]) -> RunInfo:
        """Submit a run and wait until it has ended."""
        return await self.finish(await self.submit(spec))

    async def add_rounds(self, run_id: str, n: int) -> RunInfo:
        """Add rounds to a run, and wait until it has ended."""
        answer = await self.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": n})
        assert answer.status_code == 200, answer.text
        return await self.finish(run_id)

    async def until_status(self, run_id: str, *wanted: str) -> RunInfo:
        """Wait until a run has one of these statuses.

        The stored document says the status; the cloud is asked where the store does not answer, and at the end.
        """
        ends, info = time.monotonic() + HANG_S, cast(RunInfo | None, None)
        while True:
            stored = None if self.store_error else await self.store.get(redis_keys.cloud_run(run_id))
            status = json.loads(stored)["status"] if stored else (info := await self.info(run_id)).status
            if status in wanted:
                info = await self.info(run_id)  # which may have gone on
                if info.status in wanted:
                    return info
            assert time.monotonic() < ends, f"after {HANG_S:g} s the run is {status}: {info and info.reason}"
            await asyncio.sleep(0.01)

    async def control(self, run_id: str, action: str) -> None:
        """Pause, resume or stop a run."""
        answer = await self.client.post(f"/runs/{run_id}/{action}")
        assert answer.status_code == 200, answer.text

    async def start_and_pause(self, spec: dict[str, Any], rounds: int) -> str:
        """Submit a run and pause it after `rounds` rounds; the first edge gets one order in each of them."""
        gate = Gate(self, rounds, "/rounds", EDGE_PORT)
        run_id = await self.submit(spec)
        await self.pause_at(gate, run_id)
        return run_id

    async def resume_and_pause(self, run_id: str, rounds: int) -> None:
        """Resume a run and pause it after `rounds` further rounds."""
        gate = Gate(self, rounds, "/rounds", EDGE_PORT)
        await self.control(run_id, "resume")
        await self.pause_at(gate, run_id)

    async def pause_at(self, gate: Gate, run_id: str) -> None:
        """Pause a run after the round whose order the gate holds."""
        await gate.reached.wait()
        await self.control(run_id, "pause")
        gate.open.set()
        await self.until_status(run_id, "paused")

    async def info(self, run_id: str) -> RunInfo:
        return RunInfo.model_validate((await self.client.get(f"/runs/{run_id}")).json())

    async def round(self, run_id: str, round_no: int) -> RoundDetail:
        answer = await self.client.get(f"/runs/{run_id}/rounds/{round_no}")
        assert answer.status_code == 200, answer.text
        return RoundDetail.model_validate(answer.json())

    async def events(self, run_id: str, *kinds: str) -> list[Any]:
        """Returns the events of a run so far, all or those of some kinds."""
        found = await self.cloud.repository.events(run_id, "0", None)
        return [event for event in found if not kinds or event.kind in kinds]

    async def seats(self, run_id: str) -> SeatPage:
        return SeatPage.model_validate((await self.client.get(f"/runs/{run_id}/seats")).json())


class PersistentStore:
    """A store that, like Redis, survives the service that closes it; a test can make it unreachable."""

    def __init__(self, fed: Federation) -> None:
        self._fed = fed

    def __getattr__(self, name: str) -> Any:
        if self._fed.store_error is not None:
            self._fed.refused_calls.add(name)
            raise StoreUnavailable(self._fed.store_error)
        return getattr(self._fed.store, name)

    async def close(self) -> None:
        """Do nothing: the store stays open."""


class Gate:
    """Holds orders to a port from the n-th on, by default the first agent's visits; `reached` is set when one waits.

    For which of several runs the first agent trains is open: such a test says by `ports` what is held.
    """

    def __init__(self, fed: Federation, closed_at: int = 1, path: str = "/visits", port: int = AGENT_PORT) -> None:
        self.open, self.reached = asyncio.Event(), asyncio.Event()
        self.ports: Collection[int | None] = {port}
        self._left, self._path = closed_at, path
        fed.router.tamper = self._tamper

    async def _tamper(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path == self._path and request.url.port in self.ports:
            self._left -= 1
            if self._left <= 0:
                self.reached.set()
                await self.open.wait()
        return await pass_on()


def small_spec(**changes: Any) -> dict[str, Any]:
    """Returns a spec of two rounds of FedAvg on six devices at two edges; a round takes a fraction of a second."""
    data = {"name": "digits", "n_train": 300, "n_test": 100}
    return {"data": data, "num_rounds": 2, "num_devices": 6, "num_edges": 2, **changes}
