"""FedAsync: its local objective and its step in numpy, and what its parameters may be.

Staleness, buffers and both tiers are beside references in `tests/edge_server/rounds` and `tests/cloud_server/runs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec
from tests.edge_server.rounds.plain_devices import SPEEDS
from tests.shared.algorithms.conftest import small_models  # noqa: F401 - a fixture
from tests.shared.algorithms.layouts import run
from tests.shared.algorithms.plain_linear import gradient_of, joined


@pytest.mark.parametrize("rho", [0.0, 0.8])
async def test_a_device_stays_near_the_model_that_it_received(tmp_path: Path, rho: float) -> None:
    """Two steps of one device at a time, from x on f(y) + rho/2 |y - x|^2, then x <- (1 - alpha) x + alpha y."""
    sync = {"devices": {"mode": "asynchronous", "concurrency": 1}}
    algorithm = {"name": "fedasync", "params": {"alpha": 0.6, "rho": rho}}
    spec = {**SPEEDS, "num_rounds": 5, "local_epochs": 2, "sync": sync, "algorithm": algorithm}
    done = await run(tmp_path, spec, n_edges=1, agent_devices=(5,))
    model, lr = joined(done.experiment.initial), done.experiment.spec.lr
    without = model
    for seat in (row.seat for detail in done.rounds for row in detail.seats):
        gradient = gradient_of(done.experiment, seat)
        first, other = model - lr * gradient(model), without - lr * gradient(without)
        model = 0.4 * model + 0.6 * (first - lr * (gradient(first) + rho * (first - model)))
        without = 0.4 * without + 0.6 * (other - lr * gradient(other))
    assert abs(joined(done.model) - model).max() < 1e-5
    assert (abs(model - without).max() > 1e-3) == (rho > 0)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"alpha": 0}, "algorithm.params.alpha"),
        ({"alpha": 1.1}, "algorithm.params.alpha"),
        ({"rho": -1}, "algorithm.params.rho"),
    ],
)
def test_bad_parameters_are_refused_by_their_path(params: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_spec({"algorithm": {"name": "fedasync", "params": params}})
    assert refused.value.field == field
