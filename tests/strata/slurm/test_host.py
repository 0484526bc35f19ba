"""What the programs of jobs find out about their node, and what they hand to tiers."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from shared.core.os_errors import SystemRefused
from strata.slurm import host
from strata.slurm.check_job import Report, _compare, report
from strata.slurm.commands import Slurm
from strata.slurm.deployment import SECRETS
from strata.slurm.node_job import Idle, Tiers, _hasten_core
from tests.strata.slurm.made import command, deployment


def test_a_tier_is_told_files_with_secrets_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_API_TOKEN", "of-the-user")
    made = deployment(tmp_path, env={"STRATA_LOG_LEVEL": "DEBUG"})
    for tier in ("CLOUD", "EDGE", "AGENT"):
        found = host.tier_environment(made, tier, "10.0.0.1", "x")
        assert [name for name in SECRETS if made.secret(name) in found.values()] == []
        assert found["STRATA_TIER_TOKEN_FILE"] == str(made.secret_file("tier-token"))
        assert found[f"{tier}_STATE_DIR"] == str(made.folder / "x")
        assert found["STRATA_LOG_LEVEL"] == "DEBUG"
        assert (f"{tier}_REDIS_PASSWORD_FILE" in found) == (tier != "AGENT")
        assert ("STRATA_API_TOKEN_FILE" in found) == (tier == "CLOUD")
        assert found["STRATA_TIER_TOKEN"] == ""


def test_the_address_that_slurm_knows_is_taken_if_it_is_this_node_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(host, "is_loopback", lambda address: False)
    command(tmp_path / "bin", "scontrol", "echo NodeAddr=127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert host.own_address(None, Slurm()) == "127.0.0.1"


def test_a_node_without_an_address_that_others_reach_says_what_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    monkeypatch.setattr(socket, "getfqdn", lambda: "localhost")
    with pytest.raises(SystemRefused, match=r"none of localhost is an address of this node .*--network"):
        host.own_address(None, Slurm(str(tmp_path)))


def test_a_named_network_decides(tmp_path: Path) -> None:
    assert host.own_address("127.0.0.0/8", Slurm(str(tmp_path))).startswith("127.")
    with pytest.raises(SystemRefused, match=r"no address in 203\.0\.113\.0/24|no way to"):
        host.own_address("203.0.113.0/24", Slurm(str(tmp_path)))


def test_signals_are_noted() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        found = host.Signals()
        found.heed()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (found.near_end, found.ended) == (True, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (found.near_end, found.ended) == (True, True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_job_without_a_cloud_ends_after_a_limit() -> None:
    assert not Idle(1e6).is_over(None)
    assert Idle(-1.0).is_over(None)


def test_while_no_cloud_answers_the_core_is_hastened_at_most_now_and_then() -> None:
    asked: list[int] = []
    idle = Idle(1e6, lambda: asked.append(1))
    assert [idle.is_over(None) for _ in range(3)] == [False] * 3
    assert len(asked) == 1


def test_a_core_that_slurm_delays_is_hastened_and_one_that_waits_its_turn_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    command(tmp_path / "bin", "scontrol", f'echo "$@" >> {tmp_path}/said')
    for reason, said in (("Priority", []), ("BeginTime", ["update JobId=7 StartTime=now"])):
        row = f"7|N/A|7|strata-default-abc-core|PENDING||{reason}"
        command(tmp_path / "bin", "squeue", f'[ "$1" = --json ] && exit 1; echo "{row}"')
        _hasten_core(deployment(tmp_path))
        assert ((tmp_path / "said").read_text().splitlines() if said else []) == said
    assert capsys.readouterr().out == "the core's job 7 is to begin at once\n"


def test_agents_of_a_job_have_its_gpus_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    tiers = Tiers(deployment(tmp_path, agents_per_node=4, agents_per_gpu=2), "agents", 3)
    assert tiers.names == ["agent-9", "agent-10", "agent-11", "agent-12"]
    assert [tiers._gpus(place)["CUDA_VISIBLE_DEVICES"] for place in range(4)] == ["2", "2", "5", "5"]


def test_a_node_that_differs_is_refused_by_what_differs(tmp_path: Path) -> None:
    from shared.core.errors import Conflict
    from shared.core.plugins import digests
    from shared.core.versions import versions

    same = Report(drawn="x", node="n7", versions=versions(), plugins=digests())
    _compare(same)
    with pytest.raises(Conflict, match=r"compute node n7 has torch 1\.0, this machine"):
        _compare(same.replace(versions={**versions(), "torch": "1.0"}))
    with pytest.raises(Conflict, match="compute node n7 has plug-in mine 123, this machine unknown"):
        _compare(same.replace(plugins={**digests(), "mine": "123"}))
    with pytest.raises(Conflict, match="compute node n7: no room"):
        _compare(same.replace(problem="no room"))


def test_a_folder_of_data_that_a_node_does_not_have_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = deployment(tmp_path, env={"STRATA_DATA_DIR": str(tmp_path / "absent")}, network="127.0.0.0/8")
    (made.folder / "check-asked.json").write_text('{"drawn": "abc"}')
    monkeypatch.setenv("STRATA_DATA_DIR", "")
    found = report(made)
    assert found.drawn == "abc"
    assert found.problem == f"STRATA_DATA_DIR: {tmp_path / 'absent'} is not there"
