"""Slurm's commands that are absent, fail, hang or answer oddly: every case has an error that names the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.core.errors import DeadlineExceeded
from strata.slurm.commands import Slurm, SlurmMissing
from strata.slurm.queue import SlurmAnswer
from tests.strata.slurm.made import command

pytestmark = pytest.mark.integration
JOB = '{"jobs": [{"job_id": 4, "array_job_id": 0, "name": "a", "job_state": "RUNNING"}]}'


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Slurm, whose commands are what a test writes into `bin`."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return Slurm(call_s=20.0)


def test_missing_commands_are_named_with_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    command(tmp_path / "bin", "sbatch", "true")
    with pytest.raises(SlurmMissing, match=r"no squeue, scancel, scontrol on the path: .*login node"):
        Slurm().check()


def test_commands_are_found_in_a_folder_behind_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        command(tmp_path / "far", name, "echo 12")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = Slurm(str(tmp_path / "far"))
    assert found.check() == str(tmp_path / "far")
    assert found.submit(tmp_path / "job.sh") == "12"


def test_a_job_is_submitted_with_its_options(tmp_path: Path, slurm: Slurm) -> None:
    command(tmp_path / "bin", "sbatch", f'echo "$@" > {tmp_path}/said; echo "17;cluster"')
    assert slurm.submit(Path("/x/job.sh"), "--array=1-3") == "17"
    assert (tmp_path / "said").read_text().split() == ["--parsable", "--array=1-3", "/x/job.sh"]


def test_a_refusal_quotes_what_sbatch_said(tmp_path: Path, slurm: Slurm) -> None:
    command(tmp_path / "bin", "sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    with pytest.raises(SlurmAnswer, match=r"sbatch failed \(exit status 1\): .*invalid partition specified: gpu"):
        slurm.submit(Path("/x/job.sh"))


@pytest.mark.parametrize("said", ["", "Submitted batch job 17", "17 18"])
def test_an_answer_without_a_number_is_refused(tmp_path: Path, slurm: Slurm, said: str) -> None:
    command(tmp_path / "bin", "sbatch", f"echo '{said}'")
    with pytest.raises(SlurmAnswer, match="sbatch printed something else than the number of a job"):
        slurm.submit(Path("/x/job.sh"))


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    command(tmp_path / "bin", "sbatch", "exec sleep 600")
    with pytest.raises(DeadlineExceeded, match=r"sbatch did not end within 0\.2 s"):
        Slurm(call_s=0.2).submit(Path("/x/job.sh"))


def test_the_queue_is_read_as_json_with_all_tasks_named(tmp_path: Path, slurm: Slurm) -> None:
    command(tmp_path / "bin", "squeue", f"echo $SLURM_BITSTR_LEN > {tmp_path}/length; echo '{JOB}'")
    assert [job.id for job in slurm.jobs({"a"})] == ["4"]
    assert (tmp_path / "length").read_text() == "0\n"


@pytest.mark.parametrize("json", ["echo 'squeue: unrecognized option --json' >&2; exit 1", "echo '{}'", "echo oops"])
def test_without_json_the_table_is_asked_for_from_then_on(tmp_path: Path, slurm: Slurm, json: str) -> None:
    body = f'echo x >> {tmp_path}/calls; if [ "$1" = --json ]; then {json}; else echo "9|2|11|a|PENDING||Priority"; fi'
    command(tmp_path / "bin", "squeue", body)
    assert [job.id for job in slurm.jobs({"a"})] == ["9_2"]
    assert [job.id for job in slurm.jobs({"a"})] == ["9_2"]
    assert len((tmp_path / "calls").read_text().split()) == 3  # one of JSON, two of the table


def test_a_queue_that_cannot_be_read_at_all_is_an_error(tmp_path: Path, slurm: Slurm) -> None:
    command(tmp_path / "bin", "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SlurmAnswer, match="Unable to contact slurm controller"):
        slurm.jobs({"a"})


def test_nothing_is_cancelled_where_there_is_nothing(tmp_path: Path, slurm: Slurm) -> None:
    command(tmp_path / "bin", "scancel", f'echo "$@" > {tmp_path}/said')
    slurm.cancel([])
    assert not (tmp_path / "said").exists()
    slurm.cancel(["17_3", "18"])
    assert (tmp_path / "said").read_text().split() == ["--quiet", "17_3", "18"]


def test_a_node_s_address_is_read(tmp_path: Path, slurm: Slurm) -> None:
    command(tmp_path / "bin", "scontrol", "echo 'NodeName=n1 Arch=x'; echo '   NodeAddr=10.1.2.3 NodeHostName=vm'")
    assert slurm.node_address("n1") == "10.1.2.3"
    command(tmp_path / "bin", "scontrol", "echo nothing")
    assert slurm.node_address("n1") is None
