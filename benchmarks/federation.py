"""A run in a local topology of real processes, one round at a time, so that variants can take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.forking import fork_server
from benchmarks.loops import LR, Job
from shared.run_records.events import Event
from strata.api.client import Client
from strata.launcher.environment import Modules
from strata.launcher.topology import Topology

NEVER = 100_000
"""Rounds of a run and rounds between evaluations: more than any benchmark reaches."""
READY_S = 300.0
ROUND_S = 600.0


def spec_of(job: Job) -> dict[str, Any]:
    """The spec of a run with the same training as a loop: two edges, all devices take part, one epoch."""
    return {
        "data": job.data,
        "model": job.model,
        "num_edges": 2,
        "num_devices": job.n_devices,
        "batch_size": job.batch_size,
        "lr": LR,
    }


class Federation:
    """A paused run that trains one round on demand.

    Args:
        topology: a started topology that is ready.
        client: client of its cloud.
        spec: spec of the run; its evaluations and its end are postponed.

    Attributes:
        measured: begin and end (monotonic seconds) of the round that was measured last.
        first_s: seconds from the submission to the end of the first round.
    """

    def __init__(self, topology: Topology, client: Client, spec: Mapping[str, Any]) -> None:
        self.topology, self.client = topology, client
        endless = {**spec, "num_rounds": NEVER, "eval_every": NEVER}
        self._seen: str | None = None
        self.measured = (0.0, 0.0)
        began = time.monotonic()
        self._run = client.create_run(endless).run
        self._until(_is_commit)
        self.first_s = time.monotonic() - began
        self._pause()

    def round(self) -> float:
        """Train one round; returns the seconds from one commit to the next, including the previous results folder.

        The cost of resuming and pausing falls into the rounds before and after.
        """
        self.client.resume(self._run)
        return self._one_round()

    def _one_round(self) -> float:
        self._until(_is_commit)
        began = time.monotonic()
        self._until(_is_commit)
        self.measured = (began, time.monotonic())
        self._pause()
        return self.measured[1] - began

    def _pause(self) -> None:
        self.client.pause(self._run)
        self._until(lambda event: event.data.get("status") == "paused")

    def n_rounds(self) -> int:
        """Rounds trained so far, also those between measured ones."""
        return self.client.run(self._run).rounds

    def check_work(self, job: Job) -> None:
        """Check that the newest round did the job's work; steps follow from samples and the spec's batch size.

        Raises:
            RuntimeError: other devices took part, or with other numbers of samples.
        """
        visits = self.client.round(self._run, self.n_rounds()).seats
        found = [visit.n_samples for visit in visits if visit.outcome == "used"]
        if found != [job.n_samples] * job.n_devices:
            raise RuntimeError(f"{len(found)} devices trained, with {sorted(set(found))} samples: not {job.work}")

    def _until(self, wanted: Callable[[Event], bool]) -> None:
        """Wait for the next matching event.

        Raises:
            RuntimeError: the run failed or lost a contribution, or the time ran out.
        """
        ends = time.monotonic() + ROUND_S
        for event in self.client.events(self._run, after=self._seen):
            self.topology.check()
            if time.monotonic() > ends:
                raise RuntimeError(f"round not over after {ROUND_S:g} s")
            if event is None:
                continue
            self._seen = event.id
            if event.kind in ("contribution.lost", "run.status") and event.data.get("status") in (None, "failed"):
                raise RuntimeError(f"a measured round must not lose a contribution: {event.data}")
            if wanted(event):
                return

    def pids(self) -> list[int]:
        """Ids of all processes, Redis and the fork server included."""
        server = [] if self.topology.fork_server is None else [self.topology.fork_server.process]
        return [self.topology.redis.pid, *(each.pid for each in [*server, *self.topology.processes.values()])]


def _is_commit(event: Event) -> bool:
    return event.kind == "round.committed"


@contextmanager
def federation(
    folder: Path,
    spec: Mapping[str, Any],
    *,
    agents: int = 2,
    modules: Modules | None = None,
    env: Mapping[str, str] | None = None,
    fork: bool = True,
    secure: bool = False,
    data: Path | None = None,
) -> Iterator[Federation]:
    """A run of this spec on its own topology, after the first round.

    Args:
        folder: contains `data/` unless `data` is another folder; cache, state and results are written into it.
        spec: the spec, with its numbers of edges and devices.
        agents: number of agent processes that host the devices.
        modules: the module that runs for each tier.
        env: additional environment variables.
        fork: whether the processes are forked; otherwise each is executed.
        secure: whether nodes show certificates to each other.
        data: the folder of the data sets.
    """
    folders = {"STRATA_DATA_DIR": str(data or folder / "data"), "STRATA_CACHE_DIR": str(folder / "cache")}
    variables = {**folders, **(env or {})}
    with Topology(
        edges=spec["num_edges"],
        devices=spec["num_devices"],
        agents=agents,
        runs_dir=folder / "runs",
        modules=modules,
        fork=fork and fork_server(),
        secure=secure,
        env={**variables, "STRATA_PLUGINS": "benchmarks.algorithms"},
    ) as topology:
        topology.wait_ready(READY_S)
        with Client(topology.url, timeout_s=ROUND_S, authority=topology.authority_file) as client:
            yield Federation(topology, client, spec)
