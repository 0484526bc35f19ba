"""`strata new`: the project that it makes is clean and passes its tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.federation.spec_parser import parse_run_spec
from strata.spec_files import read_spec
from tests.strata.conftest import Strata

RULES = "E,F,I,B,UP,SIM,RUF,C4,PT"


@pytest.mark.slow
def test_the_project_is_linted_and_passes_its_tests(strata: Strata, home: Path) -> None:
    made = strata("new", "my-own")
    assert made.code == 0, made.err
    assert "export STRATA_PLUGINS=my_own" in made.out
    folder = home / "my-own"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    modules = [f"my_own/{name}.py" for name in ("__init__", "algorithm", "data", "model")]
    assert files == ["README.md", *modules, "pyproject.toml", "spec.yaml", "tests/test_my_own.py"]
    assert not [name for name in files if "PACKAGE" in (folder / name).read_text()]
    for command in (
        ["ruff", "check", "--isolated", "--no-cache", "--line-length", "120", "--select", RULES, "."],
        ["ruff", "format", "--isolated", "--no-cache", "--line-length", "120", "--check", "."],
        ["pytest", "-q", "-p", "no:cacheprovider"],
    ):
        done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_spec_is_valid_once_its_package_is_named(
    strata: Strata, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strata("new", "planned")
    monkeypatch.syspath_prepend(str(home / "planned"))
    monkeypatch.setenv("STRATA_PLUGINS", "planned")
    spec = read_spec(str(home / "planned" / "spec.yaml"))
    assert spec.algorithm.name == "planned_algorithm"
    assert parse_run_spec({**spec.model_dump(mode="json", exclude_none=True), "algorithm": "fedavg"})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("1st", "gives a package no name"),
        ("straße", "gives a package no name"),
        ("torch", "is the name of a module already"),
        ("shared", "is the name of a module already"),
        ("random", "is the name of a module already"),
    ],
)
def test_a_name_that_no_package_can_have_is_refused(strata: Strata, home: Path, name: str, why: str) -> None:
    done = strata("new", name)
    assert done.code == 1
    assert why in done.err
    assert not (home / name).exists()


def test_a_folder_that_exists_is_refused_and_left_alone(strata: Strata, home: Path) -> None:
    (home / "mine").mkdir()
    assert "mine exists" in strata("new", "mine").err
    assert os.listdir(home / "mine") == []
