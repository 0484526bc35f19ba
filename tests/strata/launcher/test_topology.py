"""The local launcher, with fake tiers and a real redis-server."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from shared.core.errors import BadInput, Conflict, NotReady
from shared.core.os_errors import SystemRefused
from strata.launcher import environment
from strata.launcher import home as strata_home
from strata.launcher.environment import MALLOC, Modules, spread
from strata.launcher.process import ProcessDied
from strata.launcher.topology import Topology
from strata.launcher.work_folder import WorkFolder
from tests import real_redis
from tests.process_state import has_ended, state_of, wait_until_gone
from tests.strata.conftest import Strata
from tests.waits import HANG_S, until

ROOT = Path(__file__).resolve().parents[3]
FAKE = "tests.strata.fake_tier"
FAKES = Modules(FAKE, FAKE, FAKE, preloaded=())


def topology(**options: Any) -> Topology:
    everything: dict[str, Any] = {"edges": 2, "devices": 5, "agents": 2, "modules": FAKES} | options
    return Topology(**everything)


def env_of(folder: Path, name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / name / "env.json").read_text())
    return found


def test_agents_that_share_gpus_see_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    with topology(devices=3, agents=3, agents_per_gpu=2, folder=tmp_path) as running:
        running.wait_ready()
        seen = [env_of(tmp_path, f"agent-{index}").get("CUDA_VISIBLE_DEVICES") for index in (1, 2, 3)]
    assert seen == ["4", "4", "6"]


def all_processes(running: Topology) -> list[int]:
    """Returns all processes of a topology and their children."""
    pids = [process.pid for process in running.processes.values()]
    grandchildren = [int(env_of(running.folder, name)["GRANDCHILD"]) for name in running.processes]
    return [*pids, *grandchildren, running.redis.pid]


@pytest.mark.parametrize(
    ("cores", "devices", "agents", "devices_per_agent"),
    [
        (1, 10, 3, [4, 3, 3]),
        (1, 5, 5, [1] * 5),
        (1, 7, 1, [7]),
        (1, 1, None, [1]),
        (4, 10, None, [3, 3, 2, 2]),
        (4, 3, None, [1, 1, 1]),
        (2, 20_001, None, [10_001, 10_000]),
        (2, 1_000_000, 4, [250_000] * 4),
    ],
)
def test_devices_are_spread_evenly_by_default_over_an_agent_for_each_core(
    cores: int, devices: int, agents: int | None, devices_per_agent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "cpus", lambda: cores)
    assert spread(devices, agents) == devices_per_agent


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"devices": 2, "agents": 3}, "agents"),
        ({"devices": 0}, "devices"),
        ({"edges": 0}, "edges"),
        ({"order": [0, 0]}, "order"),
        ({"profiles": ["fast"]}, "profiles"),
    ],
)
def test_impossible_topology_is_refused_by_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        topology(**options)
    assert refused.value.field == field


def test_all_processes_register_and_get_the_documented_environment_and_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_DATA_DIR", "/data/sets")
    monkeypatch.setenv("STRATA_TIER_TOKEN_FILE", "/secrets/of/another")  # each topology draws its own token
    own = {"edge-2": {"WHOSE": "its own", "EDGE_TTL_S": "7", "PYTHONPATH": "/its/own"}}
    given: dict[str, Any] = {"profiles": ["slow", "fast"], "order": [1, 0], "env": {"WHOSE": "all"}, "env_of": own}
    with topology(runs_dir=tmp_path / "results", **given) as running:
        info = running.wait_ready(HANG_S)
        cloud, edge, agents = (
            env_of(running.folder, "cloud"),
            env_of(running.folder, "edge-2"),
            [env_of(running.folder, name) for name in ("agent-1", "agent-2")],
        )
        other, folder = env_of(running.folder, "edge-1"), running.folder
        assert [name for name in running.processes if name.startswith("agent")] == ["agent-2", "agent-1"]
    assert (info.n_devices, info.n_agents) == (5, 2)
    assert sorted(edge.edge for edge in info.edges) == ["edge-1", "edge-2"]
    tokens = {env["STRATA_TIER_TOKEN"] for env in (cloud, edge, *agents)}
    assert tokens == {running.tier_token}
    assert not any(env["STRATA_TIER_TOKEN_FILE"] for env in (cloud, edge, *agents))
    assert all(env[f"{library}_NUM_THREADS"] == "1" for env in agents for library in ("OMP", "MKL", "OPENBLAS"))
    set_alike = {(env["GLIBC_TUNABLES"], env["STRATA_FSYNC"]) for env in (cloud, edge, *agents)}
    assert set_alike == {(MALLOC, "0")}
    assert cloud["CLOUD_RUNS_DIR"] == str(tmp_path / "results")
    assert cloud["CLOUD_REDIS_URL"] == edge["EDGE_REDIS_URL"]
    assert cloud["STRATA_DATA_DIR"] == "/data/sets"
    assert (edge["EDGE_NAME"], edge["EDGE_HOST"]) == ("edge-2", "127.0.0.1")
    assert int(edge["EDGE_PORT"]) == running.ports["edge-2"]
    assert [env["AGENT_DEVICES"] for env in agents] == ["3", "2"]
    assert [env["AGENT_PROFILE"] for env in agents] == ["slow", "fast"]
    assert edge["EDGE_CLOUD_URL"] == agents[0]["AGENT_CLOUD_URL"] == f"http://127.0.0.1:{cloud['CLOUD_PORT']}"
    assert agents[1]["AGENT_STATE_DIR"] == str(folder / "agent-2")
    assert [env["WHOSE"] for env in (other, agents[0], edge)] == ["all", "all", "its own"]
    assert [env.get("EDGE_TTL_S") for env in (other, edge)] == [None, "7"]
    assert edge["PYTHONPATH"] == "/its/own"


def test_stop_leaves_no_process_and_no_folder_even_of_one_that_ignores_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.launcher.topology._GRACE_S", 0.5)
    running = topology(env={"FAKE_DEAF": "edge-1"}).start()
    running.wait_ready(HANG_S)
    folder, pids = running.folder, all_processes(running)
    assert len(pids) == 11
    assert not any(map(has_ended, pids))
    running.stop()
    wait_until_gone(*pids)
    assert not folder.exists()
    running.stop()  # a second call has no effect


def test_processes_of_a_topology_are_stopped_added_retired_killed_and_restarted(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with topology(folder=kept) as running:
        running.wait_ready(HANG_S)
        url, token = running.url, running.tier_token
        assert topology().tier_token != token
        with pytest.raises(Conflict, match="another topology uses"):
            topology(folder=kept).start()
        agent = running.processes["agent-1"]
        agent.signal(signal.SIGSTOP)
        until("the stop of the agent", lambda: state_of(agent.pid) == "T")
        assert running.dead() == [], "one that stands still has not ended"
        agent.signal(signal.SIGCONT)
        assert running.add_agent(2) == "agent-3"
        assert running.wait_ready(HANG_S).n_devices == 7
        assert running.processes["agent-3"].private_bytes > 1_000_000
        running.end("agent-3")
        assert running.processes["agent-3"].private_bytes == 0
        running.retire(["agent-3"])
        running.end("cloud")
        assert [process.name for process in running.dead()] == ["cloud"]
        with pytest.raises(ProcessDied, match=r"cloud ended \(signal SIGKILL"):
            running.check()
        running.start_again("cloud")
        running.check()
        assert running.url == url
        with redis.Redis.from_url(running.redis.url) as client:
            client.set("kept", "yes")
            real_redis.kill(running.redis)
            with pytest.raises(ProcessDied, match=r"redis-server ended \(signal SIGKILL\): .*allow more memory"):
                running.check()
            real_redis.restart(running.redis)
            assert client.get("kept") == b"yes"
        running.check()
        agent.signal(signal.SIGSTOP)
        running.end("agent-1")
        wait_until_gone(agent.pid)
    assert (kept / "logs" / "agent-1.log").read_text() == "agent-1 is here\n"
    assert (kept / "edge-1" / "env.json").exists()
    with topology(folder=kept) as again:
        again.wait_ready(HANG_S)


@pytest.mark.whole
def test_a_host_without_ipv4_is_reached_by_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no ::1")
    refuse(monkeypatch, "127.0.0.1")
    with topology() as running:
        assert running.url == f"http://[::1]:{running.ports['cloud']}"
        running.wait_ready(HANG_S)
        assert env_of(running.folder, "edge-1")["EDGE_CLOUD_URL"] == running.url
        assert env_of(running.folder, "agent-1")["AGENT_HOST"] == "::1"
    refuse(monkeypatch, "127.0.0.1", "::1")
    with pytest.raises(SystemRefused, match=r"neither 127\.0\.0\.1 nor ::1"):
        topology().start()


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def refuse(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Takes these addresses from this process."""

    class Socket(socket.socket):
        def bind(self, address: Any) -> None:
            if address[0] in hosts:
                raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Socket)


@pytest.mark.parametrize(("hard", "edges", "needed"), [(63, 1, 64), (75, 12, 76)])
def test_too_few_open_files_are_known_before_a_process_starts(
    hard: int, edges: int, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard, hard))
    with pytest.raises(SystemRefused, match=f"{hard} files may be open .* {edges} edges needs {needed}: raise"):
        topology(edges=edges).prepare()
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (needed, needed))
    environment.check_files(edges)


def test_process_that_dies_at_start_is_named_with_its_log() -> None:
    with topology(env={"FAKE_DIES": "agent-2"}) as running:
        with pytest.raises(ProcessDied) as died:
            running.wait_ready(HANG_S)
        folder = running.folder
    assert died.value.detail == (
        "agent-2 ended (exit status 1); its log ends:\nagent-2 is here\nagent-2: no such sensor"
    )
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "missing"), [("edge-2", "edge-2"), ("agent-1", "3 of 5 devices (agent-1)")])
def test_nodes_missing_at_the_deadline_are_named(silent: str, missing: str) -> None:
    """The wait is repeated until the others, which a busy machine starts slowly, are there."""
    expected = f"not ready after 0.2 s, missing: {missing}"
    with topology(env={"FAKE_SILENT": silent}) as running:
        until(expected, lambda: not_ready(running) == expected)


def not_ready(running: Topology) -> str:
    with pytest.raises(NotReady) as late:
        running.wait_ready(0.2)
    return late.value.detail


def test_an_agent_that_could_not_be_started_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with topology(fork=False) as running:
        before = running.agents()
        with monkeypatch.context() as patched:
            patched.setattr("subprocess.Popen", no_process)
            with pytest.raises(BlockingIOError):
                running.add_agent(2)
        assert running.agents() == before
        assert running.add_agent(2) == f"agent-{len(before) + 1}"


def no_process(*_: object, **__: object) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def test_occupied_port_is_refused_and_leaves_no_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = topology(port=taken.getsockname()[1])
        with pytest.raises(BadInput, match="is not available") as refused:
            running.start()
    assert refused.value.field == "port"
    assert running.processes == {}


def test_abandoned_temporary_folder_is_removed_and_a_used_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned, used = WorkFolder(None), WorkFolder(None)
    os.close(abandoned._lock)  # the kernel does this when the launcher is killed
    third = WorkFolder(None)
    assert sorted(tmp_path.iterdir()) == sorted([used.path, third.path])
    used.close()
    third.close()
    assert list(tmp_path.iterdir()) == []


# ---- `strata up` as a separate process

UP = f"""
import sys
from strata.launcher import environment, topology
topology.Modules = lambda: environment.Modules({FAKE!r}, {FAKE!r}, {FAKE!r}, ())
from strata.main import app_entry
app_entry(["up", "--edges", "1", "--devices", "3", "--agents", "2", "--port", "0", "--format", "json"])
"""


def start_up(**options: Any) -> tuple[subprocess.Popen[str], dict[str, Any], list[int]]:
    """Starts `strata up`; returns its process, its output, and all processes that it started."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    options.setdefault("preexec_fn", partial(signal.signal, signal.SIGHUP, signal.SIG_DFL))  # of tests below nohup
    process = subprocess.Popen(
        [sys.executable, "-c", UP], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options
    )
    assert process.stdout is not None
    printed = json.loads(process.stdout.readline())
    folder = Path(printed["folder"])
    names = ("cloud", "edge-1", "agent-1", "agent-2")
    grandchildren = [int(env_of(folder, name)["GRANDCHILD"]) for name in names]
    redis_and_fork_server = children(process.pid)
    own = [*redis_and_fork_server, *(forked for pid in redis_and_fork_server for forked in children(pid))]
    assert len(own) == 6
    return process, printed, own + grandchildren


def children(pid: int) -> list[int]:
    """Returns the child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGHUP, 129)])
def test_signal_to_up_leaves_no_process(home: Path, number: signal.Signals, status: int) -> None:
    process, printed, pids = start_up()
    process.send_signal(number)
    process.communicate(timeout=HANG_S)
    assert process.returncode == status
    wait_until_gone(*pids)
    assert not Path(printed["folder"]).exists()
    assert not (home / ".strata" / "topology.json").exists()


def ignored_by(pid: int) -> int:
    """Returns the mask of the signals that a process ignores."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigIgn")).split()[1], 16)


@pytest.mark.slow
def test_a_hangup_that_nohup_ignores_is_ignored_by_up_and_all_that_it_starts(home: Path) -> None:
    process, _, pids = start_up(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    hangup = 1 << (signal.SIGHUP - 1)
    assert all(ignored_by(pid) & hangup for pid in (process.pid, *pids))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0


@pytest.mark.slow
def test_second_interrupt_leaves_no_process() -> None:
    process, printed, pids = start_up()
    process.send_signal(signal.SIGINT)
    until("the end of the first", lambda: any(map(has_ended, pids)), every_s=0.001)
    process.send_signal(signal.SIGINT)  # while it ends its processes
    process.communicate(timeout=HANG_S)
    wait_until_gone(*pids)
    assert not Path(printed["folder"]).exists()


@pytest.mark.slow
def test_killed_launcher_ends_its_processes(home: Path) -> None:
    process, printed, pids = start_up()
    own = pids[:6]  # the kernel ends no grandchildren; the fork server does if it has the time
    process.kill()
    process.communicate(timeout=HANG_S)
    for pid in pids[6:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until_gone(*own)
    assert strata_home.running() is None
    WorkFolder(None, home / "runs").close()  # the next launcher cleans up
    until("the end of the folder", lambda: not Path(printed["folder"]).exists())


@pytest.mark.whole
def test_other_commands_find_the_topology_of_up_and_down_ends_it(home: Path, strata: Strata) -> None:
    process, printed, pids = start_up()
    note = json.loads((home / ".strata" / "topology.json").read_text())
    known = {"url": printed["url"], "pid": process.pid, "logs": f"{printed['folder']}/logs", "authority": ""}
    assert note == known
    assert (printed["edges"], printed["agents"], printed["devices"]) == (1, 2, 3)
    assert printed["dashboard"] == f"{printed['url']}/ui/"
    second = strata("up")
    assert second.code == 1
    assert printed["url"] in second.err
    doctor = {check["name"]: check for check in json.loads(strata("doctor", "--format", "json").out)}
    assert doctor["topology"]["found"] == f"{printed['url']}: 1 edges, 2 agents, 3 devices"
    ended = strata("down", "--format", "json")
    process.communicate(timeout=HANG_S)
    assert (ended.code, json.loads(ended.out)) == (0, {"stopped": True, "url": printed["url"]})
    wait_until_gone(*pids)


def test_file_of_a_killed_up_is_ignored(home: Path, strata: Strata) -> None:
    folder = home / ".strata"
    folder.mkdir()
    (folder / "topology.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))
    (folder / "topology.lock").touch()
    assert strata_home.running() is None
    assert strata("down", "--format", "json").out == '{"stopped": false, "url": null}\n'


@pytest.mark.parametrize("content", ["", "[]", '{"address": "http://127.0.0.1:1"}'])
def test_file_of_a_running_up_that_cannot_be_read_is_named(home: Path, strata: Strata, content: str) -> None:
    with strata_home.announced("http://127.0.0.1:1"):
        (home / ".strata" / "topology.json").write_text(content)
        result = strata("ls")
        assert (result.code, "topology.json is damaged or of another version" in result.err) == (1, True)
