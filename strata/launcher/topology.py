"""A local topology: redis-server, one cloud, edges and agents as processes on loopback.

The processes run the same code and protocol as in containers. None outlives the launcher: `stop` ends all in order; if
the launcher is killed, the kernel ends them (`parent_death`). What a run needs to go on stays (`local_state`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shared.core.addresses import in_url
from shared.core.errors import BadInput, NotFound, NotReady
from shared.core.os_errors import check_writable
from shared.runtime.streams import open_standard
from shared.service.api.nodes import TopologyInfo
from strata.api.topology_client import TopologyClient
from strata.launcher import environment, local_state, work_folder
from strata.launcher.authority import Authority
from strata.launcher.environment import Modules, check_files, listening, loopback, spread
from strata.launcher.fork_server import ForkServer
from strata.launcher.gpus import shared_gpus
from strata.launcher.local_state import Shape
from strata.launcher.polling import poll_topology
from strata.launcher.process import Process, ProcessDied, end_all, execute
from strata.launcher.signals import postponed

if TYPE_CHECKING:
    from shared.identity.names import NodeClass
    from shared.service.api.membership import Connect
    from strata.launcher.redis_server import RedisServer


_GRACE_S = 5.0
_POLL_S = 0.1


class Topology:
    """A cloud, edges and agents as local processes; a context manager that starts and stops them.

    Start it from a thread that lives as long as the topology (the kernel ties the processes to that thread).

    Args:
        edges: number of edges, named `edge-1` and so on.
        devices: number of devices, spread over the agents.
        agents: number of agent processes, named `agent-1` and so on; None = as many as `spread` chooses.
        runs_dir: the folder into which the cloud writes results.
        folder: the folder for state and logs, which is kept; None = one of its own, which is kept only as long as a run
            in it has not completed (`local_state`).
        own: whether the given folder is one that an earlier topology made for itself.
        port: port of the cloud; 0 = any free one.
        order: the order in which agents start, as indices from 0, for tests; results must not depend on it.
        profiles: the profile of each agent; None = `standard` for all.
        modules: the module that runs for each tier.
        fork: how processes start: True = forked from a fork server of this topology, which has imported the tiers;
            a fork server = forked from that one; False = each is executed. Results do not depend on it. The default
            is to fork on Linux; other systems do not promise that their libraries survive a fork.
        secure: whether nodes show certificates to each other, and to users over TLS.
        agents_per_gpu: how many agents share a GPU, each of which sees that one alone; 0 = each sees all.
        connect: how edges and agents are reached: `listen`, at a port, or `up`, by polls; such agents have no port.
        env: environment variables for all processes; they override this process' own.
        env_of: environment variables for single processes by name (`cloud`, `edge-1`, `agent-1`); they override all.

    Attributes:
        url: address of the cloud, known after `start`.
        ports: the port of each process that listens by name; that of the cloud stays the same when it is started again.
        folder: the folder of state and logs, known after `start`.
        tier_token: the secret that the tiers of this topology share, unless they show certificates.
    """

    def __init__(
        self,
        *,
        edges: int = 2,
        devices: int = 10,
        agents: int | None = None,
        runs_dir: Path = Path("runs"),
        folder: Path | None = None,
        own: bool = False,
        port: int = 0,
        order: Sequence[int] | None = None,
        profiles: Sequence[str] | None = None,
        modules: Modules | None = None,
        fork: bool | ForkServer = sys.platform == "linux",
        secure: bool = False,
        agents_per_gpu: int = 0,
        connect: Connect = "listen",
        env: Mapping[str, str] | None = None,
        env_of: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.devices_per_agent = spread(devices, agents)
        if edges < 1:
            raise BadInput(f"a topology needs at least one edge, not {edges}", field="edges")
        self.edge_names = [f"edge-{index + 1}" for index in range(edges)]
        self._order = list(order) if order is not None else list(range(len(self.devices_per_agent)))
        if sorted(self._order) != list(range(len(self.devices_per_agent))):
            raise BadInput(f"order must name each of the {len(self.devices_per_agent)} agents once", field="order")
        self._profiles = list(profiles) if profiles is not None else ["standard"] * len(self.devices_per_agent)
        if len(self._profiles) != len(self.devices_per_agent):
            raise BadInput(f"{len(self._profiles)} profiles for {len(self.devices_per_agent)} agents", field="profiles")
        self._runs_dir = runs_dir.resolve()
        self._given_folder, self._own = folder, own
        self._lasting = folder is not None and not own  # shall survive a power failure
        self._port, self._host = port, ""
        self._modules = modules or Modules()
        self._fork = fork
        self.secure = secure
        self._fork_server = None if isinstance(fork, bool) else fork
        ways = dict.fromkeys(("EDGE_CONNECT", "AGENT_CONNECT"), str(connect)) if connect != "listen" else {}
        self._env = {**ways, **(env or {})}
        self._gpus = shared_gpus({**os.environ, **self._env}, agents_per_gpu)
        self._env_of = {name: dict(more) for name, more in (env_of or {}).items()}
        self._work: work_folder.WorkFolder | None = None
        self._redis: RedisServer | None = None
        self._processes: dict[str, Process] = {}
        self.ports: dict[str, int] = {}
        self.tier_token, self.url = token_hex(16), ""

    # ---- start and stop

    def start(self) -> Self:
        """Start all processes; if one cannot be started, those already running are stopped again.

        Raises:
            StrataError: no redis-server was found, or the port is taken.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def prepare(self) -> None:
        """Make the work folder and begin to import the tiers, which `start` does otherwise; `stop` undoes it."""
        if self._work is not None:
            return
        open_standard()
        check_writable(self._runs_dir)
        check_files(len(self.edge_names))
        self._host = loopback()
        self._work = work_folder.WorkFolder(self._given_folder, self._runs_dir, own=self._own)
        shape = Shape(str(self._runs_dir), len(self.edge_names), tuple(self.devices_per_agent), self.secure)
        local_state.note(self.folder, shape)
        if self._fork is True:  # it imports the tiers while redis-server starts
            env = self._environment({"NICEGUI_STORAGE_PATH": str(self.folder / "nicegui")})
            self._fork_server = ForkServer(env, self.folder / "logs" / "fork-server.log", self._modules.preloaded)

    def start_beside(self, name: str, module: str, inherited: Mapping[str, int]) -> Process:
        """Start a process that is none of the topology's and ends by itself; the arguments are those of `execute`."""
        return self._launch(name, module, self._environment({}), inherited)

    def _start(self) -> None:
        from strata.launcher.redis_server import start_redis

        self.prepare()
        lasting, folder = self._lasting, self.folder / "redis"  # both ways lose nothing if a process is killed
        self._redis = start_redis(folder, fsync="always" if lasting else "no", users=self.secure)
        self._start_cloud()
        for name in self.edge_names:
            self._start_edge(name)
        for index in self._order:
            self._start_agent(f"agent-{index + 1}", self.devices_per_agent[index], self._profiles[index])

    def stop(self) -> None:
        """End all processes and remove a folder of its own that no run needs; does nothing if nothing runs.

        The cloud ends first: it decides rounds and would otherwise record the end of the others as lost work. A
        signal that arrives meanwhile waits. Runs that had not ended are recorded as stopped, with the reason.
        """
        with postponed():
            self.url, why = "", self._why_it_ends()
            cloud = [process for name, process in self._processes.items() if name == "cloud"]
            others = [process for name, process in self._processes.items() if name != "cloud"]
            end_all(cloud, _GRACE_S)
            end_all(others, _GRACE_S)
            self._processes.clear()
            if self._fork is True and self._fork_server is not None:
                self._fork_server.close()
                self._fork_server = None
            if self._redis is not None:
                self._redis.stop()
                self._redis = None
            if self._work is not None:
                self._work.close(keep=bool(local_state.unfinished(self._work.path, why)))
                self._work = None

    def _why_it_ends(self) -> str:
        """What ends it: a process without which nothing goes on, or the launcher."""
        try:
            self.check_vital()
        except ProcessDied as died:
            return died.how
        return "the program that ran it has ended"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- state

    @property
    def folder(self) -> Path:
        """The folder of state and logs.

        Raises:
            NotFound: the topology has not been started.
        """
        if self._work is None:
            raise NotFound("the topology has not been started")
        return self._work.path

    @property
    def processes(self) -> dict[str, Process]:
        """The processes by name (`cloud`, `edge-1`, `agent-1` ...), without redis-server."""
        return dict(self._processes)

    @property
    def fork_server(self) -> ForkServer | None:
        """The server from which processes are forked; None while nothing runs, and if each is executed."""
        return self._fork_server

    @property
    def redis(self) -> RedisServer:
        """The redis-server of the cloud and the edges."""
        if self._redis is None:
            raise NotFound("the topology has not been started")
        return self._redis

    def dead(self) -> list[Process]:
        """The processes that ended by themselves."""
        return [process for process in self._processes.values() if process.returncode is not None]

    def check_vital(self) -> None:
        """Check what no run survives: Redis, the fork server and the cloud. A lost edge or agent only costs seats.

        Raises:
            ProcessDied: a process has ended; names the first one and quotes the end of its log.
        """
        if self._redis is not None and not self._redis.alive:  # checked first: the others may have ended because of it
            raise self._redis.death()
        if self._fork_server is not None and self._fork_server.process.returncode is not None:
            raise self._fork_server.process.death()
        cloud = self._processes.get("cloud")
        if cloud is not None and cloud.returncode is not None:
            raise cloud.death()

    def check(self) -> None:
        """Check that all processes run, as at the start.

        Raises:
            ProcessDied: a process has ended; names the first one and quotes the end of its log.
        """
        self.check_vital()
        for process in self.dead():
            raise process.death()

    def wait_ready(self, deadline_s: float = 120.0) -> TopologyInfo:
        """Wait until the cloud is ready and every edge and device has registered.

        Raises:
            ProcessDied: a process ended meanwhile.
            NotReady: the deadline passed; the message names the missing edges and agents.
        """
        deadline = time.monotonic() + deadline_s
        agents = self.agents()
        with TopologyClient(self.url, timeout_s=5.0, authority=self.authority_file, reconnect_s=0) as client:
            while True:
                self.check()
                info, missing = poll_topology(client, self.edge_names, agents)
                if info is not None and not missing:
                    return info
                if time.monotonic() > deadline:
                    raise NotReady(f"not ready after {deadline_s:g} s, missing: {'; '.join(missing)}")
                time.sleep(_POLL_S)

    def trim_logs(self) -> None:
        """Truncate the logs that have grown too long."""
        for process in self._processes.values():
            process.trim()

    def keep_logs(self, into: Path) -> None:
        """Copy the processes' logs into a folder that outlives the topology."""
        shutil.copytree(self.folder / "logs", into, dirs_exist_ok=True)

    def keep_state(self) -> Path:
        """Have its state outlive it in any case; returns the folder for `strata up --state-dir`."""
        if self._work is None:
            raise NotFound("the topology has not been started")
        return self._work.keep()

    # ---- changes while the topology runs

    def add_agent(self, devices: int = 1, profile: str = "standard") -> str:
        """Start one more agent and return its name. It registers like any other."""
        name = f"agent-{len(self.devices_per_agent) + 1}"
        self._start_agent(name, devices, profile)
        self.devices_per_agent.append(devices)  # after the start, which may fail
        self._profiles.append(profile)
        return name

    def add_edge(self) -> str:
        """Start one more edge and return its name. It registers like any other."""
        name = f"edge-{len(self.edge_names) + 1}"
        self._start_edge(name)
        self.edge_names.append(name)  # after the start, which may fail
        return name

    def end(self, name: str, *, grace_s: float = 0.0) -> None:
        """End one process; without a grace period by SIGKILL. Its state stays in the folder."""
        process = self._processes[name]
        if not grace_s:
            process.signal(signal.SIGKILL)
            process.wait(_GRACE_S)
        end_all([process], grace_s)

    def agents(self) -> dict[str, int]:
        """The number of devices of each agent by name, including agents that have ended."""
        return {f"agent-{index + 1}": devices for index, devices in enumerate(self.devices_per_agent)}

    def retire(self, names: Sequence[str]) -> None:
        """End processes on purpose, so that `dead` does not list them. Their state stays for `start_again`."""
        end_all([self._processes[name] for name in names], _GRACE_S)
        for name in names:
            del self._processes[name]

    def start_again(self, name: str) -> None:
        """Start a process again with its old state; the cloud also gets its old port."""
        if name in self._processes:
            self.end(name)
        if name == "cloud":
            self._start_cloud()
        elif name in self.edge_names:
            self._start_edge(name)
        else:
            index = int(name.rpartition("-")[2]) - 1
            self._start_agent(name, self.devices_per_agent[index], self._profiles[index])

    # ---- processes

    def _start_cloud(self) -> None:
        env = {"CLOUD_REDIS_URL": self.redis.url, "CLOUD_RUNS_DIR": str(self._runs_dir)}
        self._spawn("cloud", "CLOUD", self._modules.cloud, env, port=self.ports.get("cloud", self._port))
        self.url = f"{'https' if self.secure else 'http'}://{in_url(self._host)}:{self.ports['cloud']}"

    def _start_edge(self, name: str) -> None:
        env = {"EDGE_NAME": name, "EDGE_CLOUD_URL": self.url, "EDGE_REDIS_URL": self.redis.url}
        self._spawn(name, "EDGE", self._modules.edge, env)

    def _start_agent(self, name: str, devices: int, profile: str) -> None:
        env = {"AGENT_NAME": name, "AGENT_CLOUD_URL": self.url, **self._gpus(int(name.rpartition("-")[2]) - 1)}
        self._spawn(name, "AGENT", self._modules.agent, env | {"AGENT_DEVICES": str(devices), "AGENT_PROFILE": profile})

    def _spawn(self, name: str, tier: str, module: str, env: Mapping[str, str], port: int = 0) -> None:
        """Start a process on a socket bound here: so its port is known and no other program can take it."""
        own = {f"{tier}_HOST": self._host, f"{tier}_STATE_DIR": str(self.folder / name)}
        certificates = self._authority.variables(tier) if self.secure else {}
        everything = self._environment({**env, **own, **certificates, **self._env_of.get(name, {})})
        if tier == "AGENT" and everything.get("AGENT_CONNECT") == "up":
            self._processes[name] = self._launch(name, module, everything, {})
            return
        with listening(self._host, port) as listener:
            self.ports[name] = listener.getsockname()[1]
            at = everything | {f"{tier}_PORT": str(self.ports[name])}
            self._processes[name] = self._launch(name, module, at, {f"{tier}_FD": listener.fileno()})

    def _launch(self, name: str, module: str, env: Mapping[str, str], inherited: Mapping[str, int]) -> Process:
        server = self._fork_server
        start = server.start if server is not None and server.can_start(env) else execute
        return start(name, module, env, self.folder / "logs" / f"{name}.log", inherited)

    @property
    def authority_file(self) -> Path | None:
        """The certificate of the authority that signs the cloud's; None unless nodes show certificates."""
        return self._authority.file if self.secure else None

    def join_token(self, node_class: NodeClass) -> str:
        """The join token of a class of nodes."""
        return self._authority.join_token(node_class)

    @property
    def _authority(self) -> Authority:
        return Authority(self.folder / "authority")

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment that all processes of this topology share, updated with `more`."""
        fsync = {"STRATA_FSYNC": "1" if self._lasting else "0"}
        return environment.common({**fsync, **self._env, **more}, self.tier_token)
