"""`schemathesis` over the documents of all three tiers, as real processes on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.cli.client import Client
from shared.cli.launch import Topology
from shared.spec import parse_spec

CONFIG = Path(__file__).with_name("schemathesis.toml")
SPEC = {"name": "tried", "data": {"name": "digits", "n_train": 100, "n_test": 50}, "num_rounds": 1}


@dataclass(frozen=True)
class Tried:
    """What came of one tier's document."""

    tier: str
    status: int
    said: str

    @property
    def n_cases(self) -> int:
        """How many requests were made."""
        return int(json.loads(self.said)["n"])


@contextmanager
def federation(folder: Path) -> Iterator[tuple[Topology, str]]:
    """A cloud, an edge, an agent, and a run that has ended; the run's id."""
    with Topology(edges=1, devices=1, agents=1, runs_dir=folder / "runs", folder=folder / "work") as topology:
        topology.wait_ready(120)
        with Client(topology.url) as client:
            run = client.create_run(parse_spec(SPEC).model_dump(mode="json", exclude_none=True)).run
            ends = time.monotonic() + 60
            while client.run(run).status != "completed":
                assert time.monotonic() < ends, client.run(run)
                time.sleep(0.1)
        yield topology, run
