"""FedDC: Gao et al., algorithm 1 with objective (4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shared.algorithms.feddc import Clip
from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.experiment import Experiment
from shared.training.loop import Correct
from tests.shared.algorithms import flat, plain_linear
from tests.shared.algorithms.layouts import Ended, four, ran, tried
from tests.shared.algorithms.plain_linear import Array, in_one_batch

LOST = [{"round_no": 2, "seats": [1]}]
MODEL_BYTES = 4 * (64 * 10 + 10)
TWO_CLASSES = {"name": "shards", "classes_per_device": 2}


def spec_of(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices with different data and sizes."""
    return {
        **four(),
        "algorithm": {"name": "feddc", "params": params},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "num_rounds": 3,
        **more,
    }


def plain(experiment: Experiment, chosen: dict[int, list[int]]) -> tuple[Array, dict[int, Array]]:
    """Computes algorithm 1 in numpy, weighted by samples; returns w and the h_i after the spec's rounds."""
    p: Any = experiment.params
    w = plain_linear.joined(experiment.initial)
    n, far = len(experiment.population.seats), plain_linear.reach(experiment)
    sizes = np.array([len(seat.train) for seat in experiment.population.seats])
    relative = sizes / sizes.mean() if p.relative_weights else np.ones(n)
    g, g_own = np.zeros_like(w), {seat: np.zeros_like(w) for seat in range(n)}
    h = {seat: np.zeros_like(w) for seat in range(n)}
    for round_no in range(1, experiment.spec.num_rounds + 1):
        seats = chosen.get(round_no, list(range(n)))
        trained = []
        for seat in seats:
            pull = p.alpha / relative[seat]
            shift = pull * h[seat] + (g_own[seat] - g / relative[seat]) / (experiment.spec.lr * far)
            theta = plain_linear.trained(experiment, seat, w, shift=shift, pull=pull, bound=p.clip_norm)
            g_own[seat] = theta - w
            h[seat] = h[seat] + theta - w
            trained.append(theta)
        g, drift = (np.average([part[seat] for seat in range(n)], axis=0, weights=sizes) for part in (g_own, h))
        w = np.average(trained, axis=0, weights=sizes[seats]) + drift
    return w, h


RELATIVE: dict[str, Any] = {"alpha": 0.5, "relative_weights": True}


def check_bytes(done: Ended) -> None:
    """Uploads have twice a model's bytes from the first round on; broadcasts have them once there is a g."""
    rows = {(detail.round_no, row.seat): row for detail in done.rounds for row in detail.seats if row.up_bytes}
    assert len(rows) == 11
    assert all(2 * MODEL_BYTES < row.up_bytes < 3 * MODEL_BYTES for row in rows.values())
    assert all(rows[2, seat].down_bytes - rows[1, seat].down_bytes > 0.95 * MODEL_BYTES for seat in (0, 2, 3))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("params", "momentum"),
    [
        ({"alpha": 0.5}, 0.0),
        ({**RELATIVE, "clip_norm": 0.5}, 0.9),
        ({"alpha": 0.01}, 0.9),
        (RELATIVE, 0.0),
        ({"alpha": 0.5, "clip_norm": 0.5}, 0.0),
    ],
)
async def test_rounds_are_those_of_algorithm_1_also_with_a_client_missing(
    params: dict[str, Any], momentum: float
) -> None:
    done = await ran(spec_of(params, **in_one_batch(momentum=momentum, losses=LOST)), agent_devices=(3, 1))
    check_bytes(done)
    w, _ = plain(done.experiment, {2: [0, 2, 3]})
    assert flat.distance(done.model, plain_linear.parted(w)) < 1e-5
    other, _ = plain(done.experiment, {})
    assert flat.distance(done.model, plain_linear.parted(other)) > 1e-3


def test_relative_weights_and_the_bound_on_gradients_change_the_result() -> None:
    without, *options = [
        tried(**spec_of({"alpha": 0.5, **more}, **in_one_batch())).model
        for more in ({}, {"relative_weights": True}, {"clip_norm": 0.5})
    ]
    assert all(flat.distance(with_it, without) > 1e-3 for with_it in options)


def test_clients_of_equal_size_and_a_bound_that_is_not_reached_change_nothing() -> None:
    spec = {"partition": "iid", "num_rounds": 2}
    plain, relative, bounded = [
        tried(**spec_of({"alpha": 0.5, **more}, **spec))
        for more in ({}, {"relative_weights": True}, {"clip_norm": 1e6})
    ]
    assert len({len(seat.train) for seat in plain.experiment.population.seats}) == 1
    assert flat.distance(relative.model, plain.model) < 1e-5
    assert flat.same_bits(bounded.model, plain.model)


def test_a_bound_clips_fedavg_too_where_all_terms_are_off() -> None:
    params = {"alpha": 0, "drift": False, "gradient": False, "clip_norm": 0.1}
    done = tried(**spec_of(params, **in_one_batch(local_epochs=1, num_rounds=1)))
    w, seats = plain_linear.joined(done.experiment.initial), done.experiment.population.seats
    clipped = [plain_linear.trained(done.experiment, seat.number, w, bound=0.1) for seat in seats]
    mean = np.average(clipped, axis=0, weights=[seat.n_train for seat in seats])
    assert flat.distance(done.model, plain_linear.parted(mean)) < 1e-6


def proximal_correction(mu: float) -> Any:
    """Returns FedProx's correction, for `flat.fedavg`."""

    def correction(model: TensorMap) -> Correct:
        def correct(parameters: list[Tensor], gradients: list[Tensor]) -> None:
            for weight, gradient, start in zip(parameters, gradients, model.values(), strict=True):
                gradient.add_(weight - start, alpha=mu)

        return correct

    return correction


def test_without_drift_and_gradient_term_it_is_fedprox_bit_for_bit() -> None:
    done = tried(**spec_of({"alpha": 0.5, "drift": False, "gradient": False}, num_rounds=2))
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 2, correction=proximal_correction(0.5)))


def test_edge_rounds_move_the_models_and_the_cloud_adds_the_drifts() -> None:
    """One device per edge, two edge rounds, no g yet: h_i is the sum of both moves, w the mean of the t_i+ + h_i."""
    fields = in_one_batch(local_epochs=1, num_devices=2, edge_rounds=2, num_rounds=1, partition="iid")
    done = tried(**spec_of({"alpha": 0.5}, **fields))
    edges = []
    for seat in (0, 1):
        w = plain_linear.joined(done.experiment.initial)
        h = g_own = np.zeros_like(w)
        for _ in range(2):
            theta = plain_linear.trained(done.experiment, seat, w, shift=0.5 * h + g_own / 0.1)  # one step, g is 0
            g_own, h, w = theta - w, h + theta - w, theta
        edges.append(w + h)
    assert flat.distance(done.model, plain_linear.parted(np.mean(edges, axis=0))) < 1e-5


@pytest.mark.slow
def test_feddc_reaches_a_low_loss_sooner_where_clients_differ() -> None:
    """The paper's claim: with the drift taken into account, training converges faster than FedAvg's and FedProx's."""
    fields = in_one_batch(local_epochs=10, num_rounds=5)
    off = {"drift": False, "gradient": False}
    feddc = tried(**spec_of({"alpha": 0.1}, partition=TWO_CLASSES, **fields))
    others = [tried(**spec_of({"alpha": alpha, **off}, partition=TWO_CLASSES, **fields)) for alpha in (0.0, 0.1)]
    mine = plain_linear.loss_of(feddc.experiment, feddc.model)
    theirs = [plain_linear.loss_of(done.experiment, done.model) for done in others]
    assert mine < 0.5 * min(theirs)


@pytest.mark.whole
def test_feddc_converges_with_different_participants_in_each_round() -> None:
    """Three of ten devices per round: the mean of all drifts is used; that of participants would oscillate."""
    data = {"name": "digits", "n_train": 400, "n_test": 50}
    fields = in_one_batch(local_epochs=10, num_rounds=10, data=data, num_devices=10, num_edges=1)
    fields |= {"select": "random", "fraction_train": 0.3}
    feddc, fedavg = [
        plain_linear.loss_of(done.experiment, done.model)
        for params in ({"alpha": 0.1}, {"alpha": 0.0, "drift": False, "gradient": False})
        for done in (tried(**spec_of(params, partition=TWO_CLASSES, **fields)),)
    ]
    assert feddc < 0.6 * fedavg


def test_the_order_of_layers_changes_no_bit_of_clipped_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        drawn = [torch.randn(n, generator=generator) * n for n in (3, 50, 7, 400, 2, 90)]
        one, other = ([tensor.clone() for tensor in order] for order in (drawn, drawn[::-1]))
        Clip(0.5, None)([], one)
        Clip(0.5, None)([], other)
        assert all(torch.equal(a, b) for a, b in zip(one, other[::-1], strict=True))
