"""A deployment on a cluster of the tests, made and ended by the commands that a user types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import FINAL, RunInfo
from strata.api.client import Client
from strata.slurm.connection import client_of
from strata.slurm.deployment import Deployment
from tests.slurm.cluster import Cluster
from tests.waits import until

LIMIT_S = 550.0
OURS = ("STRATA_", "CLOUD_", "EDGE_", "AGENT_", "FLEET_")
SPEC: dict[str, Any] = {
    "name": "slurm",
    "data": "digits",
    "model": "mlp",
    "num_edges": 3,
    "num_devices": 3,
    "num_rounds": 4,
    "eval_every": 4,
    "seed": 3,
}


def fields(spec: Mapping[str, Any]) -> list[str]:
    """A spec as a user writes its fields."""
    return [f"{name}={json.dumps(value) if not isinstance(value, str) else value}" for name, value in spec.items()]


def strata(folder: Path, *words: str, env: Mapping[str, str] | None = None, check: bool = True) -> str:
    """What a command of ours prints when it is run in a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    command = [sys.executable, "-m", "strata", *words]
    done = subprocess.run(
        command, cwd=folder, env={**kept, **(env or {})}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert not check or done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout if check else done.stdout + done.stderr


def on_loopback(folder: Path, spec: Mapping[str, Any]) -> str:
    """The model's digest of a run of local processes on loopback."""
    said = strata(folder, "run", *fields(spec), "--local", "--agents", "1", "--format", "json")
    return str(json.loads(said.splitlines()[-1])["model_sha256"])


class Deployed:
    """A deployment that `strata slurm up` has made; a context manager that ends it.

    Args:
        cluster: on which it runs.
        folder: in which the commands are typed.
        options: of `strata slurm up`.
    """

    def __init__(self, cluster: Cluster, folder: Path, *options: str, name: str = "default") -> None:
        self.cluster, self.folder, self.options, self.name = cluster, folder, options, name

    def __enter__(self) -> Deployed:
        folder = self.folder / ".strata" / "slurm" / self.name
        try:
            self.said = self.command("slurm", "up", "--name", self.name, "--every-s", "1", *self.options)
        except BaseException:
            for log in sorted((folder / "logs").glob("*")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}")
            self.__exit__()
            raise
        self.deployment = Deployment.open(folder)
        return self

    def __exit__(self, *_: object) -> None:
        if (self.folder / ".strata" / "slurm" / self.name / "deployment.json").exists():
            self.command("slurm", "down", "--name", self.name)

    def command(self, *words: str, check: bool = True) -> str:
        """What a command prints."""
        return strata(self.folder, *words, env=self.cluster.env, check=check)

    def client(self) -> Client:
        """A client of its cloud, where that is now; it waits for one that starts anew."""
        address = self.deployment.address()
        assert address is not None
        return client_of(self.deployment, address)

    def start(self, spec: Mapping[str, Any]) -> str:
        """Begin a run and return its id."""
        with self.client() as client:
            return client.create_run(dict(spec)).run

    def run(self, run: str) -> RunInfo:
        """A run, as the cloud says now; waits until one answers, wherever it is."""

        def ask() -> RunInfo:
            with client_of(self.deployment, until("an address", self.deployment.address), 0.0) as client:
                return client.run(run)

        return until(f"an answer about {run}", ask)

    def reach(self, run: str, rounds: int) -> None:
        """Wait until a run has so many rounds."""
        until(f"round {rounds} of {run}", lambda: self.run(run).rounds >= rounds)

    def ended(self, run: str) -> tuple[RunInfo, tuple[RoundInfo, ...]]:
        """A run that has ended, and its rounds."""
        info = until(f"the end of {run}", lambda: (found := self.run(run)).status in FINAL and found)
        with self.client() as client:
            return info, client.rounds(run).rounds

    def jobs(self, kind: str) -> list[dict[str, str]]:
        """Its jobs of a kind."""
        return [job for job in self.cluster.jobs() if job["name"] == self.deployment.job_name(kind)]
