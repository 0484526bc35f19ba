"""NVIDIA FLARE's straggler experiment on the simulated clock: 16 devices of three classes, synchronous rounds."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from shared.federation.experiment import Experiment
from shared.simulation.cost_model import LinkUse, visit_cost
from strata.spec_files import read_spec
from tests.shared.algorithms.ways import lab_of, run

SPEC = Path(__file__).parents[1] / "experiments" / "nvflare_stragglers.yaml"
CLASSES = {"fast": (100, 1), "medium": (200, 2), "slow": (400, 4)}
LINK = (5, 1)
PUBLISHED_S = 400 + 3 / (2 * math.sqrt(math.pi)) * 4 + 5
BYTES = LinkUse(down_bytes=20_000, up_bytes=20_000)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return lab_of(read_spec(SPEC).resolved(n_devices=16, n_edges=1), tmp_path_factory.mktemp("data"))


def lasted_s(experiment: Experiment, round_no: int, use: LinkUse = BYTES) -> float:
    """Returns the duration of a round: that of its slowest visit, from the streams of that round."""
    ctx = experiment.ctx(phase="train", round_no=round_no, n_clients=16, edge=0)
    flops = 20 * experiment.flops
    return max(
        visit_cost(seat.profile, seat.latency_s[0], use, flops, ctx.at(seat=seat.number).seed).simulated_s
        for seat in experiment.population.seats
    )


def expected_s(experiment: Experiment) -> float:
    """Returns the mean of the largest delay from its distribution: the integral of 1 - prod P(delay <= x)."""
    delays = []
    for seat in experiment.population.seats:
        mean, sd = CLASSES[seat.profile.name]
        delays.append(stats.norm(mean + LINK[0], math.hypot(sd, LINK[1])))
    return 300 + float(integrate.quad(lambda x: 1 - math.prod(d.cdf(x) for d in delays), 300, 500, epsabs=1e-9)[0])


def test_the_classes_are_drawn_by_their_shares(experiment: Experiment) -> None:
    assert Counter(seat.profile.name for seat in experiment.population.seats) == {"fast": 6, "medium": 5, "slow": 5}


def test_two_hundred_rounds_last_as_long_as_the_formula_says(experiment: Experiment) -> None:
    rounds = [lasted_s(experiment, round_no) for round_no in range(1, 201)]
    mean, error = float(np.mean(rounds)), float(np.std(rounds) / math.sqrt(len(rounds)))
    assert pytest.approx(408.4, abs=0.05) == PUBLISHED_S
    assert mean == pytest.approx(PUBLISHED_S, rel=0.02)
    assert abs(mean - expected_s(experiment)) < 3.3 * error  # 99.9 %
    assert error < 0.25


async def test_the_record_of_a_run_agrees_with_the_formula(tmp_path: Path, experiment: Experiment) -> None:
    spec = read_spec(SPEC, ["num_rounds=3", "eval_every=1"]).model_dump(mode="json")
    done = await run(tmp_path, spec, n_edges=1, rooms=(6, 5, 5))
    assert done.experiment.population.digest == experiment.population.digest
    for detail in done.rounds:
        assert detail.simulated_s == pytest.approx(lasted_s(experiment, detail.round_no), abs=1e-3)
