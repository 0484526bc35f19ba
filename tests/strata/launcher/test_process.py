"""One process of a local topology."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata.launcher import process
from strata.launcher.process import end_all, execute
from tests.waits import until


def test_a_log_is_rotated_while_its_process_continues_to_write(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(
        "import pathlib, sys, time\n"
        "print('first ' * 100, flush=True)\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
        "print('second', flush=True)\n"
        "time.sleep(60)\n"
    )
    talker = execute("talker", "talker", {**os.environ, "PYTHONPATH": str(tmp_path)}, tmp_path / "talker.log")
    try:
        wait_for(talker.log, "first")
        talker.trim(longest=10_000)
        assert talker.log.read_text().startswith("first")
        talker.trim(longest=100)
        (tmp_path / "go").touch()
        wait_for(talker.log, "second")
        assert talker.log.read_bytes() == b"second\n"  # no gap of zero bytes before it
        assert (tmp_path / "talker.log.1").read_text().startswith("first first")
    finally:
        end_all([talker], 5.0)


def wait_for(path: Path, word: str) -> None:
    until(f"{word!r} in {path}", lambda: word in path.read_text(), every_s=0.01)


@pytest.mark.parametrize(
    ("code", "killed", "words"),
    [
        (-9, 0, "(signal SIGKILL): the kernel does so where memory runs out, as `kill -9` and batch systems do"),
        (-9, 2, "(signal SIGKILL): memory has run out (this container allows 0.40 GB), and the kernel has ended 2"),
        (-15, 2, "(signal SIGTERM)"),
        (3, 0, "(exit status 3)"),
    ],
)
def test_the_end_by_sigkill_is_told_with_what_memory_has_to_do_with_it(
    code: int, killed: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "n_killed", lambda: killed)
    monkeypatch.setattr(process, "of_limit", lambda: " (this container allows 0.40 GB)")
    found = process.how_ended(code)
    assert found.startswith(words)
    assert found.endswith("--agents)") == (code == -9)
