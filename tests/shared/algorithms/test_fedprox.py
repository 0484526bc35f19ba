"""FedProx: Li et al., algorithm 2, objective (2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.federation.hooks import Broadcast
from shared.federation.messages import Task
from shared.federation.visits.trainer import trainer_for
from tests.shared.algorithms import flat, plain_linear
from tests.shared.algorithms.layouts import four, resolved, tried


def spec_of(mu: float | None, **more: Any) -> dict[str, Any]:
    algorithm = {"name": "fedavg"} if mu is None else {"name": "fedprox", "params": {"mu": mu}}
    return {**four(), "algorithm": algorithm, **more}


def pulled(experiment: Experiment, mu: float) -> TensorMap:
    """Computes one round of full-batch steps on h_k(w) = F_k(w) + mu/2 |w - w_t|^2, averaged by samples, in numpy."""
    start, seats = plain_linear.joined(experiment.initial), experiment.population.seats
    own = [plain_linear.trained(experiment, seat.number, start, pull=mu) for seat in seats]
    return plain_linear.parted(np.average(own, axis=0, weights=[seat.n_train for seat in seats]))


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_devices_minimise_the_proximal_objective(mu: float) -> None:
    done = tried(**spec_of(mu, **plain_linear.in_one_batch(local_epochs=5, num_rounds=1)))
    assert flat.distance(done.model, pulled(done.experiment, mu)) < 1e-6
    assert flat.distance(done.model, pulled(done.experiment, 0.0)) > 1e-4


def drift(mu: float) -> float:
    """Returns the mean distance of local models from the global one: two classes per device, many local epochs."""
    experiment = resolved(
        **spec_of(mu, partition={"name": "shards", "classes_per_device": 2}, local_epochs=20, batch_size=16)
    )
    squares = []
    for seat in experiment.population.seats:
        ctx = experiment.ctx(phase="train", round_no=1, n_clients=4, edge=seat.home_edge).at(seat=seat.number)
        trainer = trainer_for(experiment, Task(epochs=20, batch_size=16), seat.train, seat.test)
        hooks = experiment.algorithm.device
        update: Any = hooks.local_update(ctx, hooks.init(ctx), Broadcast(model=experiment.initial), trainer).update
        squares.append(sum(float((tensor**2).sum()) for tensor in update.delta.values()))
    return float(np.sqrt(squares).mean())


def test_larger_mu_keeps_local_models_closer_on_skewed_data() -> None:
    free, weak, strong = (drift(mu) for mu in (0.0, 0.1, 5.0))
    assert strong < 0.5 * free
    assert strong < weak < free
