"""FedAsync: its local objective and its step in numpy, and what its parameters may be.

Staleness, buffers and both tiers are beside references in `tests/edge_server/rounds` and `tests/cloud_server/runs`.
"""

from __future__ import annotations

import pytest

from tests.edge_server.rounds.plain_devices import SPEEDS
from tests.shared.algorithms.conftest import small_models  # noqa: F401 - a fixture
from tests.shared.algorithms.layouts import ran
from tests.shared.algorithms.plain_linear import joined, trained


@pytest.mark.matrix
@pytest.mark.parametrize("rho", [0.0, 0.8])
async def test_a_device_stays_near_the_model_that_it_received(rho: float) -> None:
    """Two steps of one device at a time, from x on f(y) + rho/2 |y - x|^2, then x <- (1 - alpha) x + alpha y."""
    sync = {"devices": {"mode": "asynchronous", "concurrency": 1}}
    algorithm = {"name": "fedasync", "params": {"alpha": 0.6, "rho": rho}}
    spec = {**SPEEDS, "num_rounds": 5, "local_epochs": 2, "sync": sync, "algorithm": algorithm}
    done = await ran(spec, n_edges=1, agent_devices=(5,))
    model = without = joined(done.experiment.initial)
    for seat in (row.seat for detail in done.rounds for row in detail.seats):
        model = 0.4 * model + 0.6 * trained(done.experiment, seat, model, pull=rho)
        without = 0.4 * without + 0.6 * trained(done.experiment, seat, without)
    assert abs(joined(done.model) - model).max() < 1e-5
    assert (abs(model - without).max() > 1e-3) == (rho > 0)
