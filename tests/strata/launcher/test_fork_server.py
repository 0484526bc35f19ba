"""The fork server: what its processes share, what each has of its own, and how they end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import DeadlineExceeded
from strata.launcher.environment import MALLOC, common
from strata.launcher.fork_server import ForkServer
from strata.launcher.process import Process, ProcessDied, end_all
from tests.process_state import has_ended, wait_until_gone
from tests.waits import HANG_S

REPORT = """
import json, os, random, signal, sys
import numpy, torch

links = {}
for number in os.listdir("/proc/self/fd"):
    try:
        links[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:  # the folder's own descriptor
        pass
print(json.dumps({
    "own": os.environ.get("OWN"), "home": os.environ.get("HOME"), "tunables": os.environ["GLIBC_TUNABLES"],
    "argv": sys.argv, "folder": os.getcwd(), "name": open("/proc/self/comm").read().strip(),
    "session": os.getsid(0) == os.getpid(), "parent": os.getppid(),
    "input": links.pop(0), "output": links.pop(1), "errors": links.pop(2), "descriptors": sorted(links.values()),
    "handlers": [str(signal.getsignal(number)) for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)],
    "random": [random.random(), float(numpy.random.rand()), float(torch.rand(1))],
    "given": os.environ.get("GIVEN_FD") and os.fstat(int(os.environ["GIVEN_FD"])).st_ino,
}))
"""
SCRIPTS = {
    "report": REPORT,
    "sleeper": "import time; time.sleep(600)",
    "polite": "import sys; sys.exit(3)",
    "faulty": "raise ValueError('no such sensor')",
    "threaded": "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "initialised": """
        import sys, types
        sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
    """,
}


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder of modules, to be on the path of the server."""
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return tmp_path


@contextmanager
def server(scripts: Path, *modules: str) -> Iterator[ForkServer]:
    forks = ForkServer(environment(scripts), scripts / "server.log", modules)
    try:
        yield forks
    finally:
        forks.close()


def environment(scripts: Path, **more: str) -> dict[str, str]:
    return common({"PYTHONPATH": str(scripts), **more}, "token")


def start(forks: ForkServer, scripts: Path, module: str, name: str = "one", **more: Any) -> Process:
    inherited: Mapping[str, int] = more.pop("inherited", {})
    return forks.start(name, module, environment(scripts, **more), scripts / f"{name}.log", inherited)


def reported(process: Process) -> dict[str, Any]:
    assert process.wait(HANG_S), "it still runs"
    assert process.returncode == 0, process.tail()
    found: dict[str, Any] = json.loads(process.log.read_text())
    return found


@contextmanager
def given_sigint(handler: Any) -> Iterator[None]:
    """Sets the handler of SIGINT, which a shell's background job inherits as ignored."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.whole
def test_each_process_has_an_environment_descriptors_and_random_states_of_its_own(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scripts / "elsewhere").mkdir()
    with (
        given_sigint(signal.default_int_handler),
        server(scripts, "torch", "numpy") as forks,
        (scripts / "given").open("w") as given,
    ):
        monkeypatch.chdir(scripts / "elsewhere")
        first = reported(start(forks, scripts, "report", "first", OWN="1", inherited={"GIVEN_FD": given.fileno()}))
        monkeypatch.delenv("HOME", raising=False)
        second = reported(start(forks, scripts, "report", "second", OWN="2"))
        server_pid = forks.process.pid
    assert (first["own"], second["own"]) == ("1", "2")
    assert first["home"] is not None
    assert second["home"] is None  # the environment is replaced, not updated
    assert first["tunables"] == MALLOC
    assert first["given"] == (scripts / "given").stat().st_ino
    assert second["given"] is None
    assert first["descriptors"] == [str(scripts / "given")]
    assert second["descriptors"] == []
    assert (first["input"], first["output"]) == ("/dev/null", str(scripts / "first.log"))
    assert second["errors"] == str(scripts / "second.log")
    assert first["folder"] == str(scripts / "elsewhere")
    assert [each["name"] for each in (first, second)] == ["first", "second"]
    for each in (first, second):
        assert each["session"]
        assert each["parent"] == server_pid
        assert each["argv"] == [str(scripts / "report.py")]
        assert each["handlers"][:2] == ["0", "0"]
        assert "default_int_handler" in each["handlers"][2]
    assert all(one != other for one, other in zip(first["random"], second["random"], strict=True))


def test_ends_are_reported_as_an_executed_process_reports_them_and_all_end_with_the_server(scripts: Path) -> None:
    with server(scripts) as forks:
        polite, faulty, killed = [start(forks, scripts, module, module) for module in ("polite", "faulty", "sleeper")]
        assert not killed.wait(0.05)
        killed.signal(signal.SIGKILL)
        assert all(process.wait(HANG_S) for process in (polite, faulty, killed))
        assert (polite.returncode, faulty.returncode, killed.returncode) == (3, 1, -9)
        assert "ValueError: no such sensor" in faulty.tail()
        assert "signal SIGKILL" in killed.death().detail
        missing = start(forks, scripts, "no_such_module", "missing")
        assert missing.wait(HANG_S)
        assert missing.returncode == 1
        assert "no_such_module" in missing.tail()
        for number in range(20):
            at_once = start(forks, scripts, "sleeper", f"sleeper-{number}")
            at_once.signal(signal.SIGKILL)  # right after the start it is not lost
            assert at_once.wait(HANG_S)
        sleepers = [start(forks, scripts, "sleeper", f"waited-{n}") for n in range(2)]
        ended: dict[str, bool] = {}
        waiting = [
            threading.Thread(target=lambda process=process: ended.update({process.name: process.wait(HANG_S)}))
            for process in sleepers
        ]
        for thread in waiting:
            thread.start()
        end_all(sleepers[::-1], 5.0)
        for thread in waiting:
            thread.join(60)
        assert ended == {"waited-0": True, "waited-1": True}
        left = start(forks, scripts, "sleeper")
    wait_until_gone(left.pid)
    assert forks.process.returncode == 0


def test_a_server_that_does_not_answer_in_time_is_ended(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.launcher.fork_server._ANSWER_S", 0.2)
    monkeypatch.setattr("strata.launcher.fork_server._CLOSE_S", 0.5)  # it does not end by itself
    with server(scripts, "sleeper") as forks:  # its import takes ten minutes
        with pytest.raises(DeadlineExceeded, match=r"has not answered for 0\.2 s"):
            start(forks, scripts, "polite")
        with pytest.raises(ProcessDied, match="fork server ended"):
            start(forks, scripts, "polite")


def test_processes_of_a_killed_server_are_killed_and_the_server_is_named(scripts: Path) -> None:
    with server(scripts) as forks:
        sleepers = [start(forks, scripts, "sleeper", f"sleeper-{n}") for n in range(2)]
        os.kill(forks.process.pid, signal.SIGKILL)
        wait_until_gone(*[process.pid for process in sleepers])
        assert [process.returncode for process in sleepers] == [-9, -9]
        with pytest.raises(ProcessDied, match=r"fork server ended \(signal SIGKILL"):
            start(forks, scripts, "sleeper")


def test_processes_end_with_their_launcher(scripts: Path) -> None:
    program = f"""
        from pathlib import Path
        from strata.launcher.environment import common
        from strata.launcher.fork_server import ForkServer
        import os, signal
        folder = Path({str(scripts)!r})
        env = common({{"PYTHONPATH": str(folder)}}, "token")
        forks = ForkServer(env, folder / "server.log", [])
        pids = [forks.start(name, "sleeper", env, folder / "log", {{}}).pid for name in ("one", "two")]
        print(forks.process.pid, *pids, flush=True)
        signal.pause()
    """
    launcher = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, env=environment(scripts)
    )
    assert launcher.stdout is not None
    pids = [int(word) for word in launcher.stdout.readline().split()]
    assert len(pids) == 3
    assert not any(map(has_ended, pids))
    launcher.kill()
    launcher.communicate(timeout=HANG_S)
    wait_until_gone(*pids)


@pytest.mark.parametrize(
    ("module", "why"), [("no_such_module", "no_such_module"), ("threaded", "2 threads"), ("initialised", "CUDA")]
)
def test_a_server_that_could_not_fork_soundly_says_why(scripts: Path, module: str, why: str) -> None:
    with server(scripts, module) as forks, pytest.raises(ProcessDied, match=why):
        start(forks, scripts, "sleeper")


def test_a_fork_that_the_system_refuses_is_an_error_of_the_caller(scripts: Path) -> None:
    (scripts / "refusing.py").write_text(
        f"import os\ndef fork(): raise OSError({errno.EAGAIN}, 'Resource temporarily unavailable')\nos.fork = fork\n"
    )
    with server(scripts, "refusing") as forks:
        for _ in range(2):  # the server goes on
            with pytest.raises(BlockingIOError):
                start(forks, scripts, "sleeper")
        assert forks.process.returncode is None


def test_what_counts_at_a_start_cannot_differ_from_the_server(scripts: Path) -> None:
    with server(scripts) as forks:
        assert forks.can_start(environment(scripts, STRATA_LOG_LEVEL="DEBUG", EDGE_NAME="edge-7"))
        for variable in ("PYTHONHASHSEED", "LD_PRELOAD", "OMP_NUM_THREADS", "GLIBC_TUNABLES"):
            assert not forks.can_start(environment(scripts) | {variable: "7"}), variable
