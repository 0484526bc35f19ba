"""An earlier version's run, and earlier tiers, at a cloud of this version: one goes on, the others are refused.

The earlier version is taken out of the repository's history, and its processes run from there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shared.run_records.runs import FINAL
from strata.api.client import Client
from strata.launcher.topology import Topology
from tests.fork_server import shared_fork_server
from tests.waits import HANG_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
BEFORE = "76d16f290e424b49be30b5920b4768dad1d0184e"
"""The last commit whose tiers name no protocol."""
SPEC = {
    "name": "upgraded",
    "data": {"name": "digits", "n_train": 200, "n_test": 50},
    "algorithm": "scaffold",  # each device keeps a state
    "num_devices": 4,
    "num_edges": 2,
    "num_rounds": 40,
}
PROGRAM = """
import json, sys, time
from pathlib import Path

import strata.launcher.topology as launcher
from strata.api.client import Client

before, folder, spec = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
assert before in Path(launcher.__file__).parents, launcher.__file__
with launcher.Topology(edges=2, devices=4, agents=2, runs_dir=folder / "runs", folder=folder / "state") as topology:
    topology.wait_ready(300)
    with Client(topology.url) as client:
        run = client.create_run(spec).run
        while client.run(run).rounds < 2:
            time.sleep(0.02)
        client.pause(run)
        while client.run(run).status != "paused":
            time.sleep(0.02)
        print(run)
"""
"""Trains some rounds with the version in a folder, pauses the run, and stops everything."""


class Upgraded(NamedTuple):
    """A topology of this version on the state of one of the version before.

    Attributes:
        before: the folder of that version.
        run: the run that it has paused.
    """

    topology: Topology
    before: Path
    run: str


def environment(before: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(before), **more}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the version before."""
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this copy has no history with {BEFORE[:8]}: {archive.stderr.decode().strip()[:200]}")
    folder = tmp_path_factory.mktemp("before")
    subprocess.run(["tar", "-x"], input=archive.stdout, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def upgraded(before: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    """The present version, started where the one before was stopped."""
    folder = tmp_path_factory.mktemp("upgraded")
    program = [sys.executable, "-c", PROGRAM, str(before), str(folder), json.dumps(SPEC)]
    ran = subprocess.run(
        program, env=environment(before), cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    places: dict[str, Any] = {"runs_dir": folder / "runs", "folder": folder / "state"}
    with Topology(edges=2, devices=4, agents=2, fork=shared_fork_server(), **places) as topology:
        topology.wait_ready(HANG_S)
        yield Upgraded(topology, before, ran.stdout.split()[-1])


def test_a_run_that_the_version_before_has_paused_goes_on_with_the_bits_of_an_undisturbed_one(
    upgraded: Upgraded,
) -> None:
    with Client(upgraded.topology.url) as client:
        paused = client.run(upgraded.run)
        assert (paused.status, 2 <= paused.rounds < 40, paused.owner) == ("paused", True, None)
        client.resume(upgraded.run)
        ended = until("the end of the run", lambda: _ended(client, upgraded.run))
        alone = client.create_run(SPEC).run
        expected = until("the end of an undisturbed run", lambda: _ended(client, alone))
    assert (ended.status, expected.status) == ("completed", "completed")
    assert ended.model_sha256 == expected.model_sha256
    assert (ended.final, ended.simulated_s, ended.bytes_up) == (expected.final, expected.simulated_s, expected.bytes_up)


def test_tiers_of_the_version_before_are_refused_and_listed_and_harm_no_run(upgraded: Upgraded, tmp_path: Path) -> None:
    topology = upgraded.topology
    common = {"STRATA_TIER_TOKEN": topology.tier_token, "STRATA_LOG_FORMAT": "text"}
    tiers = {
        "edge_server": {"EDGE_NAME": "old-edge", "EDGE_REDIS_URL": topology.redis.url},
        "device_agent": {"AGENT_NAME": "old-agent"},
    }
    logs, processes = {name: tmp_path / f"{name}.log" for name in tiers}, []
    for name, own in tiers.items():
        prefix = "EDGE" if name == "edge_server" else "AGENT"
        place = {f"{prefix}_CLOUD_URL": topology.url, f"{prefix}_STATE_DIR": str(tmp_path / name)}
        with logs[name].open("wb") as log:
            env = environment(upgraded.before, **common, **own, **place)
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", name], env=env, cwd=upgraded.before, stdout=log, stderr=subprocess.STDOUT
                )
            )
    try:
        with Client(topology.url) as client:
            run = client.create_run({**SPEC, "name": "beside", "num_rounds": 20}).run
            old = until("the edge of the version before", lambda: [e for e in client.edges().edges if e.url == ""])
            agents = until(
                "the agent of the version before", lambda: [a for a in client.agents().agents if a.name == "old-agent"]
            )
            ended = until("the end of the run", lambda: _ended(client, run))
            assert client.topology().n_agents == 2
        nodes: list[Any] = [*old, *agents]
        for node in nodes:
            assert (node.name in ("old-edge", "old-agent"), node.state) == (True, "left_out")
            assert "its caller says no protocol, so it is older: upgrade its caller" in (node.reason or "")
        assert ended.status == "completed"
        for path in logs.values():
            until(f"the reason in {path.name}", partial(_says, path, "says no protocol, so it is older"))
        assert [process.poll() for process in processes] == [None, None], "they wait to be upgraded"
    finally:
        for process in processes:
            process.terminate()
            process.wait(HANG_S)


def _ended(client: Client, run: str) -> Any:
    info = client.run(run)
    return info if info.status in FINAL else None


def _says(log: Path, words: str) -> bool:
    return words in log.read_text(encoding="utf-8")
