"""Commands that only read records or ask a cloud start at once, without torch, which takes seconds to import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.results.manifest import Manifest
from shared.results.writer import write_results
from strata.main import app_entry
from tests.strata.samples import a_round, a_run
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from strata.main import app_entry
try:
    app_entry()
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ls"], "fedavg"),
        (["show", "a"], "fedavg"),
        (["agents", "a"], "label counts"),
        (["compare", "a"], "picture: "),
        (["log", "a"], "docker compose logs"),
        (["pause", "a"], "no cloud found"),
        (["watch", "a"], "no cloud found"),
        (["run", "spec.yaml", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_command_that_trains_nothing_loads_no_torch(words: list[str], said: str, tmp_path: Path) -> None:
    info = a_run(run="a")
    (tmp_path / "spec.yaml").write_text("data: digits\n", encoding="utf-8")
    write_results(tmp_path / "runs" / "a", info, [a_round(1)], model=None, manifest=Manifest.of(info))
    env = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
    env |= {"PYTHONPATH": str(ROOT), "STRATA_HOME": str(tmp_path / ".strata"), "COLUMNS": "200"}
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert said in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "False"


def test_the_objects_of_runs_load_no_torch() -> None:
    program = "import sys, strata; strata.local, strata.compare, strata.sweep; print('torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert done.stdout == "False\n"


def test_what_the_system_refuses_is_one_line_and_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever the command: here the folder of a report is a file."""
    info = a_run(run="a")
    write_results(tmp_path / "runs" / "a", info, [a_round(1)], model=None, manifest=Manifest.of(info))
    (tmp_path / "file").touch()
    target = str(tmp_path / "file" / "r.html")
    with pytest.raises(SystemExit, match="1"):
        app_entry(["report", "a", "--runs-dir", str(tmp_path / "runs"), "-o", target])
    assert [line for line in capfd.readouterr().err.splitlines() if line] == [f"error: {tmp_path}/file: File exists"]
