"""`strata log`: lines of several processes merged, from a folder, from a pipe, or while they are written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata.launcher import home
from strata.launcher.process import execute
from strata.log_reader import POLL_S, SETTLE_S, Files, Wanted, follow, history, parsed
from tests.strata.conftest import CommandResult, Strata
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "r20260101-000000-0001", "r20260102-000000-0001"
Log = Callable[..., CommandResult]
TIERS = {"cloud": "cloud", "edge-1": "edge", "agent-1": "agent"}


def line(second: int, process: str, event: str, **fields: Any) -> str:
    at = f"2026-01-02T00:00:{second:02}.000+00:00"
    return json.dumps({"at": at, "level": "info", "tier": TIERS[process], "process": process, "event": event, **fields})


CLOUD = [
    line(1, "cloud", "run.status", run=OLD, status="completed"),
    line(2, "cloud", "run.status", run=NEW, status="running"),
    line(3, "cloud", "round.started", run=NEW, round=1),
    line(8, "cloud", "round.committed", run=NEW, round=1),
    line(9, "cloud", "round.started", run=NEW, round=2),
]
EDGE = [line(4, "edge-1", "order.taken", run=NEW, round=1), line(7, "edge-1", "update.sent", run=NEW, round=1)]
AGENT = [
    "Traceback of who knows what \x1b[31m",
    line(5, "agent-1", "visit.begun", run=NEW, round=1, seat=0),
    line(6, "agent-1", "visit.ended", run=NEW, round=1, seat=0),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    into = tmp_path / "logs"
    into.mkdir()
    for name, lines in (("cloud", CLOUD), ("edge-1", EDGE), ("agent-1", AGENT)):
        (into / f"{name}.log").write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    return into


@pytest.fixture
def log(strata: Strata, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """Run `strata log` with these words, and with a text on its standard input."""

    def run(*words: str, given: str = "") -> CommandResult:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8"))
        return strata("log", *words)

    return run


def test_one_round_of_the_latest_run_is_merged_from_three_processes(folder: Path, log: Log) -> None:
    done = log("--round", "1", "--from", str(folder))
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        f"00:00:03.000 cloud    round.started run={NEW} round=1",
        f"00:00:04.000 edge-1   order.taken run={NEW} round=1",
        f"00:00:05.000 agent-1  visit.begun run={NEW} round=1 seat=0",
        f"00:00:06.000 agent-1  visit.ended run={NEW} round=1 seat=0",
        f"00:00:07.000 edge-1   update.sent run={NEW} round=1",
        f"00:00:08.000 cloud    round.committed run={NEW} round=1",
    ]


def test_output_of_compose_is_read_from_a_pipe_with_or_without_its_prefix(log: Log) -> None:
    piped = "".join(f"{text}\n" for text in [*AGENT, *CLOUD, *(f"edge-1-1  | {text}" for text in EDGE)])
    done = log("latest", "--tier", "edge", "--format", "json", "--from", "-", given=piped)
    assert [json.loads(text) for text in done.out.splitlines()] == [json.loads(text) for text in EDGE]
    as_it_comes = log(NEW, "--follow", "--format", "json", "--from", "-", given=piped)
    assert as_it_comes.out.splitlines() == [*AGENT[1:], *CLOUD[1:], *EDGE]


def test_lines_of_other_programs_are_shown_without_control_characters(folder: Path, log: Log) -> None:
    lines = log("all", "--from", str(folder)).out.splitlines()
    assert len(lines) == len(CLOUD) + len(EDGE) + len(AGENT)
    assert lines[0] == "? ?        text Traceback of who knows what \\x1b[31m"
    assert f"run={OLD}" in lines[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "docker compose logs --no-log-prefix"),
        (("--from", "gone"), "from: no such file or folder: 'gone'"),
        (("--from", "-"), "STRATA_LOG_FORMAT=text"),
        (("../x",), "docker compose logs --no-log-prefix"),
    ],
)
def test_without_logs_the_error_says_where_to_look(log: Log, words: tuple[str, ...], said: str) -> None:
    done = log(*words, given="00:00:01.000 cloud round.started\n")
    assert (done.code, said in done.err) == (1, True), done.err


def test_logs_of_a_running_topology_and_of_a_run_that_failed_are_found(folder: Path, tmp_path: Path, log: Log) -> None:
    with home.announced("http://127.0.0.1:1", folder):
        assert len(log("--tier", "edge").out.splitlines()) == len(EDGE)
    kept = tmp_path / "runs" / OLD / "logs"
    kept.parent.mkdir(parents=True)
    folder.rename(kept)
    assert log(OLD).out == f"00:00:01.000 cloud    run.status run={OLD} status=completed\n"


@pytest.mark.whole
def test_a_closed_pipe_gives_no_traceback(folder: Path) -> None:
    code = "from strata.main import app_entry; app_entry()"
    words = f"{sys.executable} -c '{code}' log all --from {folder} | head -1; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", words], env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---- following


class Follower:
    """Follows the logs of a folder. Time passes in its pauses only, and in each of them the next step is taken.

    Attributes:
        now_s: the time.
        events: those of the lines found so far.
        n_before: how many had been found before each step.
    """

    def __init__(self, folder: Path, wanted: Wanted, *steps: Callable[[], object]) -> None:
        self.now_s, self.events, self.n_before = 0.0, list[str](), list[int]()
        self._steps = [*steps]
        for item in follow(Files(folder), wanted, clock=lambda: self.now_s, sleep=self._sleep):
            self.events.append(item["event"])

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self._steps:
            self.n_before.append(len(self.events))
            self._steps.pop(0)()


def append(path: Path, *texts: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(texts))


def test_a_run_is_followed_into_new_files_until_shortly_after_its_end(folder: Path) -> None:
    committed = line(10, "cloud", "round.committed", run=NEW, round=2)
    completed = line(11, "cloud", "run.status", run=NEW, status="completed")
    found = Follower(
        folder,
        Wanted(),
        lambda: append(folder / "agent-2.log", AGENT[1].replace("agent-1", "agent-2"), "\n"),
        lambda: append(folder / "cloud.log", committed[:40]),
        lambda: append(folder / "cloud.log", committed[40:], "\n", completed, "\n"),
        lambda: append(folder / "edge-1.log", line(11, "edge-1", "run.deleted", run=NEW), "\n"),
    )
    assert found.n_before == [8, 9, 9, 11]
    assert found.events[9:] == ["round.committed", "run.status", "run.deleted"]
    assert SETTLE_S < found.now_s - 3 * POLL_S < SETTLE_S + 2 * POLL_S


def test_a_resumed_run_has_not_ended(folder: Path) -> None:
    states = [line(10, "cloud", "run.status", run=NEW, status=status) for status in ("stopped", "pending")]
    append(folder / "cloud.log", *(f"{text}\n" for text in states))
    completed = line(11, "cloud", "run.status", run=NEW, status="completed")
    n_pauses = round(3 * SETTLE_S / POLL_S)
    nothing = [lambda: None] * n_pauses
    found = Follower(folder, Wanted(NEW), *nothing, lambda: append(folder / "cloud.log", completed, "\n"))
    assert found.n_before == [10] * (n_pauses + 1)
    assert found.events[10:] == ["run.status"]


def test_lines_of_older_runs_are_dropped_for_latest() -> None:
    wanted = Wanted()
    found = history((parsed(text) for text in [*CLOUD, *EDGE]), wanted)
    assert wanted.of == NEW
    assert {item["run"] for item in found} == {NEW}


def test_a_rotated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "cloud.log"
    path.write_text("".join(f"{text}\n" for text in CLOUD), encoding="utf-8")
    files = Files(path)
    assert len(list(files.new())) == len(CLOUD)
    path.write_text(CLOUD[0] + "\n", encoding="utf-8")
    assert len(list(files.new())) == 1
    assert list(files.new()) == []


def test_the_end_of_a_dead_process_log_is_readable(tmp_path: Path) -> None:
    program = "import json; print(json.dumps({'at': '2026-01-02T00:00:01.000+00:00', 'level': 'error', 'tier': 'cloud',"
    program += "'process': 'cloud', 'event': 'log', 'text': 'it failed', 'traceback': 'Trace\\n  ValueError: x'}))"
    (tmp_path / "dying.py").write_text(program, encoding="utf-8")
    process = execute("cloud", "dying", {**os.environ, "PYTHONPATH": str(tmp_path)}, tmp_path / "cloud.log")
    assert process.wait(HANG_S)
    assert process.tail() == "00:00:01.000 cloud    ERROR log it failed\n    | Trace\n    |   ValueError: x"


def test_the_latest_run_is_the_one_created_last_and_lines_keep_the_order_of_their_process() -> None:
    """The clock was set back by a day between two runs, and within the second one by some seconds."""
    late = [
        line(1, "cloud", "run.status", run=NEW, status="pending", sequence=7_000_000_000_000),
        line(2, "cloud", "run.status", run=OLD, status="pending", sequence=7_000_000_000_001),
        line(9, "cloud", "round.started", run=OLD, round=1),
        line(5, "cloud", "round.committed", run=OLD, round=1),
        line(4, "edge-1", "order.taken", run=OLD, round=1),
    ]
    found = history(map(parsed, late), Wanted())
    events = ["run.status", "order.taken", "round.started", "round.committed"]
    assert [each["event"] for each in found] == events
