"""What the record of a round says of all edges together."""

from __future__ import annotations

import pytest

from tests.federation import Federation, small_spec


async def test_the_loss_of_a_round_is_the_mean_over_the_samples_of_its_visits(fed: Federation) -> None:
    info = await fed.run(small_spec(num_rounds=1, partition={"name": "dirichlet", "alpha": 0.5}))
    first = await fed.round(info.run, 1)
    visits = [(row.n_samples, row.train_loss) for row in first.seats]
    assert len({n for n, _ in visits}) > 1
    mean = sum(n * (loss or 0.0) for n, loss in visits) / sum(n for n, _ in visits)
    assert first.train_loss == pytest.approx(mean, rel=1e-9)
