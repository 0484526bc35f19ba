"""Fig. 7 of the digital-twin paper: simulated times compared with the closed form."""

from __future__ import annotations

import pytest

from benchmarks.fig7 import SIZES, closed_form_s, one_sample_s, simulated_s, spec_of
from benchmarks.schedules import counted_experiment


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_simulated_times_are_those_of_the_closed_form_to_one_sample(seed: int) -> None:
    for n in (SIZES[0], SIZES[4], SIZES[-1]):
        for name in ("own_data", "free_compute"):
            experiment = counted_experiment(spec_of(n, name, seed))
            assert {seat.role for seat in experiment.population.at(0)} == {"train", "worker"}
            assert abs(simulated_s(experiment) - closed_form_s(experiment)) <= one_sample_s(experiment)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_finish_time_lies_between_its_closed_form_and_the_papers_rule(seed: int) -> None:
    for n in (SIZES[0], SIZES[-1]):
        paper, ours = (counted_experiment(spec_of(n, name, seed)) for name in ("free_compute", "finish_time"))
        assert closed_form_s(ours) * (1 - 1e-9) <= simulated_s(ours) <= simulated_s(paper) + 1e-6
