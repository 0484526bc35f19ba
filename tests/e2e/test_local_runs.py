"""Whatever ends a run of a local topology, its record is true and it goes on with the bits of an undisturbed one."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import strata as strata_api
from strata.launcher.redis_binary import find_redis_server
from tests.fork_server import forked_servers
from tests.forked_strata import Command
from tests.process_state import wait_until_gone
from tests.waits import PACED, until

pytestmark = pytest.mark.e2e
SPEC = {
    "name": "long",
    "seed": 3,
    "num_rounds": 12,
    "num_edges": 2,
    "num_devices": 4,
    "data": {"name": "digits", "n_train": 400},
    "timeouts": {"reseat_after_s": 600},
    **PACED,
}


def of(pid: int) -> list[int]:
    """Returns the child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def named(pid: int, name: str) -> int:
    """Returns the first process of this name below another one."""
    for child in of(pid):
        if Path(f"/proc/{child}/comm").read_text().strip().startswith(name):
            return child
    return next(found for child in of(pid) if (found := named(child, name)))


VICTIMS: dict[str, Callable[[int], int]] = {
    "launcher": lambda pid: pid,
    "cloud": lambda pid: named(pid, "cloud"),
    "redis-server": lambda pid: named(pid, find_redis_server().path.name),
    "fork server": lambda pid: next(child for child in of(pid) if of(child)),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("STRATA_URL", "STRATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "long.json").write_text(json.dumps(SPEC))
    return tmp_path


def ended(command: Command) -> tuple[int, dict[str, Any], str]:
    """Returns the exit status of a command, the JSON object on its last line, and its stderr."""
    out, err = command.communicate()
    lines = out.splitlines()
    assert command.returncode is not None
    return command.returncode, json.loads(lines[-1]) if lines else {}, err


def in_round(runs: Path, round_no: int) -> Path:
    """Waits until the record of the only run has so many rounds; returns its results folder."""

    def look() -> Path | None:
        for record in runs.glob("r*/run.json"):
            if json.loads(record.read_text())["rounds"] >= round_no:
                return record.parent
        return None

    return until(f"round {round_no}", look)


@cache
def undisturbed() -> str:
    """The model of a run that nothing disturbs, in the folder of the first test that asks for it."""
    _, result, err = ended(Command("run", "long.json", "--local", "--agents", "2", "--format", "json", "name=other"))
    assert result["status"] == "completed", err
    return str(result["model_sha256"])


@pytest.mark.matrix
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_run_whose_process_is_killed_is_recorded_as_interrupted_and_goes_on(folder: Path, victim: str) -> None:
    run = Command("run", "long.json", "--local", "--agents", "2", "--format", "json")
    results = in_round(folder / "runs", 3)
    family = [VICTIMS[name](run.pid) for name in VICTIMS]
    os.kill(VICTIMS[victim](run.pid), signal.SIGKILL)
    code, _, err = ended(run)
    wait_until_gone(*family)
    shown = ended(Command("show", results.name, "--format", "json"))[1]
    assert shown["status"] == "stopped"
    assert 3 <= shown["rounds"] < 12
    assert json.loads((results / "run.json").read_text())["status"] == "stopped"
    if victim == "launcher":
        assert shown["reason"].startswith("interrupted: the cloud that ran it has ended")
    else:
        assert shown["reason"].startswith(f"interrupted: {victim} ended (signal SIGKILL): ")
        assert "memory" in shown["reason"]
        assert code == 1
        assert f"`strata resume {results.name}` goes on" in err
        assert f"error: {victim} ended (signal SIGKILL): " in err
        assert (results / "logs" / "cloud.log").exists()
    code, result, err = ended(Command("resume", results.name, "--format", "json"))
    assert (code, result["status"], result["rounds"]) == (0, "completed", 12), err
    assert not (folder / ".strata" / "topologies").exists()
    assert result["model_sha256"] == undisturbed()
    assert "has completed" in ended(Command("resume", results.name))[2]


def test_results_that_are_removed_under_way_are_written_again_as_a_whole(folder: Path) -> None:
    run = Command("run", "long.json", "--local", "--agents", "2", "--format", "json")
    results = in_round(folder / "runs", 3)
    shutil.rmtree(folder / "runs")
    code, printed, err = ended(run)
    assert (code, printed["status"]) == (0, "completed"), err
    assert len((results / "rounds.csv").read_text().splitlines()) == 1 + 12 + 1, "a header and the final evaluation"
    assert strata_api.load_run(results).model() is not None


def test_a_run_goes_on_in_a_script_after_the_script_that_began_it_ended(folder: Path) -> None:
    with forked_servers(), strata_api.local(edges=2, devices=4, agents=2, progress=False) as cloud:
        run = cloud.run("long.json")
        in_round(folder / "runs", 2)
    saved = strata_api.load_run(run.id)
    assert (saved.status, saved.info.reason) == ("stopped", "interrupted: the program that ran it has ended")
    with forked_servers(), strata_api.local(resume=run.id, progress=False) as cloud:
        assert len(cloud.agents()) == 2
        again = cloud.get_run(run.id).wait(progress=False)
    assert (again.status, again.info.rounds) == ("completed", 12)


@pytest.mark.parametrize("victim", ["agent-1", "edge-1"])
def test_a_killed_agent_or_edge_is_started_again_and_the_run_completes(folder: Path, victim: str) -> None:
    run = Command("run", "long.json", "--local", "--agents", "2", "--format", "json", "quorum=0.25")
    in_round(folder / "runs", 3)
    os.kill(named(run.pid, victim), signal.SIGKILL)
    code, result, err = ended(run)
    assert (code, result["status"], result["rounds"]) == (0, "completed", 12), err
    assert f"error: {victim} ended (signal SIGKILL" in err
    assert "the run goes on" in err


def test_a_second_interrupt_leaves_no_process_and_a_run_that_can_go_on(folder: Path) -> None:
    run = Command("run", "long.json", "--local", "--agents", "2", "--format", "json")
    results = in_round(folder / "runs", 2)
    family = [VICTIMS[name](run.pid) for name in VICTIMS]
    run.send_signal(signal.SIGINT)
    assert any(line.startswith("stopping run") for line in run.stderr)
    run.send_signal(signal.SIGINT)
    assert ended(run)[0] == 130
    wait_until_gone(*family)
    assert ended(Command("show", results.name, "--format", "json"))[1]["status"] == "stopped"
    assert ended(Command("resume", results.name, "--format", "json"))[1]["status"] == "completed"
