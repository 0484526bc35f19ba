"""What `pip install` gives: the wheel in an environment without the checkout, used in folders far from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from shared.spec import catalogue
from tests.waits import HANG_S

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
BUILD_SDIST = "import setuptools.build_meta, sys; setuptools.build_meta.build_sdist(sys.argv[1])"
NO_NETWORK = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation")
NEVER_MEANT = ("shared/__init__.py", "cloud_server/__init__.py", "random.py", "secrets.py")
"""Files of a user with names of modules of ours and of Python's library; whoever imports one ends."""
SHADOWS = (*NEVER_MEANT, "strata/__init__.py", "types.py", "redis.py", "docker/__init__.py")
"""The same of what PYTHONPATH may replace, but a working folder may not."""


def done(command: list[str], cwd: Path, **env: str) -> str:
    """Run a command that succeeds, and return what it printed on stdout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "PYTHON"))}
    ran = subprocess.run(command, cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


class Installed:
    """An environment into which the wheel was installed; what it depends on comes from that of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        done([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder.parent)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # without the checkout's .pth
        self.env = {"STRATA_CACHE_DIR": str(folder.parent / "cache")}

    def install(self, what: Path) -> None:
        """Install a wheel, or a project."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        done([*pip, "install", *NO_NETWORK, str(what)], self.folder)

    def strata(self, *words: str, cwd: Path, **env: str) -> str:
        """Run the installed command."""
        return done([str(self.bin / "strata"), *words], cwd, **self.env, **env)

    def python(self, *words: str, cwd: Path, **env: str) -> str:
        """Run Python."""
        return done([str(self.bin / "python"), *words], cwd, **self.env, **env)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The environment: the source distribution is built from the files of the repository, and the wheel from that."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "source" / name, follow_symlinks=False)
    done([sys.executable, "-c", BUILD_SDIST, str(folder)], folder / "source")
    shutil.rmtree(folder / "source")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    unpacked = str(archive).removesuffix(".tar.gz")
    done([sys.executable, "-m", "pip", "wheel", *NO_NETWORK, "-w", str(folder / "dist"), unpacked], folder)
    shutil.rmtree(unpacked)
    found = Installed(folder / "env")
    (wheel,) = (folder / "dist").iterdir()
    found.install(wheel)
    return found


def test_the_wheel_brings_its_own_packages_and_the_experiments(installed: Installed, tmp_path: Path) -> None:
    where = installed.python("-c", "import shared, strata; print(shared.__file__, strata.__file__)", cwd=tmp_path)
    assert all(path.startswith(str(installed.folder)) for path in where.split())
    listed = json.loads(installed.strata("experiments", "--format", "json", cwd=tmp_path))
    assert [each["name"] for each in listed] == [*catalogue.files()]
    assert next(each for each in listed if each["name"] == "quickstart")["cpu_s"] > 0
    assert installed.strata("experiments", "quickstart", cwd=tmp_path) == catalogue.files()["quickstart"].read_text()


def run_of(printed: str) -> dict[str, object]:
    """The run that `strata run --format json` printed."""
    return dict(json.loads(printed.splitlines()[-1]))


def test_a_run_needs_no_file_and_takes_none_of_the_user_for_a_module(installed: Installed, tmp_path: Path) -> None:
    for place, names in (("working folder", SHADOWS), ("PYTHONPATH", NEVER_MEANT)):
        for name in names:
            (tmp_path / place / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place / name).write_text("raise SystemExit(f'{__file__} was imported')\n")
    words = ("run", "quickstart", "algorithm=fedprox", "num_rounds=1", "--format", "json")
    mine = str(tmp_path / "PYTHONPATH")
    run = run_of(installed.strata(*words, cwd=tmp_path / "working folder", PYTHONPATH=mine))
    assert (run["status"], run["rounds"]) == ("completed", 1)


def test_a_program_beside_a_package_shared_of_its_own_runs_an_experiment(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").touch()
    (tmp_path / "shared" / "config.py").write_text("ROUNDS = 1\n")
    (tmp_path / "train.py").write_text(
        "import strata\n"
        "from shared.config import ROUNDS\n"
        "with strata.local(edges=2, devices=10, progress=False) as cloud:\n"
        "    print(cloud.run('quickstart', num_rounds=ROUNDS).wait(progress=False).status)\n"
    )
    assert installed.python("train.py", cwd=tmp_path).strip() == "completed"


def test_a_new_project_does_what_its_readme_says(installed: Installed, tmp_path: Path) -> None:
    installed.strata("new", "mine", cwd=tmp_path)
    folder, named = tmp_path / "mine", {"STRATA_PLUGINS": "mine"}
    said = (folder / "README.md").read_text()
    for command in ("export STRATA_PLUGINS=mine", "strata check mine", "strata run spec.yaml", "strata compare mine"):
        assert f"    {command}\n" in said
    assert "17 checks, 0 failed" in installed.strata("check", "mine", cwd=folder, **named)
    for more in ((), ("algorithm=fedavg", "model=mlp")):
        words = ("run", "spec.yaml", *more, "num_rounds=1", "--format", "json")
        assert run_of(installed.strata(*words, cwd=folder, **named))["status"] == "completed"
    assert installed.strata("compare", "mine", cwd=folder).count("mine") >= 2
    assert "3 passed" in installed.python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder)
    installed.install(folder)
    assert "mine_algorithm" in installed.strata("plugins", cwd=tmp_path)  # by its entry point
