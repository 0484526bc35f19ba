"""The fleet of a deployment: starts and stops its jobs of edges and agents as the cloud asks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from shared.core.errors import Conflict, StrataError
from strata.api.client import Client
from strata.fleet.cloud_client import CloudClient
from strata.fleet.plan import EDGES as EDGE_SERVICE_OF
from strata.fleet.plan import Agent, Service
from strata.fleet.reconciler import Fleet
from strata.fleet.settings import DrainSettings
from strata.slurm.commands import Slurm
from strata.slurm.deployment import TIER_TOKEN, Deployment
from strata.slurm.options import AGENTS, EDGES, LARGEST_ARRAY
from strata.slurm.queue import Job

log = logging.getLogger(__name__)
SERVICE, EDGE_SERVICE = "device", "edge"
_KINDS = {SERVICE: AGENTS, EDGE_SERVICE: EDGES}


class SlurmJobs:
    """An `AgentBackend` whose agents are those of tasks of arrays; a task of agents hosts several, which end together.

    A task that waits for its turn counts as running: it is not submitted twice.

    Args:
        deployment: whose jobs they are; no other job is touched.
        slurm: Slurm's commands.
        clock: monotonic seconds; decides when the queue is read again.
    """

    def __init__(self, deployment: Deployment, slurm: Slurm, clock: Callable[[], float] = time.monotonic) -> None:
        self._deployment, self._slurm, self._clock = deployment, slurm, clock
        self._due = 0.0
        self._names = {deployment.job_name(kind): kind for kind in (EDGES, AGENTS)}
        self._jobs: dict[str, Job] = {}
        self._hastened: set[str] = set()

    def services(self) -> dict[str, Service]:
        """The devices, of which a job of agents hosts a fixed number; and the edges."""
        return {SERVICE: Service(each=self._deployment.options.devices_per_node), EDGE_SERVICE: EDGE_SERVICE_OF}

    def agents(self) -> list[Agent]:
        """The edges and agents of all tasks that have not ended, those that wait among them."""
        if self._clock() >= self._due:
            found = self._slurm.jobs(self._names)
            self._jobs = {self._task(job): job for job in found}
            self._due = self._clock() + self._deployment.options.every_s
            if self._deployment.options.hasten:
                self._hasten(found)
        return [agent for task, job in sorted(self._jobs.items()) for agent in self._agents_of(task, job)]

    def _task(self, job: Job) -> str:
        return f"{self._names[job.name]}-{job.index}"

    def _agents_of(self, task: str, job: Job) -> list[Agent]:
        options, kind = self._deployment.options, self._names[job.name]
        if kind == EDGES:
            return [Agent(options.edge_name(job.index), EDGE_SERVICE, 1, job.index, task)]
        each, names = options.devices_per_agent, options.agent_names(job.index)
        return [Agent(name, SERVICE, each, int(name.rpartition("-")[2]), task) for name in names]

    def _hasten(self, jobs: Sequence[Job]) -> None:
        """Have tasks of dead and pre-empted nodes begin at once."""
        for job in jobs:
            if job.is_delayed and job.id not in self._hastened:
                self._slurm.hasten(job.id)
                self._hastened.add(job.id)
        self._hastened &= {job.id for job in jobs if job.waits}

    def check(self, n: int) -> None:
        """Check that jobs may be submitted.

        Raises:
            Conflict: the deployment is being stopped.
        """
        if n and self._deployment.ended:
            raise Conflict(f"the deployment {self._deployment.options.name} is being stopped")

    def start(self, service: str, devices: int) -> str:
        """Submit the first task of the array that is not in the queue, and return the name of its first node."""
        kind = _KINDS[service]
        index = next(at for at in range(1, LARGEST_ARRAY + 2) if f"{kind}-{at}" not in self._jobs)
        if index > LARGEST_ARRAY:
            raise Conflict(f"an array has at most {LARGEST_ARRAY} tasks")
        number = submit(self._deployment, self._slurm, kind, str(index))
        job = Job(f"{number}_{index}", self._deployment.job_name(kind), index, "PENDING")
        self._jobs[self._task(job)] = job
        return self._deployment.options.names(kind, index)[0]

    def stop(self, agents: Sequence[Agent]) -> None:
        """Cancel the tasks of agents, which are listed until they have ended."""
        self._due = 0.0
        tasks = sorted({agent.together for agent in agents})
        self._slurm.cancel([self._jobs[task].id for task in tasks if task in self._jobs])


def submit(deployment: Deployment, slurm: Slurm, kind: str, indices: str) -> str:
    """Submit tasks of the array of a kind, such as `1-8`, and return the number of the job."""
    return slurm.submit(deployment.folder / "jobs" / f"{kind}.sh", f"--array={indices}")


class SlurmFleet:
    """The fleet, which at the start of a deployment asks for the numbers of devices and edges that this began with.

    Args:
        fleet: the fleet's loop.
        client: of the cloud, as a user.
        deployment: whose fleet it is.
    """

    def __init__(self, fleet: Fleet, client: Client, deployment: Deployment) -> None:
        self._fleet, self._client, self._deployment = fleet, client, deployment

    def look(self, ended: Callable[[], bool]) -> None:
        """Compare what runs with what is wanted, and start or stop jobs."""
        self._fleet.settle(ended)
        if not self._deployment.begun:
            try:
                self._begin()
            except StrataError as error:
                log.warning("the numbers of devices and edges are not set yet: %s", error.detail)

    def _begin(self) -> None:
        """Ask for the numbers of this deployment, once the cloud has heard of the fleet."""
        if self._client.topology().fleet is None:
            return
        options = self._deployment.options
        self._client.scale(options.nodes * options.devices_per_node)
        try:
            self._client.scale(edges=options.edges)
        except Conflict as error:  # a run of an earlier deployment of this name needs more
            log.warning("the number of edges stays: %s", error.detail)
        self._deployment.begin()


@contextmanager
def fleet_of(deployment: Deployment, slurm: Slurm, client: Client) -> Iterator[SlurmFleet]:
    """The fleet of a deployment, which reports to a client's cloud; the numbers last asked for hold on."""
    name, backend = f"slurm-{deployment.options.name}"[:64], SlurmJobs(deployment, slurm)
    with CloudClient(client.url, deployment.secret(TIER_TOKEN)) as cloud:
        yield SlurmFleet(Fleet(name, backend, cloud, drain_s=DrainSettings().drain_s), client, deployment)
