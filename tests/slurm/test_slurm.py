"""Runs on a real Slurm of three nodes, each with an address of its own: `make slurm-test`."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from shared.run_records.rounds import RoundInfo
from strata.slurm.deployment import API_TOKEN, REDIS_PASSWORD, SECRETS, TIER_TOKEN
from tests.slurm.cluster import CALL_S, Cluster, call
from tests.slurm.deployed import SPEC, Deployed, on_loopback, strata
from tests.waits import PACED, until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
NOBODY = "65534"
LONG = {**SPEC, **PACED, "num_rounds": 40, "eval_every": 40}


@pytest.fixture(scope="module")
def fed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Three edges and three agents on three nodes."""
    with Deployed(cluster, tmp_path_factory.mktemp("fed"), "--nodes", "3", "--edges", "3", "--hasten") as found:
        yield found


@pytest.fixture(scope="module")
def long_hash(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's digest of the long run on loopback, which nothing disturbs, and whose devices do not rest."""
    return on_loopback(tmp_path_factory.mktemp("loopback"), {**LONG, "clock": "simulated"})


def lost(rounds: tuple[RoundInfo, ...]) -> list[tuple[int, str, int]]:
    """Lost tasks, by round and reason."""
    return [(row.round_no, each.reason, each.n_lost) for row in rounds for each in row.failures if each.n_lost]


def answer_of(url: str, token: str) -> int:
    """The status with which a cloud answers who shows a token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.get(f"{url}/runs", headers=headers, timeout=CALL_S).status_code


def test_three_nodes_compute_what_loopback_does(fed: Deployed, tmp_path: Path) -> None:
    assert {job["node"] for kind in ("core", "edges", "agents") for job in fed.jobs(kind)} == {"n1", "n2", "n3"}
    info, rounds = fed.ended(fed.start(SPEC))
    assert info.status == "completed"
    assert lost(rounds) == []
    assert info.model_sha256 == on_loopback(tmp_path, SPEC)


def test_nothing_secret_is_in_a_job_an_environment_or_a_command_line(fed: Deployed, cluster: Cluster) -> None:
    words = [fed.deployment.secret(name) for name in SECRETS]
    jobs = [job["job"] for kind in ("core", "edges", "agents") for job in fed.jobs(kind)]
    assert len(jobs) == 7
    told = [cluster.details(job) for job in jobs]
    told += [path.read_text() for path in (fed.deployment.folder / "jobs").iterdir()]
    processes = [pid for node in cluster.nodes for pid in cluster.inside(node)]
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            told += [Path(f"/proc/{pid}/{name}").read_text(errors="replace") for name in ("environ", "cmdline")]
    assert len(processes) > len(jobs)
    assert [word for word in words if any(word in text for text in told)] == []


def test_another_user_reads_neither_token_nor_redis(fed: Deployed) -> None:
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    for name in (API_TOKEN, TIER_TOKEN, REDIS_PASSWORD):
        path = fed.deployment.secret_file(name)
        assert path.stat().st_mode & 0o777 == 0o600
        done = subprocess.run([*as_nobody, "cat", str(path)], capture_output=True, text=True, check=False)
        assert "Permission denied" in done.stderr
        assert done.stdout == ""
    address = fed.deployment.address()
    assert address is not None
    at = urlsplit(address.redis)
    with socket.create_connection((str(at.hostname), at.port or 0), CALL_S) as redis:
        redis.sendall(b"KEYS *\r\n")
        assert redis.recv(100).startswith(b"-NOAUTH")
    assert answer_of(address.url, "") == 401


def test_agents_are_scaled_during_a_run_and_no_task_is_lost(fed: Deployed) -> None:
    run = fed.start({**LONG, "max_devices": 6, "num_rounds": 2000, "eval_every": 2000})
    fed.reach(run, 2)
    fed.command("slurm", "scale", "6")
    until("six jobs of agents", lambda: [job["state"] for job in fed.jobs("agents")] == ["RUNNING"] * 6)
    with fed.client() as client:
        until("a round of six devices", lambda: client.rounds(run).rounds[-1].n_used == 6)
        env = {**fed.cluster.env, "STRATA_API_TOKEN_FILE": str(fed.deployment.secret_file(API_TOKEN))}
        strata(fed.folder, "scale", "3", "--wait", "--url", client.url, env=env)
        assert len(fed.jobs("agents")) == 3
        fed.reach(run, fed.run(run).rounds + 3)
        client.stop(run)
    info, rounds = fed.ended(run)
    assert info.status == "stopped"
    assert lost(rounds) == []
    assert (rounds[0].n_used, max(row.n_used for row in rounds)) == (3, 6)


def test_the_core_begins_anew_in_the_middle_of_a_run_and_nothing_changes(
    fed: Deployed, cluster: Cluster, long_hash: str
) -> None:
    run = fed.start(LONG)
    fed.reach(run, 5)
    (core,) = fed.jobs("core")
    call("scontrol", "requeue", core["job"], env=cluster.env)
    until("the core in the queue", lambda: fed.jobs("core")[0]["state"] == "PENDING")
    info, rounds = fed.ended(run)
    assert info.status == "completed"
    assert len(rounds) == LONG["num_rounds"]
    assert info.model_sha256 == long_hash
    assert lost(rounds) == []


def test_a_dead_node_costs_a_run_little_and_its_edge_is_itself_elsewhere(fed: Deployed, cluster: Cluster) -> None:
    core = fed.jobs("core")[0]["node"]
    victim = next(job for job in fed.jobs("edges") if job["node"] != core)
    run = fed.start({**LONG, "num_rounds": 100, "quorum": 0.3})
    fed.reach(run, 5)
    cluster.kill_node(victim["node"])
    try:

        def elsewhere() -> bool:
            found = [job for job in fed.jobs("edges") if job["index"] == victim["index"]]
            return bool(found) and found[0]["state"] == "RUNNING" and found[0]["node"] != victim["node"]

        until("its edge on another node", elsewhere)
        with fed.client() as client:
            name = f"edge-{victim['index']}"
            until("the edge", lambda: {edge.name: edge.state for edge in client.edges().edges}[name] == "alive")
        info, rounds = fed.ended(run)
        assert info.status == "completed"
        assert len(rounds) == 100
        assert rounds[-1].n_used == 3
    finally:
        cluster.start_node_again(victim["node"])


def test_two_deployments_share_a_node_and_open_nothing_of_each_other(
    fed: Deployed, cluster: Cluster, tmp_path: Path
) -> None:
    with Deployed(cluster, tmp_path, "--edges", "1", "--no-check", name="other") as other:
        ours, theirs = fed.deployment.address(), other.deployment.address()
        assert ours is not None
        assert theirs is not None
        assert {job["node"] for job in cluster.jobs()} <= {"n1", "n2", "n3"}
        assert answer_of(ours.url, other.deployment.secret(API_TOKEN)) == 401
        assert answer_of(theirs.url, fed.deployment.secret(API_TOKEN)) == 401
        spec = {**SPEC, "num_edges": 1, "num_devices": 1}
        here, there = fed.start(SPEC), other.start(spec)
        assert fed.ended(here)[0].status == other.ended(there)[0].status == "completed"
        with other.client() as client:
            assert [edge.name for edge in client.edges().edges] == ["edge-1"]
    assert len(fed.jobs("edges")) == 3


def test_a_run_goes_on_after_all_its_jobs_were_pre_empted(cluster: Cluster, fed: Deployed) -> None:
    run = fed.start({**LONG, "num_rounds": 60, "eval_every": 60, "quorum": 0.3})
    fed.reach(run, 5)
    urgent = ("--partition", "urgent", "--nodes", "3", "--exclusive", "--output", "/dev/null")
    call("sbatch", "--wait", *urgent, "--wrap", "sleep 2", env=cluster.env, limit_s=300.0)
    for job in (job for kind in ("core", "edges", "agents") for job in fed.jobs(kind)):
        call("scontrol", "update", f"JobId={job['id']}", "StartTime=now", env=cluster.env, check=False)
    info, rounds = fed.ended(run)
    assert (info.status, len(rounds)) == ("completed", 60)
    assert rounds[-1].n_used == 3


@pytest.mark.timeout(1200)
def test_jobs_that_reach_their_time_limit_hand_over_and_nothing_changes(cluster: Cluster, tmp_path: Path) -> None:
    rests = {"clock": "real", "devices": {"profile": {"delay_s": 2.0}}}
    spec = {**SPEC, **rests, "num_edges": 1, "num_devices": 1, "num_rounds": 90, "eval_every": 90}
    limited = ("--edges", "1", "--time", "3", "--lead-s", "60", "--hasten", "--no-check")
    with Deployed(cluster, tmp_path, *limited, name="limited") as found:
        (before,) = found.jobs("core")
        info, rounds = found.ended(found.start(spec))
        (after,) = found.jobs("core")
        logs = {kind: (found.deployment.folder / "logs" / f"{kind}-1.out").read_text() for kind in ("edges", "agents")}
    assert info.status == "completed"
    assert len(rounds) == 90
    assert lost(rounds) == []
    assert info.model_sha256 == on_loopback(tmp_path, {**spec, "clock": "simulated"})
    assert before["job"] != after["job"]
    assert [kind for kind, log in logs.items() if "the time limit is near" not in log] == []
