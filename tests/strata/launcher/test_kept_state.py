"""The state of a local topology outlives it where the results of its run are incomplete."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from strata.launcher.topology import Topology
from strata.launcher.work_folder import WorkFolder
from strata.runs.run_and_wait import keep_if_incomplete
from tests.strata.samples import a_run


class Kept(Topology):
    """A topology without processes."""

    def __init__(self) -> None:
        self.n_kept = 0

    def keep_state(self) -> Path:
        self.n_kept += 1
        return Path("/home/me/kept here")


def put(folder: Path, *names: str, **changes: Any) -> None:
    folder.mkdir()
    (folder / "run.json").write_text(a_run(**changes).model_dump_json())
    for name in names:
        (folder / name).touch()


def test_a_kept_folder_outlives_its_topology_and_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    work = WorkFolder(None)
    (work.path / "state").touch()
    kept = work.keep()
    work.close()
    WorkFolder(None).close()
    assert sorted(path.name for path in kept.iterdir()) == ["launcher.lock", "state"]
    assert kept == work.path
    again = WorkFolder(kept)  # as `strata up --state-dir` uses it
    assert again.keep() == kept
    again.close()
    assert (kept / "state").exists()


@pytest.mark.parametrize(
    ("files", "recorded", "status", "is_kept"),
    [
        (("model.safetensors",), "completed", "completed", False),
        (("model.safetensors",), "failed", "failed", False),
        ((), "failed", "failed", True),  # the disk was full at the model
        (("model.safetensors",), "running", "failed", True),  # and even before
        (("model.safetensors",), "running", "completed", True),  # the cloud took too long, or died
    ],
)
def test_state_is_kept_if_results_are_incomplete(
    tmp_path: Path, files: tuple[str, ...], recorded: str, status: str, is_kept: bool
) -> None:
    topology, info = Kept(), a_run(status=status)
    put(tmp_path / "r1", *files, status=recorded)
    said = keep_if_incomplete(topology, info, tmp_path / "r1")
    assert topology.n_kept == int(is_kept)
    if is_kept:
        assert said is not None
        assert "`strata up --state-dir '/home/me/kept here' --edges 2 --devices 2`" in said
        assert "`strata pull r1 --into FOLDER`" in said
        assert ("`strata resume r1`" in said) is (status == "failed")


def test_a_run_without_rounds_has_no_state_to_keep(tmp_path: Path) -> None:
    assert keep_if_incomplete(Kept(), a_run(rounds=0, status="failed"), tmp_path / "r1") is None
