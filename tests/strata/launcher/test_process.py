"""One process of a local topology."""

from __future__ import annotations

import os
from pathlib import Path

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
    process = execute("talker", "talker", {**os.environ, "PYTHONPATH": str(tmp_path)}, tmp_path / "talker.log")
    try:
        wait_for(process.log, "first")
        process.trim(longest=10_000)
        assert process.log.read_text().startswith("first")
        process.trim(longest=100)
        (tmp_path / "go").touch()
        wait_for(process.log, "second")
        assert process.log.read_bytes() == b"second\n"  # no gap of zero bytes before it
        assert (tmp_path / "talker.log.1").read_text().startswith("first first")
    finally:
        end_all([process], 5.0)


def wait_for(path: Path, word: str) -> None:
    until(f"{word!r} in {path}", lambda: word in path.read_text(), every_s=0.01)
