"""A process of ours takes no file of the folder in which it was started for a module that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.runtime import import_path

pytestmark = pytest.mark.integration
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
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip()


def shown_in(folder: Path, program: str = import_path.__file__, **env: str) -> list[Path]:
    """Where a process that begins in a folder finds `redis`, `secrets` and `shared`."""
    return [Path(part) for part in out_of(folder, "-P", program, "shown", **env).split()]


def test_modules_of_the_working_folder_come_last(folder: Path) -> None:
    redis, secrets, shared = shown_in(folder)
    assert redis.parent.name == "redis"
    assert (secrets.parent, shared) == (Path(os.__file__).parent, ROOT / "shared")


def test_of_pythonpath_the_library_and_we_come_first(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is named there is meant to be found before what is installed, as on clusters."""
    redis, secrets, shared = shown_in(tmp_path_factory.mktemp("elsewhere"), PYTHONPATH=str(folder))
    assert (redis, secrets.parent, shared) == (folder / "redis.py", Path(os.__file__).parent, ROOT / "shared")


def test_pythonpath_comes_before_what_lies_beside_us(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    site = folder / "site-packages"
    for name in ("shared/__init__.py", "shared/core/__init__.py", "shared/runtime/import_path.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text((ROOT / name).read_text())
    (site / "redis.py").touch()
    program = str(site / "shared" / "runtime" / "import_path.py")
    redis, _, shared = shown_in(tmp_path_factory.mktemp("elsewhere"), program, PYTHONPATH=str(folder))
    assert (redis, shared) == (folder / "redis.py", site / "shared")


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("tier", ["cloud_server", "edge_server", "device_agent"])
def test_a_tier_that_is_started_by_hand_beside_such_files_gets_as_far_as_its_settings(folder: Path, tier: str) -> None:
    variable = f"{tier.removesuffix('_server').removeprefix('device_').upper()}_PORT"
    assert variable in out_of(folder, "-m", tier, **{variable: "no number"})


def test_the_command_starts_beside_such_files(folder: Path) -> None:
    assert out_of(folder, "-m", "strata", "--version").startswith("stratafl ")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import strata; from shared.config import X; print(X, strata.StrataError.__module__)", "1 shared.core.errors"),
        ("import shared, strata", "has the name of one of StrataFL's: import strata before it"),
        ("import strata; strata.local()", "secrets.py has the name of a module that StrataFL needs here: rename it"),
    ],
)
def test_a_users_program_imports_its_modules_beside_ours_or_is_told_why(folder: Path, program: str, words: str) -> None:
    (folder / "queue.py").unlink()
    (folder / "redis.py").unlink()
    (folder / "train.py").write_text(program)
    assert words in out_of(folder, "train.py")
