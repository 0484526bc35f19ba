"""The predicted cost of a visit compared with the cost in its record."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.by_hooks import ByHooks
from shared.core.errors import BadInput
from shared.federation import real_time, visit_estimates
from shared.federation.context import EdgeView
from shared.federation.experiment import Experiment
from shared.federation.hooks import Local
from shared.federation.messages import Task
from shared.federation.registry import load_algorithm
from shared.federation.visit_estimates import HEAD_BYTES
from shared.simulation import REFERENCE_FLOPS
from shared.simulation.cost_model import Cost
from shared.spec.experiment import ExperimentSpec
from tests.shared.algorithms.layouts import ran, resolved

Codecs = dict[str, Any]
MODEL = 4 * (64 * 64 + 64 + 64 * 10 + 10)
TERNARY = (64 * 64 + 64 * 10) // 4 + 2 * 4 + 4 * (64 + 10)
"""Bytes of the mlp on digits: uncompressed; and with two bits per weight, a factor per layer, uncompressed biases."""


def spec_of(algorithm: str, params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices whose samples fill their batches, with slow links without jitter."""
    spec = {
        "algorithm": {"name": algorithm, "params": params},
        "data": {"name": "digits", "n_train": 160, "n_test": 40},
        "devices": {"profile": {"compute_sps": 2, "up_bps": 1e6, "down_bps": 1e6}, "edge_latency_s": 0},
        "num_devices": 4,
        "num_edges": 1,
        "num_rounds": 1,
        "batch_size": 10,
        "local_epochs": 2,
    }
    return {**spec, **more}


def tasks_and_costs(experiment: Experiment, left_s: float = math.inf) -> dict[int, tuple[Task, Cost]]:
    """Returns the task of each seat in round 1, reduced to `left_s`, and its predicted cost."""
    ctx = experiment.ctx(phase=experiment.phase_of(1).name, round_no=1, n_clients=4, edge=0)
    hooks, seats = experiment.algorithm.edge, {seat.number: seat for seat in experiment.population.seats}
    tasks = hooks.schedule(ctx, hooks.init(ctx), list(seats.values()), EdgeView())
    tasks = {number: visit_estimates.partial(ctx, work, seats[number], left_s) for number, work in tasks.items()}
    due = {number: visit_estimates.samples_due(ctx, work, seats[number]) for number, work in tasks.items()}
    return {number: (work, visit_estimates.expected(ctx, seats[number], due[number])) for number, work in tasks.items()}


class AsScheduled(ByHooks):
    """A run whose visits do what the edge schedules, the same for each seat."""

    def _task(self, round_no: int) -> Task:
        return tasks_and_costs(self.experiment)[0][0].replace(evaluate=False)


def passed(local: Local) -> int:
    """Returns `Outcome.n_trained` of a visit."""
    assert local.trained is not None
    return local.trained.n_samples + local.n_passed if local.n_trained is None else local.n_trained


@pytest.mark.parametrize(
    ("algorithm", "params", "times"),
    [
        ("fedavg", {}, 1),
        ("scaffold", {"option": "I"}, 1.5),  # two epochs, and one pass
        ("scaffold", {"option": "II"}, 1),
        ("per_fedavg", {"local_steps": 8}, 2),
        ("per_fedavg", {"local_steps": 8, "hessian": "hessian_free"}, 4),
        ("per_fedavg", {"local_steps": 4, "alpha": 0}, 0.5),
    ],
)
def test_expected_compute_equals_that_of_a_visit(algorithm: str, params: dict[str, Any], times: float) -> None:
    experiment = resolved(**spec_of(algorithm, params))
    for seat, local in AsScheduled(experiment).round().items():
        assert passed(local) == times * 2 * 40
        assert tasks_and_costs(experiment)[seat][1].compute_s == pytest.approx(passed_s(experiment, passed(local)))


@pytest.mark.parametrize(
    ("params", "low"), [({}, 0.4), ({"start": 0, "sigma": 0}, 0.9), ({"statistics": "retaken"}, 0.4)]
)
def test_es_afls_visits_take_at_most_the_time_expected_for_the_whole_supernet(
    params: dict[str, Any], low: float
) -> None:
    """Two epochs of each trial on 36 of 40 samples, and forward passes over the other 4 to rank and validate."""
    experiment = resolved(**spec_of("es_afl", params))
    n_trials = 2 if params.get("sigma", 1) else 1
    n_forward = 4 * (1 + n_trials) + (40 if "statistics" in params else 0)
    for seat, local in AsScheduled(experiment).round().items():
        cost = tasks_and_costs(experiment)[seat][1].compute_s
        assert cost == pytest.approx(passed_s(experiment, math.ceil(n_trials * 80 + n_forward / 3)))
        assert low * cost < passed_s(experiment, passed(local)) <= cost


def passed_s(experiment: Experiment, n_passed: int) -> float:
    """Returns the seconds for training on this number of samples on these devices."""
    return n_passed * experiment.flops / (2 * REFERENCE_FLOPS)


@pytest.mark.parametrize(
    ("algorithm", "params", "codecs", "down_bytes", "up_bytes"),
    [
        ("fedavg", {}, {}, MODEL, MODEL),
        ("fedavg", {}, {"up": "int8", "down": "fp16"}, MODEL // 2, MODEL // 4 + 4 * 4),
        ("t_fedavg", {}, {}, TERNARY, TERNARY),
        ("t_fedavg", {"quantise": False}, {}, MODEL, MODEL),
        ("t_fedavg", {"download": "full"}, {}, MODEL, TERNARY),
        ("t_fedavg", {}, {"down": "fp16"}, TERNARY - 2 * 74, TERNARY),
        ("scaffold", {}, {}, MODEL, 2 * MODEL),
        ("scaffold", {}, {"up": "fp16"}, MODEL, MODEL),
        ("es_afl", {}, {}, MODEL, MODEL),
        ("local_sgd", {}, {}, MODEL, 0),
    ],
)
def test_expected_bytes_follow_the_encodings_of_spec_and_algorithm(
    algorithm: str, params: dict[str, Any], codecs: Codecs, down_bytes: int, up_bytes: int
) -> None:
    experiment = resolved(**spec_of(algorithm, params, compression=codecs))
    use = experiment.ctx(phase="train", round_no=1, n_clients=4).model.link_use
    assert (use.down_bytes, use.up_bytes) == (down_bytes, up_bytes)


@pytest.mark.whole
async def test_expected_bytes_are_slightly_below_the_bytes_sent() -> None:
    """Ternary weights both ways, and biases in half precision down; the rest of a body is below 8 KiB."""
    done = await ran(spec_of("t_fedavg", {}, compression={"down": "fp16"}), n_edges=1, agent_devices=(4,))
    use = done.experiment.ctx(phase="train", round_no=1, n_clients=4).model.link_use
    for row in done.rounds[0].seats:
        assert 0 < row.up_bytes - use.up_bytes < HEAD_BYTES
        assert 0 < row.down_bytes - use.down_bytes < HEAD_BYTES


async def test_partial_work_with_four_gradients_per_step_is_in_time() -> None:
    """The deadline leaves time for five and a half of ten steps; with one gradient a step all ten would fit."""
    params = {"local_steps": 10, "hessian": "hessian_free"}
    whole = tasks_and_costs(resolved(**spec_of("per_fedavg", params)))
    cost = next(cost for _, cost in whole.values())
    deadline_s = cost.simulated_s - 0.45 * cost.compute_s
    spec = spec_of("per_fedavg", params, round_deadline_s=deadline_s, partial_work=True)
    tasks = tasks_and_costs(resolved(**spec), left_s=deadline_s)
    assert {work.steps for work, _ in tasks.values()} == {5}
    done = await ran(spec, n_edges=1, agent_devices=(4,))
    assert [(row.outcome, row.reason, row.work_share) for row in done.rounds[0].seats] == [("used", None, 0.5)] * 4


def test_codec_for_updates_without_codable_tensors_is_refused_by_its_field() -> None:
    es_afl = load_algorithm("es_afl")
    with pytest.raises(BadInput, match="es_afl sends up no tensors that a codec could compress") as refused:
        es_afl.check_spec(ExperimentSpec.model_validate(spec_of("es_afl", {}, compression={"up": "topk"})))
    assert refused.value.field == "compression.up"
    es_afl.check_spec(ExperimentSpec.model_validate(spec_of("es_afl", {}, compression={"down": "fp16"})))


# ---- time limits


def test_the_time_limit_of_a_round_counts_the_steps_that_its_edge_requests() -> None:
    """A thousand steps of ten samples at two gradients, at 8 times their expected time, and four waves."""
    few, many = (resolved(**spec_of("per_fedavg", {"local_steps": steps}, clock="real")) for steps in (1, 1000))
    for experiment, n_passed in ((few, 2 * 2 * 160), (many, 2 * 10_000)):
        seat = experiment.population.seats[0]
        compute_s = passed_s(experiment, real_time.SAFETY_FACTOR * n_passed)
        assert seat.profile.compute_sps == 2
        one_wave = real_time.longest_round_s(experiment, edge_rounds=1, waves=1)
        assert compute_s < one_wave < compute_s + 10
        assert real_time.longest_round_s(experiment, edge_rounds=1, waves=4) == pytest.approx(4 * one_wave)
        assert real_time.longest_round_s(experiment, edge_rounds=3, waves=4) == pytest.approx(12 * one_wave)
