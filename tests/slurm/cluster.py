"""A Slurm of this machine alone: munge, slurmctld and a slurmd for each node, in a network namespace of its own.

Nothing of it is the machine's: keys, sockets, ports, logs and spools lie in a folder, and namespaces, links and the
bridge have drawn names, so that several clusters may run beside each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.waits import Hang, until

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "ip", "nsenter", "setpriv")
CALL_S = 60.0
KILL_S = 5
END_S = 20.0


def why_not() -> str:
    """Why no cluster can be started here; empty if one can."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} on the path (apt-get install slurm-wlm munge iproute2 util-linux)"
    if os.getuid() != 0:
        return "network namespaces and slurmd need root"
    probe = f"sp{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, timeout=CALL_S, check=False)
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True, timeout=CALL_S)
    return ""


def call(*words: str, env: Mapping[str, str] | None = None, check: bool = True, limit_s: float = CALL_S) -> str:
    """What a command prints; if it fails, the test does, with what it says."""
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=limit_s, check=False, env={**os.environ, **(env or {})}
    )
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
    return done.stdout


class Cluster:
    """A running cluster; a context manager that starts it, and leaves nothing of it behind.

    Jobs of the partition `urgent` pre-empt those of `main`, which go back into the queue.

    Args:
        folder: of all its files; no other user may write to it or above it.
        nodes: how many nodes there are, `n1` and so on.
        cpus: of each node, as Slurm counts them.
    """

    def __init__(self, folder: Path, nodes: int = 3, cpus: int = 8) -> None:
        self.folder, self.cpus = folder, cpus
        self.nodes = [f"n{index + 1}" for index in range(nodes)]
        self._tag = secrets.token_hex(2)
        self._net = f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # ---- start and stop

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._link()
        self._munge()
        ports = _free_ports(f"{self._net}.1", 2)
        self.conf.write_text(self._configuration(*ports))
        self._daemon("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        for node in self.nodes:
            self.start_node(node)
        until("all nodes idle", lambda: self.states() == dict.fromkeys(self.nodes, "IDLE"), 60.0, meanwhile=self.check)

    def stop(self) -> None:
        """End all jobs and daemons, and remove the network."""
        if "slurmctld" in self._daemons:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, Hang):
                call("scancel", "--user", str(os.getuid()), env=self.env, check=False)
                until("no job", lambda: not self.jobs(), END_S)
        for name in reversed(list(self._daemons)):
            self._end(name)
        for node in self.nodes:
            self._end_jobs(node)
            call("ip", "netns", "del", self._space(node), check=False)
        call("ip", "netns", "del", self._switch, check=False)

    def check(self) -> None:
        """Fail if a daemon has ended."""
        for name, process in self._daemons.items():
            if process.poll() is not None:
                said = (self.folder / "logs" / f"{name}.log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"{name} ended: {said}")

    # ---- what a test does with it

    @property
    def conf(self) -> Path:
        """Its configuration."""
        return self.folder / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        """What Slurm's commands need to find it."""
        return {"SLURM_CONF": str(self.conf)}

    def address(self, node: str) -> str:
        """The address of a node."""
        return f"{self._net}.{11 + self.nodes.index(node)}"

    def states(self) -> dict[str, str]:
        """The state of each node."""
        rows = call("sinfo", "-h", "-N", "-o", "%N %T", env=self.env, check=False).splitlines()
        return {row.split()[0]: row.split()[1].upper().rstrip("*") for row in rows}

    def jobs(self) -> list[dict[str, str]]:
        """The jobs that have not ended: `id`, `name`, `state`, `node`, `index`, `reason`, `starts`."""
        form = "%i|%j|%T|%N|%K|%r|%A"
        rows = call("squeue", "-h", "-r", "-o", form, env=self.env, check=False).splitlines()
        keys = ("id", "name", "state", "node", "index", "reason", "job")
        return [dict(zip(keys, row.split("|"), strict=True)) for row in rows]

    def details(self, job: str) -> str:
        """What `scontrol show job` says."""
        return call("scontrol", "show", "job", "-d", job, env=self.env)

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        inside = ("nsenter", f"--net=/run/netns/{self._space(node)}")
        self._daemon(f"slurmd-{node}", *inside, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def kill_node(self, node: str) -> None:
        """Kill a node as a power cut does: its slurmd, every process of its jobs, and its link."""
        call("ip", "-n", self._switch, "link", "set", node, "down")
        daemon = self._daemons.pop(f"slurmd-{node}")
        daemon.kill()
        daemon.wait(END_S)
        self._end_jobs(node)

    def start_node_again(self, node: str) -> None:
        """Start a node that was killed, and wait until it takes jobs."""
        call("ip", "-n", self._switch, "link", "set", node, "up")
        self.start_node(node)
        until(f"{node} up", lambda: self.states()[node] in ("IDLE", "MIXED", "ALLOCATED"), 60.0, meanwhile=self.check)

    def inside(self, node: str) -> list[int]:
        """The processes in a node's namespace."""
        return [int(pid) for pid in call("ip", "netns", "pids", self._space(node), check=False).split()]

    # ---- its parts

    @property
    def _switch(self) -> str:
        """The namespace of the bridge: firewall rules of this machine, such as Docker's, do not hold there."""
        return f"s{self._tag}sw"

    def _space(self, node: str) -> str:
        return f"s{self._tag}{node}"

    def _link(self) -> None:
        """A bridge, to which this machine and a namespace for each node are linked."""
        switch, own = ("ip", "-n", self._switch), f"s{self._tag}up"
        call("ip", "netns", "add", self._switch)
        call(*switch, "link", "add", "bridge", "type", "bridge")
        call(*switch, "link", "set", "bridge", "up")
        call("ip", "link", "add", own, "type", "veth", "peer", "name", "host", "netns", self._switch)
        call("ip", "addr", "add", f"{self._net}.1/24", "dev", own)
        call("ip", "link", "set", own, "up")
        call(*switch, "link", "set", "host", "master", "bridge", "up")
        for node in self.nodes:
            space = self._space(node)
            within = ("ip", "-n", space)
            call("ip", "netns", "add", space)
            call(*switch, "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", space)
            call(*switch, "link", "set", node, "master", "bridge", "up")
            call(*within, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            call(*within, "link", "set", "eth0", "up")
            call(*within, "link", "set", "lo", "up")
            call(*within, "route", "add", "default", "via", f"{self._net}.1")

    def _munge(self) -> None:
        place = self.folder / "munge"
        place.mkdir(mode=0o755)
        key = place / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {"key-file": key, "seed-file": place / "seed", "pid-file": place / "pid", "log-file": place / "log"}
        words = [f"--{name}={path}" for name, path in files.items()]
        self._daemon("munged", "munged", "--foreground", "--force", f"--socket={self._munge_socket}", *words)
        until("munge's socket", self._munge_socket.exists, 20.0, meanwhile=self.check)

    @property
    def _munge_socket(self) -> Path:
        return self.folder / "munge" / "socket"

    def _configuration(self, port: int, node_port: int) -> str:
        host, folder = socket.gethostname().partition(".")[0], self.folder
        for name in ("state", "spool", "logs"):
            (folder / name).mkdir(exist_ok=True)
        lines = {
            "ClusterName": "tried",
            "SlurmctldHost": f"{host}({self._net}.1)",
            "SlurmctldPort": port,
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self._munge_socket}",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "StateSaveLocation": folder / "state",
            "SlurmdSpoolDir": folder / "spool" / "%n",
            "SlurmctldPidFile": folder / "slurmctld.pid",
            "SlurmdPidFile": folder / "slurmd-%n.pid",
            "SlurmctldLogFile": folder / "logs" / "slurmctld.log",
            "SlurmdLogFile": folder / "logs" / "slurmd-%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "JobAcctGatherType": "jobacct_gather/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU,CR_LLN",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_interval=2,bf_interval=2,batch_sched_delay=0",
            "SlurmdParameters": "config_overrides",
            "SlurmdTimeout": 10,
            "KillWait": KILL_S,
            "MinJobAge": 600,
            "ReturnToService": 2,
            "JobRequeue": 1,
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
        }
        text = [f"{name}={value}" for name, value in lines.items()]
        for index, node in enumerate(self.nodes):
            where = f"NodeHostname={host} NodeAddr={self.address(node)} Port={node_port + index}"
            text.append(f"NodeName={node} {where} CPUs={self.cpus} RealMemory=8000 State=UNKNOWN")
        text.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1")
        text.append("PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10")
        return "\n".join([*text, ""])

    def _daemon(self, name: str, *words: str) -> None:
        (self.folder / "logs").mkdir(exist_ok=True)
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**_plain_environment(), **self.env},
            )  # fmt: skip

    def _end(self, name: str) -> None:
        process = self._daemons.pop(name)
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_S)

    def _end_jobs(self, node: str) -> None:
        """End what runs in a node's namespace; nothing else does but its slurmd and its jobs."""
        ends = time.monotonic() + END_S
        while pids := self.inside(node):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > ends:
                raise Hang(f"{node} still runs {pids}")
            time.sleep(0.05)


def _plain_environment() -> dict[str, str]:
    """An environment as daemons have it: jobs inherit nothing of the test's."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}


def _free_ports(host: str, n: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets: Sequence[socket.socket] = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


def as_json(text: str) -> dict[str, Any]:
    """The object that a command printed."""
    found = json.loads(text)
    assert isinstance(found, dict)
    return found
