"""A process of ours takes no file of the folder in which it was started for a module that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.runtime import import_path

ROOT = Path(import_path.ROOT)
SHOWN = "import json, redis, secrets, shared.core, myplugs; print(redis.__file__, secrets.__file__, shared.__path__[0])"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with modules named like those that we need, and a package of plug-ins."""
    for name in ("secrets.py", "redis.py", "queue.py", "shown.py", "shared/__init__.py", "shared/config.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("X = 1\n")
    (tmp_path / "shown.py").write_text(SHOWN)
    (tmp_path / "myplugs.py").touch()
    return tmp_path


def out_of(folder: Path, *command: str, **env: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()


def test_modules_of_the_working_folder_come_last(folder: Path) -> None:
    redis, secrets, shared = out_of(folder, sys.executable, "-P", import_path.__file__, "shown").split()
    assert Path(redis).parent.name == "redis"
    assert Path(secrets).parent == Path(os.__file__).parent
    assert Path(shared) == ROOT / "shared"


def test_of_pythonpath_only_pythons_own_library_and_our_packages_come_first(folder: Path, tmp_path: Path) -> None:
    """What is named there is meant to be found before what is installed, as on clusters."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = (sys.executable, "-P", import_path.__file__, "shown")
    redis, secrets, shared = out_of(elsewhere, *command, PYTHONPATH=str(folder)).split()
    assert Path(redis) == folder / "redis.py"
    assert Path(secrets).parent == Path(os.__file__).parent
    assert Path(shared) == ROOT / "shared"


def test_what_pythonpath_names_comes_before_what_lies_beside_an_installed_package(folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    for name in ("shared/__init__.py", "shared/core/__init__.py", "shared/runtime/import_path.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text((ROOT / name).read_text())
    (site / "redis.py").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = site / "shared" / "runtime" / "import_path.py"
    shown = out_of(elsewhere, sys.executable, "-P", str(program), "shown", PYTHONPATH=str(folder)).split()
    assert [Path(shown[0]), Path(shown[2])] == [folder / "redis.py", site / "shared"]


@pytest.mark.matrix
@pytest.mark.parametrize("tier", ["cloud_server", "edge_server", "device_agent"])
def test_a_tier_that_is_started_by_hand_beside_such_files_gets_as_far_as_its_settings(folder: Path, tier: str) -> None:
    prefix = {"cloud_server": "CLOUD", "edge_server": "EDGE", "device_agent": "AGENT"}[tier]
    assert f"{prefix}_PORT" in out_of(folder, sys.executable, "-m", tier, **{f"{prefix}_PORT": "no number"})


def test_the_command_starts_beside_such_files(folder: Path) -> None:
    assert out_of(folder, sys.executable, "-m", "strata", "--version").startswith("stratafl ")


def test_a_program_of_the_users_imports_strata_and_its_own_package_of_that_name(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import strata\nfrom shared.config import X\nprint(X, strata.StrataError.__module__)"
    )
    assert out_of(folder, sys.executable, "train.py") == "1 shared.core.errors"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import shared, strata", "has the name of one of StrataFL's: import strata before it"),
        ("import strata; strata.local()", "secrets.py has the name of a module that StrataFL needs here: rename it"),
    ],
)
def test_what_cannot_be_told_apart_in_a_users_process_is_named(folder: Path, program: str, words: str) -> None:
    (folder / "queue.py").unlink()
    (folder / "redis.py").unlink()
    (folder / "train.py").write_text(program)
    assert words in out_of(folder, sys.executable, "train.py")
