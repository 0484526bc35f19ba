"""A real deployment into which faults can be injected: its processes, Redis, network, disks and clocks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from shared.core.errors import StrataError
from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from shared.service.api.nodes import AgentInfo
from strata.api.client import Client
from strata.launcher.environment import Modules
from strata.launcher.polling import poll_topology
from strata.launcher.topology import Topology
from tests import real_redis
from tests.data_cache import data_cache
from tests.fork_server import shared_fork_server
from tests.soak.gate import ENV as GATE_ENV
from tests.soak.gate import Gate
from tests.soak.proxy import Proxy
from tests.waits import HANG_S, Hang, until

TTL_S = 6.0
DISK_BYTES = 2**20
TIER = "tests.soak.tier"
FINAL = ("completed", "failed", "stopped")


def environment(ttl_s: float, heartbeat_s: float) -> dict[str, str]:
    """Returns settings with which a node that is silent for `ttl_s` is lost."""
    beats = dict.fromkeys(("AGENT_HEARTBEAT_S", "EDGE_HEARTBEAT_S", "CLOUD_HEARTBEAT_S"), f"{heartbeat_s:g}")
    lives = dict.fromkeys(("EDGE_TTL_S", "CLOUD_TTL_S"), f"{ttl_s:g}")
    return {**beats, **lives, "CLOUD_SETTLE_S": "1", "STRATA_PLUGINS": "tests.probes"}


class Deployment:
    """A topology of real processes with a proxy before some of its nodes; a context manager.

    Args:
        folder: holds all files; Redis keeps its data there and syncs each write.
        edges, devices, agents: the numbers of edges, devices and agents.
        seed: of the proxy's random choices.
        proxied: names of nodes that are reached through the proxy only.
        small_disks: names of processes whose state is on a disk of 1 MiB, if such a disk can be mounted.
        clocks: names of processes whose wall clock can be made to jump.
        up: names of nodes that dial out.
        ttl_s: seconds of silence after which a node is lost.
        heartbeat_s: seconds between two heartbeats, which take most of the CPU time of idle processes.

    Attributes:
        gate: holds visits of the algorithms that wait at it.
        small_disks: names of processes for which one was mounted.
        down: names of processes that were killed and not restarted, perhaps with `redis`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        edges: int = 2,
        devices: int = 4,
        agents: int = 2,
        seed: int = 0,
        proxied: Sequence[str] = (),
        small_disks: Sequence[str] = (),
        clocks: Sequence[str] = (),
        up: Sequence[str] = (),
        ttl_s: float = TTL_S,
        heartbeat_s: float = 0.3,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.ttl_s = folder, ttl_s
        self.proxy, self.gate = Proxy(seed), Gate(folder / "gate")
        self.rng = random.Random(seed)
        self.down: set[str] = set()
        self.frozen: set[str] = set()
        self._wanted_disks, self.small_disks = small_disks, []  # type: tuple[Sequence[str], list[str]]
        self._proxied, self._clocks, self._up = proxied, clocks, up
        self._layout: dict[str, Any] = {"edges": edges, "devices": devices, "agents": agents}
        folders = {"STRATA_CACHE_DIR": str(data_cache()), GATE_ENV: str(self.gate.folder)}
        self._env = {**environment(ttl_s, heartbeat_s), **folders, **(env or {})}

    # ---- start and stop

    def __enter__(self) -> Self:
        """Start all processes and wait until they are ready."""
        self.proxy.__enter__()
        try:
            (self.folder / "clock").mkdir(parents=True, exist_ok=True)
            self.small_disks = [name for name in self._wanted_disks if _mounted(self.folder / name)]
            env_of: dict[str, dict[str, str]] = {name: {} for name in {*self._proxied, *self._clocks, *self._up}}
            for name in self._proxied:
                env_of[name] |= self._behind_proxy(name)
            for name in self._up:
                env_of[name] |= {f"{_tier(name)}_CONNECT": "up"}
            for name in self._clocks:
                env_of[name] |= {"SOAK_CLOCK": str(self._clock(name))}
            runs_dir, folder = self.folder / "runs", self.folder
            made = Topology(
                runs_dir=runs_dir,
                folder=folder,
                modules=Modules(TIER, TIER, TIER),
                fork=shared_fork_server(),
                env=self._env,
                env_of=env_of,
                **self._layout,
            )
            self.topology = made
            made.start()
            self.topology.wait_ready(HANG_S)
            self.client = Client(self.topology.url, timeout_s=10, reconnect_s=1.5)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(self, "client"):
            self.client.close()
        if hasattr(self, "topology"):
            self.topology.stop()
        self.proxy.__exit__()
        for name in self.small_disks:
            subprocess.run(["umount", "-l", str(self.folder / name)], check=False, capture_output=True)

    def _behind_proxy(self, name: str) -> dict[str, str]:
        return {f"{_tier(name)}_ADVERTISE_PORT": str(self.proxy.listen_before(name, lambda: self.topology.ports[name]))}

    # ---- nodes

    @property
    def names(self) -> list[str]:
        """The names of all processes except Redis."""
        return sorted(self.topology.processes)

    def of(self, tier: str) -> list[str]:
        """Returns the names of the processes of a tier: `agent` or `edge`."""
        return [name for name in self.names if name.startswith(tier)]

    def agent(self, name: str) -> AgentInfo | None:
        """Returns an agent as the cloud shows it, None if the cloud does not know it."""
        return next((agent for agent in self.client.agents().agents if agent.name == name), None)

    def state_of(self, name: str) -> str:
        """Returns the state of an agent or edge as the cloud shows it."""
        if name.startswith("agent"):
            found = self.agent(name)
            return found.state if found else "unknown"
        states = {edge.edge: edge.state for edge in self.client.edges().edges}
        return str(states.get(name, "unknown"))

    def wait_state(self, name: str, *states: str) -> None:
        """Wait until the cloud shows one of these states for an agent or edge."""
        until(f"{name} to be {' or '.join(states)}", lambda: self.state_of(name) in states)

    def wait_all(self, gone: Sequence[str] = ()) -> None:
        """Wait until the cloud shows all nodes except `gone` as alive."""
        sizes = dict(zip([f"agent-{index + 1}" for index in range(100)], self.topology.devices_per_agent, strict=False))
        agents = {name: n_devices for name, n_devices in sizes.items() if name not in gone}
        missing: list[str] = []

        def all_alive() -> bool:
            missing[:] = poll_topology(self.client, self.topology.edge_names, agents)[1]
            return not [what for what in missing if "devices" not in what or "(" in what]

        try:
            until("all nodes to be alive", all_alive, every_s=0.2)
        except Hang as hang:
            raise Hang(f"{hang}; missing: {missing}") from None

    # ---- processes

    def kill(self, *names: str) -> None:
        """Kill processes with SIGKILL, one right after the other."""
        for name in names:
            self.down.add(name)
            self.frozen.discard(name)
            real_redis.kill(self.topology.redis) if name == "redis" else self.topology.end(name)

    def start(self, *names: str) -> None:
        """Start killed processes again, with their old folders."""
        for name in names:
            real_redis.restart(self.topology.redis) if name == "redis" else self.topology.start_again(name)
            self.down.discard(name)

    def freeze(self, name: str) -> None:
        """Stop a process with SIGSTOP."""
        self.topology.processes[name].signal(signal.SIGSTOP)
        self.frozen.add(name)

    def thaw(self, name: str) -> None:
        """Continue a frozen process with SIGCONT."""
        if name in self.frozen:
            self.topology.processes[name].signal(signal.SIGCONT)
            self.frozen.discard(name)

    @contextmanager
    def killed(self, *names: str) -> Iterator[None]:
        """Kill processes; start them again at the end of the block."""
        self.kill(*names)
        try:
            yield
        finally:
            self.start(*names)

    # ---- disks and clocks

    def fill_disk(self, name: str) -> None:
        """Fill a process's small disk."""
        with suppress(OSError), (self.folder / name / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free_disk(self, name: str) -> None:
        """Free the space that `fill_disk` took."""
        (self.folder / name / "filler").unlink(missing_ok=True)

    def set_clock(self, name: str, seconds: float) -> None:
        """Set a process's wall clock to this offset from the true time, in seconds."""
        self._clock(name).write_text(str(seconds), encoding="ascii")

    def _clock(self, name: str) -> Path:
        return self.folder / "clock" / name

    # ---- runs

    def submit(self, spec: Mapping[str, Any]) -> str:
        """Submit a run; the request is repeated with the same idempotency key until it is answered."""
        key = f"soak-{self.rng.getrandbits(64):016x}"
        return str(until("an answer to POST /runs", lambda: self.client.create_run(spec, key).run))

    def info(self, run: str) -> RunInfo:
        """Returns a run's document."""
        return until(f"GET /runs/{run}", lambda: self.client.run(run))

    def wait_round(self, run: str, round_no: int) -> None:
        """Wait until a round is committed."""
        until(f"round {round_no} of {run}", lambda: self.client.run(run).rounds >= round_no)

    def finish(self, run: str) -> RunInfo:
        """Wait until a run has ended; return its document."""
        try:
            until(f"the end of {run}", lambda: self.client.run(run).status in FINAL, every_s=0.2)
        except Hang as hang:
            raise Hang(f"{hang}; {self.describe(run)}") from None
        return self.info(run)

    def complete(self, spec: Mapping[str, Any]) -> RunInfo:
        """Submit a run and wait until it has completed."""
        info = self.finish(self.submit(spec))
        assert info.status == "completed", info.reason
        return info

    def describe(self, run: str) -> str:
        """Describes a run and the nodes, for the message of a wait that failed."""
        try:
            info, nodes = self.client.run(run), self.client.topology()
        except StrataError as error:
            return f"the cloud does not answer: {error.detail}"
        states = {node.name: node.state for node in nodes.agents} | {e.edge: e.state for e in nodes.edges}
        dead = [process.name for process in self.topology.dead()]
        return f"{info.status} ({info.reason}) after {info.rounds} of {info.num_rounds} rounds; {states}; dead: {dead}"

    def details(self, info: RunInfo) -> list[RoundDetail]:
        """Returns the record of all rounds."""
        numbers = range(1, info.rounds + 1)
        return [until(f"round {n}", lambda n=n: self.client.round(info.run, n)) for n in numbers]  # type: ignore[misc]

    def events(self, run: str, meanwhile: Callable[[], None] = lambda: None) -> list[Event]:
        """Returns the events of a run up to its completion."""
        ends, found = time.monotonic() + HANG_S, list[Event]()
        for event in self.client.events(run, idle_s=1.0):
            meanwhile()
            if event is not None:
                found.append(event)
                if event.kind == "run.status" and event.data["status"] == "completed":
                    return found
            if time.monotonic() > ends:
                break
        raise Hang(f"the events of {run} do not end with its completion: {[event.kind for event in found[-5:]]}")

    def wait_event(self, run: str, kind: str, name: str) -> None:
        """Wait for an event of this kind that names an agent (by its id) or an edge (by its name)."""
        ends = time.monotonic() + HANG_S
        for event in self.client.events(run, idle_s=1.0):
            if event is not None and event.kind == kind and event.data["name"] == name:
                return
            if time.monotonic() > ends:
                break
        raise Hang(f"waited {HANG_S:g} s for {kind} of {name} in {run}")

    def delete(self, run: str) -> None:
        """Delete a run that has ended."""
        until(f"DELETE of {run}", lambda: self.client._request("DELETE", f"/runs/{run}").status_code == 204)


def _tier(name: str) -> str:
    return "EDGE" if name.startswith("edge") else "AGENT"


def _mounted(folder: Path) -> bool:
    """Mount a small disk on a folder; returns whether this machine allows it."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
