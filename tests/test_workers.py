"""Tests divided among forked processes: what they report, share and lose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waits import HANG_S

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[1]
CONFTEST = """
import pytest
from pathlib import Path
from tests.workers import Workers

def pytest_configure(config):
    config.pluginmanager.register(Workers(2))

@pytest.fixture(scope="session", autouse=True)
def session(tmp_path_factory):
    yield
    Path(f"ended-{tmp_path_factory.getbasetemp().name}").touch()

@pytest.fixture(scope="module")
def together():
    meet = Path("meet")
    meet.mkdir(exist_ok=True)
    return meet
"""
PASSES = """
import os, time, warnings
from pathlib import Path
first = []

def test_it_begins(together):
    first.append(os.getpid())
    Path(together, __name__).touch()
    while len(list(together.iterdir())) < 2: time.sleep(0.01)  # two processes are at work

def test_it_stays_with_its_process(tmp_path, capfd):
    print("unseen")
    assert first == [os.getpid()] and tmp_path.parent.name.startswith("worker-")
"""


def of_tests(folder: Path, *words: str, **files: str) -> tuple[str, list[str]]:
    """Returns the last line that pytest prints of these test files, and all lines."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", *words, "."]
    env = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, timeout=HANG_S, check=False)
    lines = done.stdout.splitlines()
    return lines[-1].partition(" in ")[0], lines


def test_files_stay_with_one_process_and_fixtures_end_with_it(tmp_path: Path) -> None:
    found, lines = of_tests(tmp_path, a=PASSES, b=PASSES, c="def test_last(): pass")
    assert found == "5 passed", lines
    assert {path.name for path in tmp_path.glob("ended-*")} == {"ended-worker-0", "ended-worker-1"}
    assert "unseen" not in "".join(lines)


def test_failures_skips_and_warnings_are_told_as_without_processes(tmp_path: Path) -> None:
    found, lines = of_tests(
        tmp_path,
        "-ra",
        a="import pytest, warnings\n"
        "def test_wrong(): assert 1 == 2\n"
        "def test_warns(): warnings.warn('take care')\n"
        "def test_absent(): pytest.skip('no camera')\n",
        b="def test_right(): pass",
    )
    assert found == "1 failed, 2 passed, 1 skipped, 1 warning", lines
    assert any("UserWarning: take care" in line for line in lines)
    assert "E   assert 1 == 2" in lines
    assert any(line.startswith("SKIPPED [1] ") and line.endswith("no camera") for line in lines), lines


@pytest.mark.parametrize(
    ("fatal", "how"), [("import os; os.kill(os.getpid(), 9)", "signal 9"), ("import os; os._exit(3)", "exit status 3")]
)
def test_tests_of_a_process_that_died_have_failed(tmp_path: Path, fatal: str, how: str) -> None:
    found, lines = of_tests(tmp_path, a=f"def test_dies(): {fatal}\ndef test_after(): pass", b="def test_right(): pass")
    assert found == "2 failed, 1 passed", lines
    assert sum(how in line and "no report came" in line for line in lines) >= 2


def test_the_first_failure_ends_all_processes_where_this_is_asked_for(tmp_path: Path) -> None:
    waits = "import time\ndef test_waits():\n    time.sleep(600)"
    found, lines = of_tests(tmp_path, "-x", a="def test_wrong(): assert 0", b=waits)
    assert found == "1 failed", lines
