"""Commands that only read records or ask a cloud start at once, without torch, which takes seconds to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strata.main import app_entry
from tests.strata.samples import a_round, put_run
from tests.waits import HANG_S

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import contextlib, io, json, sys
import strata
from strata.main import app_entry

strata.local, strata.compare, strata.sweep
print(json.dumps([["objects"], "", "torch" in sys.modules]))
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        app_entry(words)
    print(json.dumps([words, said.getvalue(), "torch" in sys.modules]))
"""
SAID = {
    "ls": "fedavg",
    "show a": "fedavg",
    "agents a": "label counts",
    "compare a": "picture: ",
    "log a": "docker compose logs",
    "pause a": "no cloud found",
    "watch a": "no cloud found",
    "run spec.yaml --url http://127.0.0.1:9": "127.0.0.1:9",
}


def test_the_objects_and_commands_that_train_nothing_load_no_torch(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("data: digits\n", encoding="utf-8")
    put_run(tmp_path / "runs" / "a", [a_round(1)])
    env = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
    env |= {"PYTHONPATH": str(ROOT), "STRATA_HOME": str(tmp_path / ".strata"), "COLUMNS": "200"}
    command = [sys.executable, "-c", PROGRAM, json.dumps([words.split() for words in SAID])]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert not done.stderr
    found = {" ".join(words): (said, loaded) for words, said, loaded in map(json.loads, done.stdout.splitlines())}
    assert {words: loaded for words, (_, loaded) in found.items()} == dict.fromkeys(["objects", *SAID], False)
    assert {words: said in found[words][0] for words, said in SAID.items()} == dict.fromkeys(SAID, True), found


def test_what_the_system_refuses_is_one_line_and_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever the command: here the folder of a report is a file."""
    put_run(tmp_path / "runs" / "a", [a_round(1)])
    (tmp_path / "file").touch()
    target = str(tmp_path / "file" / "r.html")
    with pytest.raises(SystemExit, match="1"):
        app_entry(["report", "a", "--runs-dir", str(tmp_path / "runs"), "-o", target])
    assert [line for line in capfd.readouterr().err.splitlines() if line] == [f"error: {tmp_path}/file: File exists"]
