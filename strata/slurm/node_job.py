"""A task of the array of edges or agents: starts its tiers, follows the core to where it listens, and hands over.

    python -m strata.slurm.node_job edges|agents FOLDER

Names and folders of state follow from the task's index, so that a task that begins anew, on whichever node, is itself.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from shared.core.errors import BadInput, StrataError
from strata.launcher.gpus import shared_gpus
from strata.launcher.process import Process, end_all, execute
from strata.launcher.upkeep import Upkeep
from strata.slurm.commands import Slurm
from strata.slurm.deployment import Address, Deployment
from strata.slurm.host import Signals, address_towards, job_id, say, tier_environment, told
from strata.slurm.options import AGENTS, CORE, EDGES

_LOOK_S = 1.0
_GRACE_S = 5.0
_PROBE_EVERY_S, _PROBE_S = 10.0, 2.0
_HELPERS = 3
"""How many edges look after the core's job while no cloud answers; more would only ask Slurm more often."""
_STEADY_S = 15.0
"""Seconds after which the cloud has heard of tiers that were started, and counts those before them as gone."""


class Tiers:
    """The edge of a task, or its agents.

    Args:
        deployment: to which they belong.
        kind: of the task.
        index: of the task in its array.
    """

    def __init__(self, deployment: Deployment, kind: str, index: int) -> None:
        self.deployment, self.kind = deployment, kind
        self.names = deployment.options.names(kind, index)
        self.core: Address | None = None
        self._running: dict[str, Process] = {}
        self._gpus = shared_gpus(os.environ, deployment.options.agents_per_gpu if kind == AGENTS else 0)

    def follow(self, core: Address) -> None:
        """Have them work for this core; those that worked for another are started anew."""
        self.stop()
        self.core = core
        say(f"{', '.join(self.names)} for the cloud at {core.url}, which runs on {core.node}")
        for name in self.names:
            self.start_again(name)

    def check_vital(self) -> None:
        """Nothing here is vital: each of them is started again."""

    def dead(self) -> list[Process]:
        """Those that ended by themselves."""
        return [process for process in self._running.values() if process.returncode is not None]

    def start_again(self, name: str) -> None:
        """Start one of them, with the state that it had."""
        assert self.core is not None  # noqa: S101 - `follow` sets it
        core, edge = self.core, self.kind == EDGES
        tier, options = "EDGE" if edge else "AGENT", self.deployment.options
        address = address_towards(str(urlsplit(core.url).hostname))
        own = {f"{tier}_NAME": name, f"{tier}_CLOUD_URL": core.url}
        if edge:
            own["EDGE_REDIS_URL"] = core.redis
        else:
            own |= {"AGENT_DEVICES": str(options.devices_per_agent), "AGENT_PROFILE": options.profile}
            own |= self._gpus(self.names.index(name))
        env = {**tier_environment(self.deployment, tier, address, name), **own}
        log = self.deployment.folder / "logs" / f"{name}.log"
        self._running[name] = execute(name, "edge_server" if edge else "device_agent", env, log)

    def trim_logs(self) -> None:
        """Truncate the logs that have grown too long."""
        for process in self._running.values():
            process.trim()

    def stop(self) -> None:
        """End them; their state stays."""
        end_all(self._running.values(), _GRACE_S)
        self._running.clear()


class Idle:
    """How long no cloud has answered.

    Args:
        limit_s: seconds after which the job ends.
        hasten: is called now and then while none answers.
    """

    def __init__(self, limit_s: float, hasten: Callable[[], None] = lambda: None) -> None:
        self._limit_s, self._hasten = limit_s, hasten
        self._heard, self._due = time.monotonic(), 0.0

    def is_over(self, core: Address | None) -> bool:
        """Whether none has for too long; it is asked now and then."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _PROBE_EVERY_S
            if core is not None and _answers(core.url):
                self._heard = now
            else:
                self._hasten()
        return now - self._heard > self._limit_s


def _answers(url: str) -> bool:
    at = urlsplit(url)
    try:
        with socket.create_connection((str(at.hostname), at.port), _PROBE_S):
            return True
    except OSError:
        return False


def serve(deployment: Deployment, kind: str, index: int, signals: Signals) -> None:
    """Serve until a signal ends the job, its time limit is near, or no cloud has answered for too long."""
    options, task = deployment.options, f"{kind}-{index}"
    tiers = Tiers(deployment, kind, index)
    helps = options.hasten and kind == EDGES and index <= _HELPERS
    idle = Idle(options.idle_s, partial(_hasten_core, deployment) if helps else lambda: None)
    upkeep, began = Upkeep(tiers, lambda error: say(error.detail)), 0.0
    try:
        while not signals.ended and not signals.near_end:
            core = deployment.address()
            if core is not None and (tiers.core is None or _place(core) != _place(tiers.core)):
                tiers.follow(core)
                began = time.monotonic()
            if idle.is_over(core):
                say(f"no cloud has answered for {options.idle_s:g} s: the job ends, so that it holds no node in vain")
                return
            upkeep.look()
            tiers.trim_logs()
            if began and time.monotonic() - began > _STEADY_S and deployment.handing_over(task) is not None:
                deployment.hand_over(task, "back")
                began = 0.0
            time.sleep(_LOOK_S)
        if signals.near_end and not signals.ended and not deployment.ended:
            _hand_over(deployment, task, signals)
    finally:
        tiers.stop()


def _hasten_core(deployment: Deployment) -> None:
    """Have the core's job, if Slurm has put it back into the queue, begin as soon as it is its turn."""
    slurm = Slurm(deployment.note.slurm_bin)
    try:
        for job in slurm.jobs([deployment.job_name(CORE)]):
            if job.is_delayed:
                slurm.hasten(job.id)
                say(f"the core's job {job.id} is to begin at once")
    except StrataError as error:
        say(f"the core's job is not hastened: {error.detail}")


def _place(core: Address) -> tuple[str, str]:
    return core.url, core.redis


def _hand_over(deployment: Deployment, task: str, signals: Signals) -> None:
    """Have the core pause its runs, and put the task back into the queue."""
    say("the time limit is near: the task goes back into the queue once runs have paused")
    deployment.hand_over(task, "leaving")
    deadline = time.monotonic() + deployment.options.hand_over_s
    while deployment.paused() is None and time.monotonic() < deadline and not signals.ended:
        time.sleep(_LOOK_S)
    try:
        Slurm(deployment.note.slurm_bin).requeue(job_id())
    except StrataError as error:
        say(f"{error.detail}; the fleet starts the task again")


def main() -> None:
    """Serve the deployment whose folder is the second argument."""
    signals = Signals()
    signals.heed()
    with told():
        kind, index = sys.argv[1], os.environ.get("SLURM_ARRAY_TASK_ID", "")
        if kind not in (EDGES, AGENTS) or not index.isdecimal() or int(index) < 1:
            raise BadInput(f"not a task of an array of edges or agents: {kind!r}, SLURM_ARRAY_TASK_ID={index!r}")
        serve(Deployment.open(Path(sys.argv[2])), kind, int(index), signals)


if __name__ == "__main__":
    main()
