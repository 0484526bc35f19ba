"""A run goes on from a backup, taken while it was paused or while it trained, with the bits of an undisturbed one."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.run_records.runs import RunInfo
from strata.api.client import Client
from strata.launcher.backup import frozen, started_by
from strata.launcher.redis_binary import find_redis_server
from tests.forked_strata import Command, run
from tests.waits import PACED, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
N_ROUNDS = 14
SPEC: dict[str, Any] = {
    "name": "kept",
    "algorithm": "scaffold",  # what devices keep counts
    "data": {"name": "digits", "n_train": 200, "n_test": 50},
    "num_edges": 2,
    "num_devices": 4,
    "num_rounds": N_ROUNDS,
    "edge_rounds": 2,
    "edge_compression": {"up": {"name": "topk", "fraction": 0.1}},  # and so does what edges keep: what they left out
    **PACED,
}
UP = ("--edges", "2", "--devices", "4", "--agents", "2", "--port", "0", "--format", "json")


@dataclass
class Running:
    """A running `strata up` in a folder of its own."""

    folder: Path
    command: Command
    client: Client

    @classmethod
    def up(cls, folder: Path, *words: str) -> Running:
        folder.mkdir(exist_ok=True)
        env = {**os.environ, "STRATA_HOME": str(folder / "home")}
        command = Command("up", *words, *UP, cwd=folder, env=env)
        line = command.stdout.readline()
        assert line, command.communicate()[1]
        return cls(folder, command, Client(json.loads(line)["url"]))

    def do(self, *words: str) -> dict[str, Any]:
        env = {**os.environ, "STRATA_HOME": str(self.folder / "home")}
        done = run(*words, "--format", "json", cwd=self.folder, env=env)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def status(self, status: str, rounds: int = 0) -> RunInfo:
        def look() -> RunInfo | None:
            info = self.client.run("kept")
            assert info.status != "failed", info.reason
            return info if info.status == status and info.rounds >= rounds else None

        return until(f"{status} after round {rounds}", look)

    def down(self) -> None:
        self.client.close()
        self.do("down")
        self.command.communicate()


@dataclass(frozen=True)
class Original:
    """What an undisturbed run gives, and the folder of the backups of it."""

    model: str
    rounds: list[str]
    folder: Path


def models(client: Client) -> list[str]:
    return [each.model_sha256 for each in client.rounds("latest").rounds]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    folder = tmp_path_factory.mktemp("original")
    there = Running.up(folder, "--state-dir", "kept")
    try:
        there.client.create_run(SPEC)
        there.status("running", 2)
        there.do("pause", "kept")
        there.status("paused")
        said = there.do("backup", "paused")
        words = "--state-dir paused/state --runs-dir paused/runs --edges 2 --devices 4 --agents 2"
        assert said["restore"] == f"strata up {words}"
        one_by_one(there, folder / "one by one")
        there.do("resume", "kept")
        there.status("running", there.client.run("kept").rounds + 2)
        there.do("backup", "running")
        info = there.status("completed", N_ROUNDS)
        assert info.model_sha256 is not None
        found = Original(info.model_sha256, models(there.client), folder)
    finally:
        there.down()
    (folder / "kept").rename(folder / "lost")
    (folder / "runs").rename(folder / "lost runs")
    return found


def one_by_one(there: Running, into: Path) -> None:
    """Copies the folders of a topology whose runs are paused, as on several machines: only Redis stands still."""
    into.mkdir()
    shutil.copytree(there.folder / "runs", into / "runs")
    for name in ("agent-2", "agent-1", "cloud", "edge-2", "edge-1"):
        shutil.copytree(there.folder / "kept" / name, into / "state" / name)
    binary = find_redis_server().path.name[:15]
    found = [pid for pid in started_by(there.command.pid) if Path(f"/proc/{pid}/comm").read_text().strip() == binary]
    assert len(found) == 1
    with frozen(lambda: found):
        shutil.copytree(
            there.folder / "kept" / "redis", into / "state" / "redis", ignore=shutil.ignore_patterns("*.sock")
        )


@pytest.mark.parametrize("name", ["paused", "running", "one by one"])
def test_a_run_goes_on_from_a_backup_with_the_same_bits(original: Original, name: str, tmp_path: Path) -> None:
    backup = original.folder / name
    there = Running.up(tmp_path, "--state-dir", str(backup / "state"), "--runs-dir", str(backup / "runs"))
    try:
        before = there.client.run("kept")
        assert before.rounds < N_ROUNDS
        if name != "running":  # then it goes on by itself
            assert before.status == "paused"
            there.do("resume", "kept")
        info = there.status("completed", N_ROUNDS)
        assert info.model_sha256 == original.model
        assert models(there.client) == original.rounds
        assert not any(each.failures for each in there.client.rounds("latest").rounds)
    finally:
        there.down()


def test_without_a_topology_there_is_nothing_to_copy(tmp_path: Path) -> None:
    done = run("backup", "there", cwd=tmp_path, env={**os.environ, "STRATA_HOME": str(tmp_path / "home")})
    assert done.returncode == 1
    assert "no `strata up` is running here" in done.stderr
    assert not (tmp_path / "there").exists()
