"""What the report of a visit may say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edge_server.rounds.visit_limits import MAX_ANSWER_TIMES, MAX_HELD_BYTES, VisitLimits, check_sum, limits_of
from shared.core.bounds import MAX_COUNT
from shared.core.errors import WireError
from shared.core.scores import Score
from shared.federation.aggregation import PartialSum
from shared.federation.messages import Failure, Outcome, Task
from shared.federation.visit_estimates import HEAD_BYTES
from tests.shared.algorithms.layouts import resolved

LIMITS = VisitLimits(3, "train", 50, 100, 100, most_tested=80, test_sets={"union": 20})
HONEST = Outcome[None](seat=3, kind="train", n_samples=50, n_trained=100, n_steps=4)


def score(n: int, n_correct: int = 0) -> Score:
    return Score(n=n, n_correct=n_correct, loss_sum=1.0)


def failure(reason: str) -> Failure:
    return Failure(seat=3, reason=reason, detail="")


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"n_samples": 150}, "n_samples", "device 3 reports 150 training samples, it has 50"),
        ({"n_samples": 49}, "n_samples", "49 training samples, it has 50"),
        ({"n_trained": 2**48}, "n_trained", f"{2**48} samples passed through training, its task allows 100"),
        ({"n_trained": 99}, "n_trained", "99 samples passed through training, its task allows 100"),
        ({"n_steps": 101}, "n_steps", "101 steps, its task allows at most 100"),
        ({"held_bytes": MAX_HELD_BYTES + 1}, "held_bytes", f"the limit is {MAX_HELD_BYTES}"),
        ({"train": score(101)}, "train", "a score `train` of 101 predictions, at most 100 are possible"),
        ({"train": score(10, 11)}, "train", "11 of 10 predictions correct"),
        ({"received": score(81)}, "received", "a score `received` of 81 predictions"),
        ({"own": score(81)}, "own", "a score `own` of 81 predictions"),
        ({"own_on": {"union": score(21)}}, "own_on.union", "a score `own_on.union` of 21 predictions"),
        ({"own_on": {"x" * 100: score(1)}}, "own_on", "was tested on 'xxx"),
        ({"failure": failure("error")}, "n_samples", "50 training samples, it has 0"),
        ({"failure": failure("unavailable"), "n_samples": 0, "n_trained": 0}, "failure", "its edge alone decides"),
    ],
)
def test_a_false_claim_is_refused_and_named(changes: dict[str, Any], field: str, message: str) -> None:
    LIMITS.check(HONEST)
    with pytest.raises(WireError) as caught:
        LIMITS.check(HONEST.replace(**changes))
    assert caught.value.field == f"outcomes.{field}"
    assert message in caught.value.detail


def test_a_failed_visit_and_one_that_only_evaluates_have_trained_on_nothing() -> None:
    LIMITS.check(Outcome[None](seat=3, kind="train", failure=failure("not_finite")))
    evaluates = VisitLimits(3, "evaluate", 50, 100, 100, most_tested=80)
    evaluates.check(Outcome[None](seat=3, kind="evaluate", own=score(80)))
    with pytest.raises(WireError, match="1 samples passed through training, its task allows 0"):
        evaluates.check(Outcome[None](seat=3, kind="evaluate", n_trained=1))


def sum_of(n_updates: int, n_samples: int) -> PartialSum:
    return PartialSum(n_updates=n_updates, n_samples=n_samples, means={}, each={})


@pytest.mark.parametrize(
    ("partial_sum", "link_bytes", "message"),
    [
        (sum_of(2, 80), {3: 900, 4: 900}, None),
        (sum_of(2, 240), {3: 900, 4: 900}, "a sum of 2 updates and 240 samples; the tasks of devices [3, 4] have 2"),
        (sum_of(3, 80), {3: 900, 4: 900}, "a sum of 3 updates and 80 samples"),
        (sum_of(2, 80), {3: 900, 4: MAX_COUNT}, "the update of device 4 is to have"),
    ],
)
def test_a_sum_has_the_weight_of_its_visits(
    partial_sum: PartialSum, link_bytes: dict[int, int], message: str | None
) -> None:
    behind = [LIMITS, VisitLimits(4, "train", 30, 60, 60)]
    if message is None:
        check_sum(partial_sum, link_bytes, behind, 5000)
        return
    with pytest.raises(WireError) as caught:
        check_sum(partial_sum, link_bytes, behind, 5000)
    assert message in caught.value.detail


SPEC: dict[str, Any] = {
    "data": {"name": "digits", "n_train": 100, "n_test": 20},
    "num_devices": 2,
    "batch_size": 20,
    "local_epochs": 3,
}


@pytest.mark.parametrize(
    ("changes", "task", "round_no", "n_samples", "least", "most"),
    [
        ({}, Task(epochs=3, batch_size=20), 1, 50, 150, 150),
        ({}, Task(steps=4, batch_size=20), 1, 50, 70, 70),  # 20 + 20 + 10, then 20
        ({}, Task(epochs=1, batch_size=20, samples=torch.arange(7)), 1, 7, 7, 7),
        ({}, Task(kind="collect", epochs=3, batch_size=20), 1, 50, 0, 0),
        ({"arrival_rate": 0.1}, Task(epochs=3, batch_size=20), 2, 10, 30, 30),
        ({"algorithm": {"name": "scaffold", "params": {"option": "I"}}}, Task(epochs=3, batch_size=20), 1, 50, 0, 200),
        ({"algorithm": "es_afl"}, Task(epochs=3, batch_size=20), 1, 50, 0, 305),  # parent, child, and 5 validated
        ({"algorithm": "es_afl"}, Task(steps=4, batch_size=20), 1, 50, 0, 165),
    ],
    ids=["epochs", "steps", "samples", "collect", "arrival", "extra", "sub-networks", "sub-networks in steps"],
)
def test_the_edge_derives_the_limits_from_task_and_data(
    changes: dict[str, Any], task: Task, round_no: int, n_samples: int, least: int, most: int
) -> None:
    experiment = resolved(**{**SPEC, **changes})
    ctx = experiment.ctx(phase=experiment.phase_of(1).name, round_no=round_no, n_clients=2, edge=0).at(seat=0)
    found = limits_of(experiment, ctx, task, experiment.seat_in(0, round_no))
    assert (found.n_samples, found.least_trained, found.most_trained) == (n_samples, least, most)


def test_an_error_says_what_the_task_allows_as_one_number_or_as_a_range() -> None:
    ranged = VisitLimits(3, "train", 50, 80, 100, most_tested=80)
    for limits, words in ((LIMITS, "its task allows 100"), (ranged, "its task allows 80 to 100")):
        with pytest.raises(WireError) as caught:
            limits.check(HONEST.replace(n_trained=101))
        assert caught.value.detail.endswith(words)


def test_an_update_may_be_as_large_as_the_answer_that_brings_it_explains() -> None:
    total = sum_of(1, 50)
    most = MAX_ANSWER_TIMES * (1000 + HEAD_BYTES)
    check_sum(total, {3: most}, [LIMITS], 1000)
    with pytest.raises(WireError, match="the update of device 3 is to have"):
        check_sum(total, {3: most + 1}, [LIMITS], 1000)
