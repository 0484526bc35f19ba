"""The check of a compute node: what its job leaves behind when it cannot run, and how that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.core.errors import Conflict, DeadlineExceeded
from strata.slurm.check_job import check_node
from strata.slurm.commands import Slurm
from tests.strata.slurm.made import command, deployment

pytestmark = pytest.mark.integration
WAITING = '[ "$1" = --json ] && exit 1; [ -e cancelled ] || echo "7|N/A|7|strata-default-abc-check|PENDING||Resources"'


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Slurm, whose check waits in the queue."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    command(tmp_path / "bin", "squeue", WAITING)
    command(tmp_path / "bin", "scancel", 'echo "$@" > cancelled')
    return Slurm()


def test_a_check_that_no_node_takes_in_time_is_cancelled_and_says_why_it_waited(tmp_path: Path, slurm: Slurm) -> None:
    command(tmp_path / "bin", "sbatch", "exec sleep 600")
    with pytest.raises(DeadlineExceeded, match=r"has not ended within 0\.2 s: PENDING \(Resources\)"):
        check_node(deployment(tmp_path), slurm, None, 0.2)
    assert (tmp_path / "cancelled").read_text().split() == ["--quiet", "7"]


def test_ctrl_c_leaves_no_check_in_the_queue(tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_node(deployment(tmp_path), slurm, None, 60.0)
    assert (tmp_path / "cancelled").exists()


def test_a_job_that_left_no_answer_names_the_folder_its_log_and_what_slurm_said(tmp_path: Path, slurm: Slurm) -> None:
    command(tmp_path / "bin", "sbatch", "echo 7; exit 1")
    with pytest.raises(
        Conflict, match=r"left no answer in .*/made, which must be on a disk .*logs/check-\*\.out .*status 1"
    ):
        check_node(deployment(tmp_path), slurm, None, 60.0)


def test_the_report_of_another_check_is_not_taken_for_this_one(tmp_path: Path, slurm: Slurm) -> None:
    report = tmp_path / "made" / "check.json"
    command(tmp_path / "bin", "sbatch", f"""echo '{{"drawn": "old", "node": "n1"}}' > {report}; echo 7""")
    with pytest.raises(Conflict, match="is of another check"):
        check_node(deployment(tmp_path), slurm, None, 60.0)
