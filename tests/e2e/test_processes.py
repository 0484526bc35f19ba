"""Real local processes: Redis, a cloud, edges and agents on loopback, as `strata run` starts them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file

from shared.core.tensors import digest
from shared.results.folder import read_rounds, read_run
from shared.results.manifest import Manifest
from strata.api.client import Client
from strata.launcher.topology import Topology
from tests.fork_server import shared_fork_server
from tests.forked_strata import run
from tests.process_state import processes_of
from tests.waits import HANG_S

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "experiments" / "quickstart.yaml"
DIGEST = "761b5b8e2f8706b2c379cbd429650a1a410a26250b91062566fc5f3dade1707b"
MEASURED_ON = ("AMD EPYC (x86_64)", "AVX512", "2.13.0+cpu")
"""The processor, the instruction set that torch uses on it, and torch's version for which the digest holds."""
FIGURES = ("model_sha256", "bytes_up", "bytes_down", "simulated_s", "accuracy", "loss")


def strata(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a separate folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
    return run(*words, cwd=cwd, env={**clean, "PYTHONPATH": str(ROOT), "STRATA_CACHE_DIR": str(cwd / "cache")})


def run_in_topology(spec: dict[str, Any], folder: Path, **options: Any) -> dict[str, Any]:
    """Completes a run in a separate topology and returns its figures."""
    options = {"fork": shared_fork_server()} | options
    with Topology(edges=2, devices=10, runs_dir=folder / "runs", **options) as topology:
        topology.wait_ready(HANG_S)
        with Client(topology.url) as client:
            submitted = client.create_run(spec).run
            for event in client.events(submitted):
                if event is not None and event.kind == "run.status" and event.data["status"] in ("completed", "failed"):
                    break
            info = client.run(submitted)
    assert info.status == "completed", info.reason
    return {name: getattr(info, name) for name in FIGURES}


class Quickstart(NamedTuple):
    """The result of `strata run experiments/quickstart.yaml`."""

    folder: Path
    done: subprocess.CompletedProcess[str]

    @property
    def printed(self) -> dict[str, Any]:
        """The JSON object that the command printed last."""
        return dict(json.loads(self.done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """One run of the quickstart for all tests of its results."""
    folder = tmp_path_factory.mktemp("quickstart")
    return Quickstart(folder, strata("run", str(QUICKSTART), "--format", "json", cwd=folder))


@pytest.mark.smoke
def test_the_quickstart_completes_and_leaves_no_process_running(quickstart: Quickstart) -> None:
    assert quickstart.done.returncode == 0, quickstart.done.stderr[-3000:]
    printed = quickstart.printed
    known = {"status": "completed", "rounds": 30, "accuracy_of": "global model"}
    assert printed | known == printed
    assert printed["accuracy"] > 0.90
    assert all(printed[name] > 0 for name in ("bytes_up", "bytes_down", "simulated_s", "wall_s"))
    assert processes_of(quickstart.folder) == []
    folder = quickstart.folder / "runs" / printed["run"]
    assert digest(load_file(folder / "model.safetensors")) == printed["model_sha256"]
    assert read_run(folder).status == "completed"
    assert [row.round_no for row in read_rounds(folder) if row.kind == "train"] == list(range(1, 31))
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"spec.yaml", "manifest.json", "rounds.csv", "devices.ndjson", "edges.ndjson", "links.csv"} <= names
    assert not [name for name in names if name.startswith("plots/")]


@pytest.mark.smoke
def test_the_quickstart_gives_the_bits_that_it_has_always_given(quickstart: Quickstart) -> None:
    """The digest depends on random streams, population and sums: renaming a key of a stream changes it."""
    folder = quickstart.folder / "runs" / quickstart.printed["run"]
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text(encoding="utf-8"))
    here = (manifest.cpu, torch.backends.cpu.get_cpu_capability(), manifest.versions["torch"])
    if here != MEASURED_ON:
        pytest.skip(f"the digest was measured on {MEASURED_ON}; here it is {here}, where other bits are right")
    assert quickstart.printed["model_sha256"] == DIGEST


def test_a_finished_run_is_shown_from_its_folder_when_no_cloud_runs(tmp_path: Path) -> None:
    ran = strata("run", str(QUICKSTART), "num_rounds=2", "--format", "json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    shown = strata("show", "latest", "--format", "json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    before, after = json.loads(ran.stdout.splitlines()[-1]), json.loads(shown.stdout.splitlines()[-1])
    assert {name: after[name] for name in FIGURES} == {name: before[name] for name in FIGURES}


@pytest.mark.slow
def test_neither_the_number_of_agents_nor_the_order_of_their_start_changes_a_figure(tmp_path: Path) -> None:
    spec = {**yaml.safe_load(QUICKSTART.read_text(encoding="utf-8")), "num_rounds": 4}
    spec["devices"] = {"profile": "standard"}  # whatever their agents name
    alone = run_in_topology(spec, tmp_path, agents=1)
    four = run_in_topology(spec, tmp_path, agents=4)
    backwards = run_in_topology(
        spec, tmp_path, agents=4, order=[3, 1, 0, 2], profiles=["jetson", "gateway", "standard", "phone_low"]
    )
    assert four == alone
    assert backwards == alone


@pytest.mark.slow
def test_executed_processes_with_any_order_of_sets_give_the_figures_of_forked_ones(tmp_path: Path) -> None:
    """`python -m cloud_server` and so on, each with its own hash seed, which decides how sets iterate."""
    spec = {**yaml.safe_load(QUICKSTART.read_text(encoding="utf-8")), "num_rounds": 4}
    forked = run_in_topology(spec, tmp_path, agents=2)
    names = ("cloud", "edge-1", "edge-2", "agent-1", "agent-2")
    seeds = {name: {"PYTHONHASHSEED": str(1 + number)} for number, name in enumerate(names)}
    executed = run_in_topology(spec, tmp_path, agents=2, fork=False, env_of=seeds)
    assert executed == forked
