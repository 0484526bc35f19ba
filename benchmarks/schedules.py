"""`python -m benchmarks.schedules`: simulated seconds of a round with each schedule (docs/scheduler-results.md).

A user has ten devices and a server; ten rounds, three seeds. Twins, planned shares and costs are computed by the
product's code; no device trains, since simulated time does not depend on the trained values.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from edge_server.rounds.round_log import visit_record
from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.twins import Twins
from edge_server.rounds.wave import AgentReplies, Dispatch, VisitRequest, Wave
from edge_server.rounds.wave_timing import WaveTiming
from shared.federation import scheduling, visit_estimates
from shared.federation.context import EdgeView
from shared.federation.experiment import Experiment
from shared.federation.messages import Outcome, WaveId
from shared.federation.spec_parser import parse_spec
from shared.run_records.visits import VisitRecord
from shared.simulation.cost_model import LinkUse
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.description import Classes, Sample

SCHEDULES = ("own_data", "equal", "free_compute", "finish_time")
ROUNDS, SEEDS = 10, (1, 2, 3)
COMPUTE = {"compute_sps": {"name": "uniform", "low": 200, "high": 1000}}
NEAR = {"latency_s": 0, "up_bps": 1e15, "down_bps": 1e15}
DELAY = {"delay_s": {"name": "uniform", "low": 0, "high": 4}}
TAIL = {"delay_s": {"name": "pareto", "shape": 1.5, "scale": 0.5}}
LOAD = {"load": {"name": "steps", "every_s": 5, "low": 0.2, "high": 1}}
CASES: dict[str, list[dict[str, Any]]] = {
    "compute only": [{**COMPUTE, **NEAR}],
    "compute, with a varying load": [{**COMPUTE, **NEAR, **LOAD}],
    "compute, with delays of 0 to 4 s": [{**COMPUTE, **NEAR, **DELAY}],
    "compute, with heavy-tailed delays from 0.5 s": [{**COMPUTE, **NEAR, **TAIL}],
    "all on Ethernet": [{**COMPUTE, "link": "ethernet"}],
    "all on Wi-Fi": [{**COMPUTE, "link": "wifi"}],
    "half Wi-Fi, half LTE": [{**COMPUTE, "link": "wifi"}, {**COMPUTE, "link": "lte"}],
    "half Wi-Fi, half LTE, with load and delays": [
        {**COMPUTE, **LOAD, **DELAY, "link": name} for name in ("wifi", "lte")
    ],
}
"""The profiles of the devices in each case; each profile describes an equal part of the devices."""


@dataclass
class EdgeSimulation:
    """One edge of an experiment, round after round on the simulated clock; `visits` are those of its last round."""

    experiment: Experiment
    number: int = 0
    at_s: float = 0.0
    visits: Sequence[VisitRecord] = ()

    def __post_init__(self) -> None:
        self.twins = Twins(telemetry=self.experiment.spec.telemetry)

    def round_s(self, round_no: int = 1) -> float:
        """Simulated seconds of the next round, in which every device does its share; without the links to the cloud."""
        experiment, clock = self.experiment, EdgeClock(self.experiment, self.number, round_no=round_no, at_s=self.at_s)
        numbers = [seat.number for seat in experiment.population.at(self.number)]
        clock = self.twins.refresh(clock, numbers, new_edge_round=True)
        ctx = experiment.ctx(phase="train", round_no=round_no, n_clients=1, edge=self.number)
        view = EdgeView(twins=self.twins.known)
        tasks = scheduling.schedule(ctx, [clock.seat(number) for number in numbers], view)
        moved = {number: experiment.moved_bytes(number, task) for number, task in tasks.items()}
        requests = [VisitRequest(number, task, None, None, moved[number]) for number, task in tasks.items()]
        predicted = self.twins.predict(ctx, clock, tasks)
        dispatch = Dispatch(WaveId(run_id="counted", round_no=round_no), tasks, requests, predicted=predicted)
        replies = AgentReplies(used=set(tasks))
        for number, task in tasks.items():
            seat, body = clock.seat(number), ctx.model.n_bytes + visit_estimates.HEAD_BYTES
            n_trained = visit_estimates.samples_due(ctx, task, seat)
            replies.outcomes[number] = Outcome[Any](seat=number, kind="train", n_trained=n_trained)
            if seat.role == "train":
                replies.links[number] = LinkUse(down_bytes=body + moved[number], up_bytes=body)
        timing = WaveTiming(clock, cast("Any", None), ctx, dispatch, replies)  # without a client: no agent is contacted
        wave = Wave(dispatch, replies, timing.decide())
        costs = {number: timing.cost_of_visit(wave.decision, number) for number in tasks}
        self.visits = [visit_record(wave, number, cost, 0.0) for number, cost in costs.items()]
        self.twins.observe_wave(ctx, clock, wave, self.visits)
        self.at_s += timing.duration_s(wave.decision)
        return timing.duration_s(wave.decision)


def counted_experiment(spec: ExperimentSpec) -> Experiment:
    """An experiment with MNIST's shapes and the spec's number of samples, all of them zeros."""
    n = spec.data.n_train or 0
    x, y = np.broadcast_to(np.zeros((28, 28), np.uint8), (n, 28, 28)), np.arange(n, dtype=np.int64) % 10
    return Experiment(
        spec,
        Dataset(
            "mnist", x, y, x[:1000], y[:1000], None, None, Classes(10), Sample((1, 28, 28), images=True), "only counted"
        ),
    )


def spec_of(profiles: list[dict[str, Any]], schedule: str, seed: int, twins: Any = True) -> ExperimentSpec:
    """A spec of ten devices that train five epochs on 600 samples each, and a server of 2000 samples per second."""
    mixture = [{"profile": profile, "share": 1 / len(profiles)} for profile in profiles]
    spec = {
        "seed": seed,
        "client": "edge",
        "schedule": schedule,
        "twins": twins,
        "data": {"name": "mnist", "n_train": 6000, "n_test": 1000},
        "model": "cnn_mnist",
        "local_epochs": 5,
        "num_edges": 1,
        "num_devices": 10,
        "devices": {"profiles": mixture, "edge_latency_s": 0},
        "edge_link": {"worker_sps": 2000},
    }
    return parse_spec(spec).resolved(n_devices=1, n_edges=1)


def mean_s(profiles: list[dict[str, Any]], schedule: str, seed: int) -> float:
    """Mean simulated seconds of a round."""
    edge = EdgeSimulation(counted_experiment(spec_of(profiles, schedule, seed)))
    return statistics.fmean(edge.round_s(round_no) for round_no in range(1, ROUNDS + 1))


def row(case: str) -> list[float]:
    """The mean seconds over seeds for each schedule; then the smallest and the largest gain of a seed, in percent, of
    finish_time over free_compute."""
    found = {name: [mean_s(CASES[case], name, seed) for seed in SEEDS] for name in SCHEDULES}
    pairs = zip(found["free_compute"], found["finish_time"], strict=True)
    sooner = [100 * (1 - ours / papers) for papers, ours in pairs]
    return [*(statistics.fmean(found[name]) for name in SCHEDULES), min(sooner), max(sooner)]


def main() -> None:
    """Print the table."""
    head = ("seconds a round", *(f"`{name}`" for name in SCHEDULES), "`finish_time` sooner by, %")
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for case in CASES:
        *seconds, least, most = row(case)
        print(f"| {case} | " + " | ".join(f"{s:.2f}" for s in seconds) + f" | {least:.1f} to {most:.1f} |", flush=True)


if __name__ == "__main__":
    main()
