"""Selection and scheduling policies, by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shared.core.errors import BadInput
from shared.federation import scheduling, selection, visit_estimates
from shared.federation.context import Context, EdgeView, ModelInfo, NoParams
from shared.federation.messages import Task
from shared.federation.population import Seat, SeatSamples
from shared.simulation import REFERENCE_FLOPS, Normal, Profile, Uniform
from shared.simulation.cost_model import LinkUse, Passes
from shared.simulation.digital_twin import Telemetry, Twin
from shared.spec.experiment import ExperimentSpec
from shared.spec.fields import SELECTIONS


def seat(number: int, n_train: int = 10) -> Seat:
    train = np.arange(number * 100, number * 100 + n_train, dtype=np.int64)
    return Seat(number, 0, "train", Profile(), SeatSamples.of(train))


def ctx(round_no: int = 1, **spec: Any) -> Context:
    return Context(
        spec=ExperimentSpec(**spec), params=NoParams(), phase="train", round_no=round_no, n_clients=9, edge=0
    )


UNKNOWN = EdgeView()
SEATS = [seat(number) for number in (2, 5, 7, 11)]


def test_a_spec_can_name_exactly_the_registered_selection_policies() -> None:
    assert tuple(selection.SELECTION) == SELECTIONS


def test_all_selects_all() -> None:
    assert selection.select(ctx(), SEATS, UNKNOWN) == [2, 5, 7, 11]


@pytest.mark.parametrize(("fraction", "n"), [(0.01, 1), (0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4)])
def test_random_selects_the_fraction_but_at_least_one(fraction: float, n: int) -> None:
    chosen = selection.select(ctx(select="random", fraction_train=fraction), SEATS, UNKNOWN)
    assert len(set(chosen)) == len(chosen) == n
    assert chosen == sorted(chosen)
    assert set(chosen) <= {2, 5, 7, 11}


@pytest.mark.parametrize(
    ("fraction", "beyond", "n", "wanted"), [(0.5, 0.5, 3, 2), (0.25, 0.1, 2, 1), (0.75, 1.0, 4, 3)]
)
def test_overselection_selects_more_than_are_wanted(fraction: float, beyond: float, n: int, wanted: int) -> None:
    there = ctx(select="random", fraction_train=fraction, overselection=beyond)
    assert len(selection.select(there, SEATS, UNKNOWN)) == n
    assert selection.n_wanted(there, SEATS) == wanted


def test_random_selection_differs_between_rounds_and_repeats_within_one() -> None:
    found = [selection.select(ctx(n, select="random", fraction_train=0.5), SEATS, UNKNOWN) for n in range(1, 200)]
    again = [selection.select(ctx(n, select="random", fraction_train=0.5), SEATS, UNKNOWN) for n in range(1, 200)]
    assert found == again
    counts = Counter(number for chosen in found for number in chosen)
    assert all(75 < counts[number] < 125 for number in (2, 5, 7, 11))  # 199 rounds, half of them: 99.5 +- 3.5 sigma


def seat_with(number: int, n_train: int = 10, **profile: Any) -> Seat:
    """Returns a seat with its own profile and a latency of 0."""
    return replace(seat(number, n_train), profile=Profile(**profile), latency_s=(0.0,))


def test_fastest_selects_by_expected_visit_time_and_lower_seats_among_equals() -> None:
    model = LinkUse(down_bytes=10**6, up_bytes=10**6)
    there = ctx(select="fastest", fraction_train=0.5).at(model=ModelInfo(flops=REFERENCE_FLOPS, link_use=model))
    slow, quick = seat_with(1, compute_sps=1), seat_with(5, compute_sps=1000)
    narrow, waits = seat_with(2, up_bps=1e3), seat_with(3, delay_s=Uniform(low=0, high=1000))
    assert selection.select(there, [slow, narrow, waits, quick], UNKNOWN) == [1, 5]
    assert selection.select(there, [seat_with(4), seat_with(7), seat_with(9), seat_with(11)], UNKNOWN) == [4, 7]
    assert selection.select(
        there, [seat_with(4, n_train=50), seat_with(7), seat_with(9), seat_with(11, n_train=50)], UNKNOWN
    ) == [7, 9]


def test_an_expected_visit_uses_the_medians_of_what_is_drawn_for_each() -> None:
    n_bytes = 2 * 10**6 - visit_estimates.HEAD_BYTES
    there = ctx().at(model=ModelInfo(flops=REFERENCE_FLOPS, link_use=LinkUse(down_bytes=n_bytes, up_bytes=n_bytes)))
    delays: dict[str, Any] = {
        "delay_s": Uniform(low=10, high=30),
        "link_delay_s": Normal(mean=5, sd=1),
        "jitter_s": 9.0,
    }
    found = visit_estimates.expected(there, seat_with(1, compute_sps=50, up_bps=16e6, down_bps=8e6, **delays), 100)
    assert (found.down_s, found.compute_s, found.up_s) == pytest.approx((2, 22, 6))


def test_power_of_choice_takes_those_of_the_highest_loss_and_the_unknown_first() -> None:
    there = ctx(select="power_of_choice", fraction_train=0.5, fraction_candidates=1.0)
    losses = {2: 0.1, 5: 0.9, 7: 0.4, 11: 0.9}
    assert selection.select(there, SEATS, EdgeView(losses=losses)) == [5, 11]
    assert selection.select(there, SEATS, EdgeView(losses={**losses, 7: 1.5})) == [5, 7]
    assert selection.select(there, SEATS, EdgeView(losses={5: 0.9, 7: 0.4, 11: 0.9})) == [2, 5]
    assert selection.select(there, SEATS, UNKNOWN) == [2, 5]


def test_power_of_choice_draws_its_candidates_in_proportion_to_their_samples() -> None:
    """One of one candidate is selected: the draw is proportional to the samples and ignores the losses."""
    seats = [seat(2, 10), seat(5, 30), seat(7, 0), seat(11, 60)]
    spec: dict[str, Any] = {"select": "power_of_choice", "fraction_train": 0.25, "fraction_candidates": 0.25}
    found = [selection.select(ctx(n, **spec), seats, EdgeView(losses={2: 9.0})) for n in range(1, 1001)]
    counts = Counter(number for chosen in found for number in chosen)
    assert [len(chosen) for chosen in found] == [1] * 1000
    assert counts[7] == 0
    for number, share in ((2, 0.1), (5, 0.3), (11, 0.6)):
        assert abs(counts[number] - 1000 * share) < 3.3 * (1000 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(
    ("left_s", "steps"), [(100, None), (6.5, None), (6.4, 11), (4.5, 8), (2.6, 4), (2.4, 3), (1.0, 1), (0.0, 1)]
)
def test_partial_work_is_the_steps_that_fit_in_time_and_at_least_one(left_s: float, steps: int | None) -> None:
    """Three epochs of 10 samples in batches of 3 (4 steps each), 5 samples per second, and 0.5 s of delay."""
    there = ctx().at(model=ModelInfo(flops=REFERENCE_FLOPS))
    work = Task(epochs=3, batch_size=3)
    quick: dict[str, Any] = {"up_bps": 1e15, "down_bps": 1e15, "compute_sps": 5.0, "delay_s": 0.4999}
    found = visit_estimates.partial(there, work, seat_with(1, **quick), left_s)
    if steps is None:
        assert found is work
    else:
        assert (found.steps, found.epochs) == (steps, None)


def test_a_remaining_sample_that_joins_the_previous_batch_saves_a_step_per_epoch() -> None:
    """10 samples in batches of 3, 3 and 4."""
    there = ctx().at(model=ModelInfo(flops=REFERENCE_FLOPS, least_batch=2))
    assert visit_estimates.samples_due(there, Task(steps=5, batch_size=3), seat(2)) == 10 + 6
    assert visit_estimates.samples_due(there, Task(steps=6, batch_size=3), seat(2)) == 20
    quick: dict[str, Any] = {"up_bps": 1e15, "down_bps": 1e15, "compute_sps": 5.0}
    found = visit_estimates.partial(there, Task(epochs=3, batch_size=3), seat_with(1, **quick), 5.9)
    assert found.steps == 8  # of 29 samples two epochs, and all but the last batch of the third


def test_partial_work_leaves_time_for_the_update_or_for_the_report() -> None:
    """5 samples per second, one per step; a model of 9 times 8 KiB takes 9 s to send, other parts of a body 1 s."""
    there = ctx().at(model=ModelInfo(flops=REFERENCE_FLOPS, link_use=LinkUse(up_bytes=9 * visit_estimates.HEAD_BYTES)))
    slow: dict[str, Any] = {"up_bps": 8 * visit_estimates.HEAD_BYTES, "down_bps": 1e15, "compute_sps": 5.0}
    work = Task(epochs=10, batch_size=1)
    assert visit_estimates.partial(there, work, seat_with(1, **slow), 12.01).steps == 10
    assert visit_estimates.partial(there, work, seat_with(1, **slow), 12.01, update=False).steps == 55


def test_further_passes_of_a_method_take_time_and_leave_fewer_steps() -> None:
    """Four gradients per step and half of the samples again: three epochs of 10 samples in batches of 3 count 125."""
    there = ctx().at(model=ModelInfo(flops=REFERENCE_FLOPS, passes=Passes(per_training_sample=4, extra_per_sample=0.5)))
    work = Task(epochs=3, batch_size=3)
    assert visit_estimates.samples_due(there, work, seat(2)) == 4 * 30 + 5
    assert visit_estimates.samples_due(there, work.replace(kind="evaluate"), seat(2)) == 0
    quick: dict[str, Any] = {"up_bps": 1e15, "down_bps": 1e15, "compute_sps": 5.0}
    assert visit_estimates.partial(there, work, seat_with(1, **quick), 25.01) is work
    cut = visit_estimates.partial(there, work, seat_with(1, **quick), 24.9)
    assert cut.steps == 8 + 3  # 29 samples
    assert visit_estimates.partial(there, work, seat_with(1, **quick), 0.5).steps == 1
    assert visit_estimates.share_of(there, cut, work, seat(1)) == 29 / 30


def test_without_seats_none_is_selected_and_none_has_a_task() -> None:
    assert selection.select(ctx(), [], UNKNOWN) == []
    assert selection.select(ctx(select="random", fraction_train=0.5), [], UNKNOWN) == []
    assert selection.select(ctx(select="fastest", fraction_train=0.5), [], UNKNOWN) == []
    assert selection.select(ctx(select="power_of_choice", fraction_train=0.5), [], UNKNOWN) == []
    for name in ("own_data", "equal"):
        assert scheduling.schedule(ctx(schedule=name), [], UNKNOWN) == {}


def test_own_data_gives_the_specs_task_to_every_seat_with_samples() -> None:
    tasks = scheduling.schedule(ctx(local_epochs=3, batch_size=8), [seat(1), seat(2, n_train=0)], UNKNOWN)
    assert list(tasks) == [1]
    assert (tasks[1].kind, tasks[1].epochs, tasks[1].steps, tasks[1].batch_size) == ("train", 3, None, 8)
    assert tasks[1].samples is None


def shares(found: Any) -> dict[int, list[int]]:
    return {number: work.samples.tolist() for number, work in found.items()}


def test_equal_shares_assign_each_sample_once() -> None:
    members = [seat(0, 9), seat(1, 1), seat(2, 0)]
    found = shares(scheduling.schedule(ctx(schedule="equal"), members, UNKNOWN))
    assert [len(share) for share in found.values()] == [4, 3, 3]
    assert sorted(sample for share in found.values() for sample in share) == [*range(9), 100]
    assert all(share == sorted(share) for share in found.values())
    assert found != shares(scheduling.schedule(ctx(2, schedule="equal"), members, UNKNOWN))
    assert found == shares(scheduling.schedule(ctx(schedule="equal"), members, UNKNOWN))


def test_a_seat_without_a_share_is_not_visited() -> None:
    assert shares(scheduling.schedule(ctx(schedule="equal"), [seat(0, 1), seat(1, 0)], UNKNOWN)) == {0: [0]}


@pytest.mark.parametrize(
    ("round_no", "edge_round", "wave", "due"),
    [(3, 0, 0, True), (6, 0, 0, True), (4, 0, 0, False), (3, 1, 0, False), (3, 0, 1, False)],
)
def test_models_are_tested_once_in_a_round_that_is_due(round_no: int, edge_round: int, wave: int, due: bool) -> None:
    there = ctx(round_no, eval_every=3).at(edge_round=edge_round, wave=wave)
    assert visit_estimates.plain_task(there).evaluate is due


# ---- planned shares


def by_sizes(tasks: dict[int, Task]) -> dict[int, int]:
    return {number: len(shares(tasks)[number]) for number in tasks}


def twin(number: int, **changes: Any) -> Twin:
    return Twin(seat=number, telemetry=Telemetry(free_sps=100.0), **changes)


@pytest.mark.parametrize("schedule", ["free_compute", "finish_time"])
def test_offline_and_degraded_workers_get_no_share_and_recovering_ones_a_smaller_one(schedule: str) -> None:
    known = {2: twin(2), 5: twin(5, health="recovering"), 7: twin(7, health="degraded"), 11: twin(11, health="offline")}
    there = ctx(schedule=schedule).at(model=ModelInfo(flops=REFERENCE_FLOPS))
    tasks = scheduling.schedule(there, [replace(one, profile=FREE) for one in SEATS], EdgeView(twins=known))
    found = by_sizes(tasks)
    assert found.keys() == {2, 5}
    assert found[2] == pytest.approx(2 * found[5], abs=2)
    assert sorted(sample for share in shares(tasks).values() for sample in share) == sorted(
        int(sample) for one in SEATS for sample in one.train
    )


def test_if_no_twin_is_healthy_all_workers_get_shares() -> None:
    known = {number: twin(number, health="offline") for number in (2, 5, 7, 11)}
    found = scheduling.schedule(ctx(schedule="free_compute"), SEATS, EdgeView(twins=known))
    assert by_sizes(found) == {2: 10, 5: 10, 7: 10, 11: 10}


def test_further_wave_plans_only_the_remaining_work() -> None:
    left = np.array([201, 505, 706], np.int64)
    there = ctx(schedule="finish_time").at(wave=1, model=ModelInfo(flops=REFERENCE_FLOPS))
    found = shares(scheduling.schedule(there, SEATS[:2], EdgeView(unfinished=left)))
    assert sorted(sample for share in found.values() for sample in share) == [201, 505, 706]


def test_finish_time_uses_the_twins_estimate_and_free_compute_the_workers_report() -> None:
    slow = {2: twin(2, ratio=3.0), 5: twin(5)}
    seats = [replace(seat(number, 100), profile=FREE) for number in (2, 5)]
    model = ModelInfo(flops=REFERENCE_FLOPS)
    sizes = {
        schedule: by_sizes(scheduling.schedule(ctx(schedule=schedule).at(model=model), seats, EdgeView(twins=slow)))
        for schedule in ("free_compute", "finish_time")
    }
    assert sizes == {"free_compute": {2: 100, 5: 100}, "finish_time": {2: 50, 5: 150}}


def test_batches_of_an_epoch_come_from_one_shuffle_and_shares_take_one_step() -> None:
    there = ctx(schedule="equal", average_every="step", batch_size=16, local_epochs=2)
    assert scheduling.n_syncs(there.spec, SEATS) == 2 * 3
    batches = [scheduling.task_of(there.at(edge_round=n), SEATS).tolist() for n in range(6)]
    everything = sorted(int(sample) for one in SEATS for sample in one.train)
    assert [sorted(chain(*epoch)) for epoch in (batches[:3], batches[3:])] == [everything] * 2
    assert [len(batch) for batch in batches] == [16, 16, 8] * 2
    assert batches[:3] != batches[3:]
    tasks = scheduling.schedule(there.at(edge_round=2), SEATS, UNKNOWN)
    assert {(work.epochs, work.steps, work.batch_size) for work in tasks.values()} == {(None, 1, 2)}


FREE = Profile(compute_sps=100, up_bps=1e15, down_bps=1e15, latency_s=0)


def test_overselection_is_rounded_up_but_not_by_the_error_of_its_product() -> None:
    """In floating point, 25 * 1.12 is more than 28."""
    seats = [seat(number) for number in range(50)]
    assert len(selection.select(ctx(select="random", fraction_train=0.5, overselection=0.12), seats, UNKNOWN)) == 28


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (np.array([5, 2]), ""),
        ([np.int64(5), np.uint8(2)], ""),
        ((5, 2), ""),
        (None, "own returns a NoneType, not a list of device numbers"),
        (iter([5]), "own returns a list_iterator, not a list"),
        ([5.0], "own returns 5.0, not a device number"),
        (["5"], "own returns '5', not a device number"),
        ([True], "own returns True, not a device number"),
        ([5, 5], "own selects a device twice"),
        ([3], "or one that the edge does not have"),
    ],
)
def test_what_an_own_policy_selects_is_checked_and_becomes_plain_numbers(
    chosen: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = selection.SelectionPolicy(name="own", choose=lambda ctx, seats, view: chosen)
    monkeypatch.setattr(selection, "POLICIES", SimpleNamespace(get=lambda name: own))
    if message:
        with pytest.raises(BadInput, match=message):
            selection.select(ctx(), SEATS, UNKNOWN)
        return
    found = selection.select(ctx(), SEATS, UNKNOWN)
    assert found == [5, 2]
    assert {type(number) for number in found} == {int}
