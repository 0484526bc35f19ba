"""Runs pause while jobs reach their time limit, and go on once all nodes are back, or have been waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.core.errors import Conflict, NotFound, StrataError, Unreachable
from strata.api.client import Client
from strata.slurm.deployment import Deployment
from strata.slurm.handing_over import Pauses
from tests.strata.slurm.made import deployment


@dataclass
class FakeCloud:
    """Runs and nodes by name, with their states."""

    statuses: dict[str, str]
    nodes: dict[str, str]
    did: list[str] = field(default_factory=list)
    away: bool = False
    refuses: dict[str, StrataError] = field(default_factory=dict)

    def runs(self, limit: int) -> list[Any]:
        if self.away:
            raise Unreachable("nobody answers")
        return [SimpleNamespace(run=run, status=status) for run, status in self.statuses.items()]

    def run(self, run: str) -> Any:
        return SimpleNamespace(run=run, status=self.statuses[run])

    def pause(self, run: str) -> None:
        self.did.append(f"pause {run}")
        self.statuses[run] = "pausing"

    def resume(self, run: str) -> None:
        if run in self.refuses:
            raise self.refuses[run]
        self.did.append(f"resume {run}")
        self.statuses[run] = "running"

    def topology(self) -> Any:
        named = [SimpleNamespace(name=name, state=state) for name, state in self.nodes.items()]
        return SimpleNamespace(edges=named, agents=[])


class Clock:
    """Unix seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def pauses(made: Deployment, cloud: FakeCloud, clock: Clock, said: list[str]) -> Pauses:
    return Pauses(made, cast("Client", cloud), said.append, clock)


def cloud_of(**nodes: str) -> FakeCloud:
    usual: Mapping[str, str] = {"edge-1": "alive", "agent-1": "alive"}
    return FakeCloud(
        {"r1": "running", "r2": "completed"}, {**usual, **{k.replace("_", "-"): v for k, v in nodes.items()}}
    )


def test_a_run_pauses_for_a_job_that_leaves_and_goes_on_once_it_is_back(tmp_path: Path) -> None:
    made, cloud, clock, said = deployment(tmp_path), cloud_of(), Clock(), list[str]()
    found = pauses(made, cloud, clock, said)
    found.look()
    assert cloud.did == []
    made.hand_over("edges-1", "leaving")
    found.look()
    found.look()
    assert cloud.did == ["pause r1"]
    assert made.paused() is None  # a round still trains
    cloud.statuses["r1"] = "paused"
    found.look()
    assert made.paused() == ("r1",)
    clock.now = made.all_handing_over()["edges-1"].since
    cloud.nodes["edge-1"] = "lost"
    found.look()
    made.hand_over("edges-1", "back")
    found.look()
    assert cloud.did == ["pause r1"]
    cloud.nodes["edge-1"] = "alive"
    found.look()
    assert cloud.did == ["pause r1", "resume r1"]
    assert made.paused() is None
    assert made.all_handing_over() == {}


def test_the_next_core_resumes_what_the_one_before_paused(tmp_path: Path) -> None:
    made, cloud, clock = deployment(tmp_path), cloud_of(agent_1="suspect"), Clock()
    made.note_paused(("r1", "r2"))
    cloud.statuses["r1"] = "paused"
    found = pauses(made, cloud, clock, [])
    found.look()
    assert cloud.did == []
    cloud.nodes["agent-1"] = "alive"
    found.look()
    assert cloud.did == ["resume r1"]


def test_a_node_that_does_not_come_back_is_waited_for_a_limited_time(tmp_path: Path) -> None:
    made, cloud, clock, said = deployment(tmp_path, return_s=60.0), cloud_of(edge_1="lost"), Clock(), list[str]()
    made.note_paused(("r1",))
    cloud.statuses["r1"] = "paused"
    found = pauses(made, cloud, clock, said)
    found.look()
    clock.now = 61.0
    found.look()
    assert cloud.did == ["resume r1"]
    assert said[0] == "edge-1 did not come back within 60 s: runs go on without"


@pytest.mark.parametrize("refusal", [NotFound("no run 'r1'"), Conflict("run r1 began with other data")])
def test_a_run_that_is_gone_or_refused_keeps_no_other_one_waiting(tmp_path: Path, refusal: StrataError) -> None:
    made, cloud, said = deployment(tmp_path), cloud_of(), list[str]()
    made.note_paused(("r1", "r3"))
    cloud.statuses.update(r1="paused", r3="paused")
    cloud.refuses = {"r1": refusal}
    pauses(made, cloud, Clock(), said).look()
    assert cloud.did == ["resume r3"]
    assert said == [f"run r1 does not go on: {refusal.detail}", "run r3 goes on"]
    assert made.paused() is None


def test_runs_stay_noted_while_the_cloud_does_not_answer(tmp_path: Path) -> None:
    made, cloud = deployment(tmp_path), cloud_of()
    made.note_paused(("r1",))
    cloud.statuses["r1"], cloud.refuses = "paused", {"r1": Unreachable("nobody answers")}
    found = pauses(made, cloud, Clock(), [])
    found.look()
    assert made.paused() == ("r1",)
    cloud.refuses = {}
    found.look()
    assert cloud.did == ["resume r1"]


def test_a_cloud_that_does_not_answer_is_said_and_asked_again(tmp_path: Path) -> None:
    made, cloud, said = deployment(tmp_path), cloud_of(), list[str]()
    cloud.away = True
    made.hand_over("agents-1", "leaving")
    found = pauses(made, cloud, Clock(), said)
    found.look()
    assert said == ["runs cannot be paused or resumed now: nobody answers"]
    cloud.away = False
    found.look()
    assert cloud.did == ["pause r1"]


def test_the_core_itself_waits_for_the_pause_until_its_job_ends(tmp_path: Path) -> None:
    made, cloud = deployment(tmp_path), cloud_of()
    ended = iter([False, False, True])
    found = pauses(made, cloud, Clock(), [])
    found.pause_until(float("inf"), lambda: next(ended))
    assert cloud.did == ["pause r1"]
    assert made.paused() is None
    cloud.statuses["r1"] = "paused"
    found.pause_until(float("inf"), lambda: False)
    assert made.paused() == ("r1",)


@pytest.mark.parametrize("text", ["", "{", "3"])
def test_a_damaged_note_of_paused_runs_counts_as_none(tmp_path: Path, text: str) -> None:
    made = deployment(tmp_path)
    (made.folder / "paused.json").write_text(text)
    assert made.paused() is None
