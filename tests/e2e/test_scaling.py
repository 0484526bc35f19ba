"""`strata up` and `strata run` with their fleets, as real processes: `strata scale` works, and no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strata.api.client import Client
from tests.forked_strata import Command, run
from tests.process_state import processes_of
from tests.waits import PACED, until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
    return clean | {"PYTHONPATH": str(ROOT), "STRATA_CACHE_DIR": str(folder / "cache"), "STRATA_HOME": str(folder)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `up`."""
    return tmp_path_factory.mktemp("scaled")


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[dict[str, Any]]:
    """A running `strata up` with one device per agent; yields its output. A signal ends it, and no process remains."""
    words = ["up", "--edges", "2", "--devices", "3", "--agents", "3", "--port", "0", "--format", "json"]
    process = Command(*words, cwd=folder, env=environment(folder))
    line = process.stdout.readline()
    assert line, process.stderr.read()
    yield json.loads(line)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0
    assert processes_of(folder) == []


def scale(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run("scale", *words, "--wait", "--format", "json", cwd=folder, env=environment(folder))


def test_devices_leave_and_join_during_a_run_and_return_with_their_ids_and_states(
    up: dict[str, Any], folder: Path
) -> None:
    def check_number(done: subprocess.CompletedProcess[str], number: int) -> None:
        assert done.returncode == 0, done.stderr
        printed = json.loads(done.stdout)
        counts = {"wanted": {"device": number}, "present": {"device": number}, "n_devices": number}
        assert printed == {**counts, "notes": []}

    def rounds_with(n: int) -> Callable[[], bool]:
        return lambda: [row.n_used for row in client.rounds(number).rounds[-1:]] == [n]

    with Client(up["url"]) as client:
        before = {agent.name: agent.agent for agent in client.agents().agents}
        data = {"name": "digits", "n_train": 300, "n_test": 100}
        spec = {"data": data, "num_rounds": 10_000, "num_devices": 3, "max_devices": 5, **PACED}
        number = client.create_run(spec).run
        until("a round of three", rounds_with(3))
        check_number(scale(folder, "5"), 5)
        until("a round of five", rounds_with(5))
        check_number(scale(folder, "device=2"), 2)
        until("a round of two", rounds_with(2))
        left = {agent.name for agent in client.agents().agents if agent.state == "left"}
        assert left == {"agent-3", "agent-4", "agent-5"}
        check_number(scale(folder, "3"), 3)
        until("a round of three again", rounds_with(3))
        client.stop(number)
        until("the end", lambda: client.run(number).status == "stopped")
        back = {agent.name: agent.agent for agent in client.agents().agents if agent.state != "left"}
        assert back == before
        rounds = client.rounds(number).rounds
        last = client.round(number, rounds[-1].round_no)
        seats = client.seats(number).seats
    assert [failure for row in rounds for failure in row.failures] == []
    assert all(row.n_used == row.n_visits for row in rounds)
    counts = [row.n_used for row in rounds]
    assert (counts[0], max(counts), min(counts), counts[-1]) == (3, 5, 2, 3)
    assert {row.agent for row in last.seats} == set(before.values())
    assert [row for row in last.seats if row.fresh_state] == []
    assert [seat.state for seat in seats] == ["taken"] * 3 + ["empty"] * 2


def test_edges_are_added_for_the_next_run_and_stopped_once_it_has_ended(up: dict[str, Any], folder: Path) -> None:
    def scaled(number: int) -> dict[str, Any]:
        done = scale(folder, f"edge={number}")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout)["present"])

    spec = {
        "data": {"name": "digits", "n_train": 300, "n_test": 100},
        "num_rounds": 1,
        "num_devices": 3,
        "num_edges": 3,
    }
    with Client(up["url"]) as client:
        run = client.create_run({**spec, "num_rounds": 10_000, **PACED}).run
        until("the wait for edges", lambda: "strata scale edge=3" in (client.run(run).reason or ""))
        assert scaled(3)["edge"] == 3
        until("a round of three edges", lambda: client.run(run).rounds >= 1)
        assert {row.edge for row in client.round(run, 1).seats} == {"edge-1", "edge-2", "edge-3"}
        refused = scale(folder, "edge=2")
        assert refused.returncode == 1
        assert f"of 3 edges 3 are needed until the end of {run}" in refused.stderr
        client.stop(run)
        until("the end", lambda: client.run(run).status == "stopped")
        assert scaled(2)["edge"] == 2
        assert [edge.edge for edge in client.edges().edges] == ["edge-1", "edge-2"]
        assert scaled(3)["edge"] == 3  # the third comes back under its name
        assert [edge.edge for edge in client.edges().edges] == ["edge-1", "edge-2", "edge-3"]


@pytest.mark.usefixtures("up")
def test_an_impossible_number_is_refused_with_its_field(folder: Path) -> None:
    refused = scale(folder, "phone=3")
    assert refused.returncode == 1
    assert "unknown service 'phone'; known: device" in refused.stderr
    assert scale(folder, "three").returncode == 2


def test_devices_join_during_strata_run_and_no_process_is_left_at_its_end(tmp_path: Path) -> None:
    data = {"name": "digits", "n_train": 300, "n_test": 100}
    spec = {"data": data, "num_rounds": 10_000, "num_edges": 1, "num_devices": 2, "max_devices": 3, **PACED}
    (tmp_path / "scaled.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    process = Command(
        "run", "scaled.yaml", "--agents", "2", "--format", "json", cwd=tmp_path, env=environment(tmp_path)
    )
    ready = next(line for line in process.stderr if " at http" in line)
    url = ready.split(" at ")[1].strip()
    done = scale(tmp_path, "3", "--url", url)
    assert done.returncode == 0, done.stderr
    with Client(url) as client:
        until("a round of three", lambda: [row.n_used for row in client.rounds("latest").rounds[-1:]] == [3])
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert (process.returncode, json.loads(out.splitlines()[-1])["status"]) == (130, "stopped")
    assert processes_of(tmp_path) == []
