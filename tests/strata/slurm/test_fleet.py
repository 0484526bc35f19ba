"""The fleet of jobs: what counts as running, what is submitted, and that jobs of agents end as a whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.core.errors import Conflict
from strata.api.client import Client
from strata.fleet.reconciler import Fleet
from strata.slurm.commands import Slurm
from strata.slurm.deployment import Deployment
from strata.slurm.fleet import EDGE_SERVICE, SERVICE, SlurmFleet, SlurmJobs
from strata.slurm.queue import Job
from tests.strata.fleet.test_reconciler import FakeCloud
from tests.strata.slurm.made import deployment


class FakeSlurm(Slurm):
    """A queue in memory, in which what is submitted waits, and what is cancelled is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Job] = []
        self.did: list[str] = []

    def jobs(self, names: Collection[str]) -> list[Job]:
        return [job for job in self.queue if job.name in names]

    def submit(self, script: Path, *options: str, wait_s: float | None = None) -> str:
        kind, index = script.stem, int(options[0].removeprefix("--array="))
        self.did.append(f"submit {kind} {index}")
        self.add(kind, index, "PENDING")
        return "9"

    def add(self, kind: str, index: int, state: str, reason: str = "") -> None:
        self.queue.append(Job(f"{kind}_{index}", f"strata-default-abc-{kind}", index, state, "", reason))

    def cancel(self, jobs: Sequence[str]) -> None:
        self.did.append(f"cancel {' '.join(jobs)}")
        self.queue = [job for job in self.queue if job.id not in jobs]

    def hasten(self, job: str) -> None:
        self.did.append(f"hasten {job}")


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


def test_tasks_that_wait_count_and_each_has_all_its_agents(tmp_path: Path, slurm: FakeSlurm) -> None:
    jobs = SlurmJobs(deployment(tmp_path, agents_per_node=2, devices_per_agent=3), slurm)
    slurm.add("agents", 2, "PENDING", "Priority")
    slurm.add("edges", 1, "RUNNING")
    found = jobs.agents()
    assert [(agent.name, agent.service, agent.devices, agent.together) for agent in found] == [
        ("agent-3", SERVICE, 3, "agents-2"),
        ("agent-4", SERVICE, 3, "agents-2"),
        ("edge-1", EDGE_SERVICE, 1, "edges-1"),
    ]
    assert jobs.services()[SERVICE].each == 6
    assert jobs.services()[EDGE_SERVICE].edges


def test_the_first_index_that_is_not_in_the_queue_is_submitted(tmp_path: Path, slurm: FakeSlurm) -> None:
    jobs = SlurmJobs(deployment(tmp_path), slurm)
    slurm.add("agents", 1, "RUNNING")
    slurm.add("agents", 3, "PENDING")
    jobs.agents()
    assert [jobs.start(SERVICE, 1), jobs.start(SERVICE, 1), jobs.start(EDGE_SERVICE, 1)] == [
        "agent-2",
        "agent-4",
        "edge-1",
    ]
    assert slurm.did == ["submit agents 2", "submit agents 4", "submit edges 1"]


def test_tasks_put_back_into_the_queue_are_hastened_once_where_the_user_asks(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.add("edges", 1, "PENDING", "BeginTime")
    slurm.add("edges", 2, "PENDING", "Resources")
    patient = SlurmJobs(deployment(tmp_path), slurm)
    patient.agents()
    assert slurm.did == []
    hasty = SlurmJobs(deployment(tmp_path / "hasty", hasten=True), slurm)
    hasty.agents()
    hasty.agents()
    assert slurm.did == ["hasten edges_1"]


def test_nothing_is_submitted_once_the_deployment_is_being_stopped(tmp_path: Path, slurm: FakeSlurm) -> None:
    made = deployment(tmp_path)
    jobs = SlurmJobs(made, slurm)
    jobs.check(1)
    made.end()
    with pytest.raises(Conflict, match="is being stopped"):
        jobs.check(1)
    jobs.check(0)


def test_a_job_of_agents_ends_only_once_no_round_needs_any_of_them(tmp_path: Path, slurm: FakeSlurm) -> None:
    made = deployment(tmp_path, agents_per_node=2)
    for index in (1, 2):
        slurm.add("agents", index, "RUNNING")
    cloud = FakeCloud(device=2)
    cloud.needed = {"agent-4"}
    fleet = Fleet("slurm", SlurmJobs(made, slurm), cloud)
    fleet.settle()
    fleet.settle()
    assert cloud.last().leaving == ("agent-3", "agent-4")
    assert slurm.did == []
    cloud.needed = set()
    fleet.settle()
    assert slurm.did == ["cancel agents_2"]
    assert cloud.last().left == ("agent-3", "agent-4")


class FakeUser:
    """A user's client of a cloud, which knows the fleet from the second question on."""

    def __init__(self, *, needs_edges: bool = False) -> None:
        self.asked, self.did, self.needs_edges = 0, list[tuple[int | None, int | None]](), needs_edges

    def topology(self) -> Any:
        self.asked += 1
        return SimpleNamespace(fleet="slurm" if self.asked > 1 else None)

    def scale(self, devices: int | None = None, edges: int | None = None) -> None:
        if edges is not None and self.needs_edges:
            raise Conflict("of 3 edges 3 are needed")
        self.did.append((devices, edges))


@pytest.mark.parametrize("needs_edges", [False, True])
def test_the_cloud_is_told_once_with_how_many_a_deployment_begins(
    tmp_path: Path, slurm: FakeSlurm, needs_edges: bool
) -> None:
    made = deployment(tmp_path, nodes=2, agents_per_node=3, edges=4)
    user, loop = FakeUser(needs_edges=needs_edges), Fleet("slurm", SlurmJobs(made, slurm), FakeCloud())
    fleet = SlurmFleet(loop, cast("Client", user), made)
    for _ in range(3):
        fleet.look(lambda: False)
    assert user.did == ([(6, None)] if needs_edges else [(6, None), (None, 4)])
    assert made.begun
    SlurmFleet(loop, cast("Client", user), Deployment.open(made.folder)).look(lambda: False)
    assert user.asked == 2
