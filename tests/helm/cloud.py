"""The cloud of rendered pods, as users see it, and what the quickstart gives there and in local processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import yaml

from strata.api.client import Client
from strata.launcher.topology import Topology
from tests import waits
from tests.helm.chart import ROOT
from tests.helm.cluster import Cluster
from tests.waits import HANG_S

ENDED = ("completed", "failed", "stopped")
QUICKSTART = yaml.safe_load((ROOT / "experiments" / "quickstart.yaml").read_text(encoding="utf-8"))
FEW = 3
"""Rounds of a run that shows no more than that all nodes take part."""
SAME = ("model_sha256", "bytes_up", "bytes_down", "simulated_s", "accuracy", "loss")


def local_results(runs_dir: Path) -> dict[int, dict[str, Any]]:
    """What the quickstart gives in local processes, by the number of rounds."""
    found = {}
    with Topology(edges=2, devices=10, agents=2, runs_dir=runs_dir) as topology, Client(topology.url) as client:
        topology.wait_ready(HANG_S)
        for rounds in (QUICKSTART["num_rounds"], FEW):
            run = client.create_run({**QUICKSTART, "num_rounds": rounds}).run
            waits.until("the local run", lambda: client.run(run).status in ENDED)  # noqa: B023
            found[rounds] = {name: getattr(client.run(run), name) for name in SAME}
    assert all(found[QUICKSTART["num_rounds"]].values())
    return found


class Cloud:
    """The cloud of a cluster, as users see it."""

    def __init__(self, cluster: Cluster, verify: Any = True, scheme: str = "http") -> None:
        self.cluster = cluster
        token = cluster.volumes.secrets["strata-tokens"]["api-token"].decode()
        self.url = f"{scheme}://{cluster.address_of('strata-api')}:8000"
        self.options = {"headers": {"authorization": f"Bearer {token}"}, "timeout": 30, "verify": verify}
        self.extensions: dict[str, Any] = {}

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        with httpx2.Client(trust_env=False, **self.options) as client:
            return client.request(method, f"{self.url}{path}", extensions=self.extensions, **options)

    def get(self, path: str) -> dict[str, Any]:
        answer = self.ask("GET", path)
        assert answer.is_success, answer.text
        return dict(answer.json())

    def ran(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Runs a spec to its end."""
        answer = self.ask("POST", "/runs", json={"spec": spec})
        assert answer.status_code == 201, answer.text
        run = answer.json()["run"]
        self.cluster.until("the run", lambda: self.get(f"/runs/{run}")["status"] in ENDED)
        found = self.get(f"/runs/{run}")
        assert (found["status"], found["reason"]) == ("completed", None)
        return found

    def devices(self) -> int:
        return int(self.get("/topology")["n_devices"])


def answered(look: Callable[[], object]) -> bool:
    """Whether a condition holds; a cloud that does not answer is an attempt that failed."""
    try:
        return bool(look())
    except (httpx2.HTTPError, AssertionError):
        return False
