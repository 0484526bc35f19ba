"""What `squeue` prints is read in the forms of several releases, and what it must not print is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata.slurm.queue import Job, SlurmAnswer, indices, of_json, of_table

NAME = "strata-x-agents"


def row(**more: Any) -> dict[str, Any]:
    """A job as release 22.05 prints it."""
    usual = {"job_id": 7, "array_job_id": 0, "array_task_id": None, "array_task_string": "", "nodes": ""}
    return {**usual, "name": NAME, "job_state": "RUNNING", "state_reason": "None", **more}


def read(*rows: dict[str, Any]) -> list[Job]:
    return of_json(json.dumps({"meta": {}, "errors": [], "jobs": list(rows)}), {NAME})


def test_a_task_of_an_array_has_its_index_and_is_cancelled_by_both_numbers() -> None:
    (found,) = read(row(job_id=9, array_job_id=7, array_task_id=3, nodes="n2"))
    assert found == Job("7_3", NAME, 3, "RUNNING", "n2", "None")
    assert not found.waits


def test_tasks_that_wait_together_are_told_apart() -> None:
    found = read(row(array_job_id=7, array_task_string="2,5-6%1", job_state="PENDING", state_reason="Priority"))
    assert [(job.id, job.index, job.waits, job.reason) for job in found] == [
        ("7_2", 2, True, "Priority"),
        ("7_5", 5, True, "Priority"),
        ("7_6", 6, True, "Priority"),
    ]


def test_a_job_in_no_array_has_index_0() -> None:
    assert read(row()) == [Job("7", NAME, 0, "RUNNING", "", "None")]


def test_numbers_and_states_of_newer_releases_are_read() -> None:
    wrapped = {"set": True, "infinite": False, "number": 3}
    array, none = {**wrapped, "number": 7}, {"set": False, "infinite": False, "number": 0}
    assert read(row(array_job_id=array, array_task_id=wrapped, job_state=["RUNNING"]))[0].id == "7_3"
    assert read(row(array_job_id=none, array_task_id=none, job_state=["RUNNING", "COMPLETING"])) == [
        Job("7", NAME, 0, "COMPLETING", "", "None")
    ]


def test_ended_jobs_and_those_of_others_are_passed_over() -> None:
    assert read(row(job_state="COMPLETED"), row(job_state=["CANCELLED"]), row(name="else")) == []


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error", "[]", '{"jobs": 3}', '{"jobs": ["x"]}', f'{{"jobs": [{{"name": "{NAME}"}}]}}']
)
def test_what_is_no_list_of_jobs_is_refused(text: str) -> None:
    with pytest.raises(SlurmAnswer, match="squeue --json printed something else than jobs"):
        of_json(text, {NAME})


def test_a_list_of_tasks_that_is_cut_off_is_refused() -> None:
    with pytest.raises(SlurmAnswer, match="no range of tasks"):
        read(row(array_job_id=7, array_task_string="7,9,100,102,...", job_state="PENDING"))


def test_ranges_of_tasks_are_read_with_steps() -> None:
    assert indices("1-3,7,10-20:5%2") == [1, 2, 3, 7, 10, 15, 20]
    with pytest.raises(ValueError, match="no range"):
        indices("N/A")


def test_a_table_is_read_like_json() -> None:
    text = f"7|3|9|{NAME}|RUNNING|n2|None\n7|4|7|{NAME}|PENDING||Resources\n8|N/A|8|{NAME}|RUNNING|n1|None\n"
    text += f"9|1|9|else|RUNNING|n1|None\n7|5|12|{NAME}|COMPLETED|n1|None\n"
    assert of_table(text, {NAME}) == [
        Job("7_3", NAME, 3, "RUNNING", "n2", "None"),
        Job("7_4", NAME, 4, "PENDING", "", "Resources"),
        Job("8", NAME, 0, "RUNNING", "n1", "None"),
    ]


def test_a_table_of_something_else_is_refused() -> None:
    with pytest.raises(SlurmAnswer, match="something else than a table of jobs: 'squeue: what'"):
        of_table("squeue: what\n", {NAME})
