"""`strata plan`: what a run would be, as text and as JSON."""

from __future__ import annotations

import json

from tests.strata.conftest import Strata

FEW = ("data.n_train=300", "data.n_test=100")


def test_a_plan_says_how_long_tasks_take_and_what_changes_nothing(strata: Strata) -> None:
    slow = ("devices.straggler_ratio=0.2", "devices.straggler_slows=compute", "round_deadline_s=60")
    found = strata("plan", "quickstart", *FEW, *slow)
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith("data digits: 300 of 1,438 training and 100 of 359 test samples")
    assert sum(line.startswith("expected: ") for line in lines) == 3
    idle = [line.removeprefix("without effect: ") for line in lines if line.startswith("without effect: ")]
    assert idle[0].startswith("round_deadline_s 60: the slowest task takes 0.")
    assert idle[1].startswith("straggler_slowdown 8 (straggler_slows: compute) changes a task by 0.")
    whole = json.loads(strata("plan", "quickstart", *FEW, *slow[::2], "--format", "json").out)
    assert [len(whole["without_effect"]), len(whole["devices"])] == [1, 2]
    quick, late = whole["devices"]
    assert (quick["n"], late["n"], late["name"]) == (8, 2, "standard, 8 times slower")
    assert late["task_s"] > 4 * quick["task_s"]
    assert whole["round_s"] > late["task_s"]


def test_a_plan_refuses_what_a_run_would_refuse(strata: Strata) -> None:
    found = strata("plan", "quickstart", "devices.straggler_ratio=2")
    assert found.code != 0
    assert "straggler_ratio" in found.err
