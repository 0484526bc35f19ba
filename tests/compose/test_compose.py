"""The system in real containers: `docker compose` as docs/how-to/compose.md says, one stack for all tests of this file.

Needs a Docker engine; run by `make compose-test`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx2
import pytest
import yaml

from strata.api.client import Client
from strata.launcher.topology import Topology
from tests.compose.stack import ENDED, PROJECT, ROOT, compose, docker, ended, events, round_with, seat_of, submit, until
from tests.waits import HANG_S

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]


def test_the_quickstart_gives_the_same_bits_in_containers_as_in_local_processes(
    stack: httpx2.Client, tmp_path: Path
) -> None:
    spec = yaml.safe_load((ROOT / "experiments" / "quickstart.yaml").read_text(encoding="utf-8"))
    in_containers = ended(stack, submit(stack, spec))
    with Topology(edges=2, devices=10, agents=2, runs_dir=tmp_path / "runs") as topology:
        topology.wait_ready(HANG_S)
        with Client(topology.url) as client:
            run = client.create_run(spec).run
            here = until("the local run", lambda: (found := client.run(run)).status in ENDED and found)
    assert in_containers["status"] == here.status == "completed"
    assert in_containers["accuracy"] > 0.9
    for field in ("model_sha256", "bytes_up", "bytes_down", "simulated_s", "accuracy", "loss"):
        assert in_containers[field] == getattr(here, field), field


def test_every_device_container_takes_part(stack: httpx2.Client) -> None:
    info = ended(stack, submit(stack, {"num_rounds": 2, "lr": 0.1, "partition": {"name": "dirichlet", "alpha": 0.5}}))
    assert (info["status"], info["spec"]["num_devices"], info["spec"]["num_edges"]) == ("completed", 6, 2)
    rows = stack.get(f"/runs/{info['run']}/rounds/1").json()["seats"]
    names = {device["agent"]: device["name"] for device in stack.get("/agents").json()["agents"]}
    containers = docker("ps", "-q", "--filter", f"label=com.docker.compose.project={PROJECT}").split()
    assert {row["outcome"] for row in rows} == {"used"}
    assert sorted(row["seat"] for row in rows) == [0, 1, 2, 3, 4, 5]
    assert len({row["agent"] for row in rows}) == 6
    assert {names[row["agent"]] for row in rows} <= {container[:12] for container in containers}
    assert sum(row["n_samples"] for row in rows) == 1438
    assert len({row["edge"] for row in rows}) == 2


def test_with_one_device_an_agent_link_bytes_are_the_bytes_on_the_sockets(stack: httpx2.Client) -> None:
    info = ended(stack, submit(stack, {"num_rounds": 2, "lr": 0.1}))
    for row in stack.get(f"/runs/{info['run']}/rounds").json()["rounds"]:
        assert row["socket_bytes"] == row["bytes_up"] + row["bytes_down"] > 0


def test_the_curl_lines_of_the_page_run_unchanged(stack: httpx2.Client, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "compose.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("curl ")]
    assert len(lines) >= 4
    answers = {}
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
        answers[line] = done.stdout
    output = "\n".join(answers.values())
    assert '"code"' not in output, "an answer is a problem"
    assert "event: round.committed" in output
    assert re.search(r'"round_no": ?10', output)
    assert (tmp_path / "model.safetensors").stat().st_size > 10_000


def test_a_device_that_joins_takes_a_free_seat_and_one_that_leaves_is_named(stack: httpx2.Client) -> None:
    spec = {"num_devices": 6, "max_devices": 7, "num_rounds": 100_000, "lr": 0.05, "eval_every": 100_000}
    run = submit(stack, spec)
    until("a committed round", lambda: stack.get(f"/runs/{run}").json()["rounds"] >= 1)
    compose("up", "-d", "--no-recreate", "--scale", "device=7")
    late = until("the late device's seat", lambda: seat_of(stack, run, 6)["agent"])
    first = until("a round with seat 6", lambda: round_with(stack, run, 6, "used"))
    container = next(d["name"] for d in stack.get("/agents").json()["agents"] if d["agent"] == late)
    docker("rm", "-f", container)
    lost = until("the loss in the record", lambda: round_with(stack, run, 6, "failed"))
    assert lost["round_no"] > first["round_no"] > 1
    failure = next(failure for failure in lost["failures"] if failure["seat"] == 6)
    assert late in failure["detail"]
    assert stack.post(f"/runs/{run}/stop").status_code == 200
    assert ended(stack, run)["status"] == "stopped"
    assert {"seats": "6", "n_seats": 1, "agent": late} in events(stack, run, "seat.taken")
    assert stack.get(f"/agents/{late}").json()["state"] == "lost"
