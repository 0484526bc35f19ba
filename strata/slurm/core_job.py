"""The job of the core: Redis, the cloud, and the fleet that submits and ends the other jobs.

    python -m strata.slurm.core_job FOLDER

Its state is on the shared disk, so that the next job, on whichever node, goes on where this one ended: runs that
trained go on by themselves from their last round. Near its time limit the job submits the next one and pauses the runs.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from shared.core.addresses import in_url
from shared.core.errors import BadInput, StrataError
from strata.launcher.environment import listening
from strata.launcher.process import Process, ProcessDied, end_all, execute
from strata.launcher.redis_server import Listening, RedisServer, RedisServerFailed, start_redis
from strata.launcher.upkeep import Upkeep
from strata.slurm.commands import Slurm
from strata.slurm.connection import client_of
from strata.slurm.deployment import REDIS_PASSWORD, Address, Deployment
from strata.slurm.fleet import fleet_of
from strata.slurm.handing_over import Pauses
from strata.slurm.host import Signals, job_id, own_address, say, tier_environment, told
from strata.slurm.options import CORE

_LOOK_S, _TURN_S = 0.5, 2.0
_GRACE_S = 5.0
_LOCK_S = 180.0
"""Longest wait for the lock of Redis' folder: a file server keeps that of a dead node for a while."""
_TRIES, _RESTARTS = 5, 10


class Core:
    """Redis and the cloud of a deployment, on the node of this job.

    Args:
        deployment: whose core it is.
        address: of this node.
    """

    def __init__(self, deployment: Deployment, address: str) -> None:
        self.deployment, self._host = deployment, address
        before = deployment.address()
        self._before = before if before is not None and urlsplit(before.url).hostname == address else None
        self.redis: RedisServer | None = None
        self.cloud: Process | None = None
        self.url = ""

    def start(self) -> Address:
        """Start both, on the ports that they had before on this node if these are free, and let others find them."""
        self.redis = self._start_redis()
        self.start_again("cloud")
        here = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        address = Address(url=self.url, redis=self.redis.url, node=here, job=job_id())
        self.deployment.announce(address)
        say(f"cloud at {self.url}, Redis at {self.redis.url}, on {here}")
        return address

    def _start_redis(self) -> RedisServer:
        password, folder = self.deployment.secret(REDIS_PASSWORD), self.deployment.folder / "redis"
        port = (self._before and urlsplit(self._before.redis).port) or 0
        for _ in range(_TRIES):
            try:
                with listening(self._host, port) as probe:
                    port = probe.getsockname()[1]
                return start_redis(folder, network=Listening(self._host, port, password), deadline_s=_LOCK_S)
            except (BadInput, RedisServerFailed) as error:  # another program has taken the port meanwhile
                say(f"Redis does not start on port {port}: {error.detail}")
                port = 0
        raise RedisServerFailed(f"Redis did not start in {_TRIES} attempts; {folder / 'redis.log'} says why")

    # ---- what `Upkeep` looks after

    def check_vital(self) -> None:
        """Check that Redis runs, without which nothing goes on.

        Raises:
            ProcessDied: it has ended.
        """
        if self.redis is not None and not self.redis.alive:
            raise self.redis.death()

    def dead(self) -> list[Process]:
        """The cloud, if it has ended by itself."""
        return [self.cloud] if self.cloud is not None and self.cloud.returncode is not None else []

    def start_again(self, name: str) -> None:
        """Start the cloud, on the port that it had before.

        Raises:
            BadInput: another program has the port at which all others of this job know the cloud.
        """
        assert self.redis is not None  # noqa: S101 - it is started first
        before = self.url or (self._before.url if self._before else "")
        folder = self.deployment.folder
        with self._listening(urlsplit(before).port or 0) as listener:
            self.url = f"http://{in_url(self._host)}:{listener.getsockname()[1]}"
            more = {
                "CLOUD_REDIS_URL": self.redis.url,
                "CLOUD_RUNS_DIR": self.deployment.note.runs_dir,
                "NICEGUI_STORAGE_PATH": str(folder / "nicegui"),
            }
            env = {**tier_environment(self.deployment, "CLOUD", self._host, "cloud"), **more}
            inherited = {"CLOUD_FD": listener.fileno()}
            self.cloud = execute(name, "cloud_server", env, folder / "logs" / "cloud.log", inherited)

    def _listening(self, port: int) -> socket.socket:
        try:
            return listening(self._host, port)
        except BadInput:
            if self.url:
                raise
            return listening(self._host, 0)

    def stop(self) -> None:
        """End the cloud, then Redis."""
        if self.cloud is not None:
            end_all([self.cloud], _GRACE_S)
        if self.redis is not None:
            self.redis.stop()


def serve(deployment: Deployment, signals: Signals) -> None:
    """Serve until a signal ends the job, or its time limit is near."""
    slurm = Slurm(deployment.note.slurm_bin)
    core = Core(deployment, own_address(deployment.options.network, slurm))
    try:
        address, upkeep = core.start(), Upkeep(core, lambda error: say(error.detail))
        with (
            client_of(deployment, address, 0.0) as client,
            fleet_of(deployment, slurm, client) as fleet,
        ):
            pauses, due = Pauses(deployment, client, say), 0.0
            while not signals.ended and not signals.near_end:
                upkeep.look()
                if time.monotonic() >= due:
                    fleet.look(lambda: signals.ended)
                    pauses.look()
                    due = time.monotonic() + _TURN_S
                time.sleep(_LOOK_S)
            if signals.near_end and not signals.ended and not deployment.ended:
                _hand_over(deployment, slurm, pauses, signals)
    finally:
        core.stop()


def _hand_over(deployment: Deployment, slurm: Slurm, pauses: Pauses, signals: Signals) -> None:
    """Submit the next job of the core, which begins when this one has ended, and pause the runs."""
    script = deployment.folder / "jobs" / f"{CORE}.sh"
    try:
        following = slurm.submit(script, f"--dependency=afterany:{job_id()}")
        say(f"the time limit is near: job {following} goes on")
    except StrataError as error:
        say(f"the time limit is near, and no next job could be submitted: {error.detail}")
    pauses.pause_until(time.monotonic() + deployment.options.hand_over_s, lambda: signals.ended)


def main() -> None:
    """Serve the deployment whose folder is the argument."""
    signals = Signals()
    signals.heed()
    with told():
        deployment = Deployment.open(Path(sys.argv[1]))
        os.environ.update(deployment.note.env)
        try:
            serve(deployment, signals)
        except (ProcessDied, RedisServerFailed) as died:
            say(died.detail)
            if not deployment.ended and not signals.ended and int(os.environ.get("SLURM_RESTART_COUNT", 0)) < _RESTARTS:
                Slurm(deployment.note.slurm_bin).requeue(job_id())
            raise


if __name__ == "__main__":
    main()
