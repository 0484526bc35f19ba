"""`schemathesis` over the OpenAPI documents of all three tiers, which run as processes on loopback."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from shared.federation.spec_parser import parse_spec
from shared.service.protocol import PROTOCOL_HEADER, SAID
from strata.api.client import Client
from strata.launcher.topology import Topology
from tests.fork_server import shared_fork_server
from tests.waits import HANG_S, until

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")
SPEC = {"name": "tried", "data": {"name": "digits", "n_train": 100, "n_test": 50}, "num_rounds": 1}


@dataclass(frozen=True)
class Tried:
    """The result for one tier: number of requests, exit status, and output."""

    tier: str
    n_cases: int
    status: int
    output: str


def documents(folder: Path, *, n_examples: int, seed: int, seconds: int | None = None) -> Iterator[Tried]:
    """Tries agent, edge and cloud in turn.

    The agent has ended before the cloud is tried, so that new runs only wait.

    Args:
        folder: for the processes' state.
        n_examples: cases for each operation beside the systematic ones.
        seed: of the cases.
        seconds: repeat with other cases for this long, for each tier.
    """
    with _federation(folder) as (topology, run):
        config = folder / "schemathesis.toml"
        config.write_text(CONFIG.read_text(encoding="utf-8").replace("RUN", run), encoding="utf-8")
        options = ["--seed", str(seed), "-n", str(n_examples), *(["--max-time", str(seconds)] if seconds else [])]
        for name in ("agent-1", "edge-1", "cloud"):
            url = f"http://{_address(topology.processes[name].log)}"
            yield _try(name, url, topology.tier_token, config, options, seconds or 200)
            if name == "agent-1":
                topology.end(name)


@contextmanager
def _federation(folder: Path) -> Iterator[tuple[Topology, str]]:
    """Yields a cloud with an edge and an agent, and the id of a completed run."""
    with Topology(
        edges=1, devices=1, agents=1, runs_dir=folder / "runs", folder=folder / "work", fork=shared_fork_server()
    ) as topology:
        topology.wait_ready(HANG_S)
        with Client(topology.url) as client:
            run = client.create_run(parse_spec(SPEC).model_dump(mode="json", exclude_none=True)).run
            until("the end of the run", lambda: client.run(run).status == "completed")
        yield topology, run


def _address(log: Path) -> str:
    """Returns the address of a process, from its log."""
    output = re.findall(r"listens on ([0-9.]+:[0-9]+)", log.read_text(encoding="utf-8"))
    return str(output[-1])


def _try(tier: str, url: str, token: str, config: Path, options: list[str], seconds: int) -> Tried:
    document, authorization = f"{url}/openapi.json", f"Bearer {token}"
    # The first request makes the document, for which Schemathesis waits no more than 10 s.
    httpx2.get(document, headers={"Authorization": authorization}, timeout=120).raise_for_status()
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", document]
    command += ["-H", f"Authorization: {authorization}", "-H", f"{PROTOCOL_HEADER}: {SAID[PROTOCOL_HEADER]}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 300, check=False)
    output = done.stdout + done.stderr
    counted = re.search(r"(\d+) generated", output)
    return Tried(tier, int(counted.group(1)) if counted else 0, done.returncode, output)
