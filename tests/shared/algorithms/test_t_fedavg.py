"""T-FedAvg: ternary weights are trained, averaged, made ternary again, and sent in two bits each."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.algorithms.t_fedavg import Fttq, Ternaries, as_ternary
from shared.core.errors import WireError
from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.update_checks import check_origin, clients_of
from shared.training import models
from shared.training.loop import batches, train
from shared.wire.compression import Coded
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, Tried, four, ran, resolved, tried

Array = npt.NDArray[Any]
N_WEIGHTS = 64 * 64 + 64 * 10
LAYERS = 2


def spec_of(params: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices at two edges; None: FedAvg's."""
    return {
        **four(),
        "algorithm": {"name": "fedavg"} if params is None else {"name": "t_fedavg", "params": params},
        "lr": 0.05,
        **more,
    }


def ctx_of(params: dict[str, Any], **more: Any) -> Any:
    return resolved(**spec_of(params, **more)).ctx(phase="train", round_no=1, n_clients=4)


# ---- the formulas


def plain_ternary(theta: Array, least: float) -> tuple[Array, float]:
    """Returns the signs beyond the threshold and their mean magnitude."""
    signs = np.sign(theta) * (np.abs(theta) > least)
    return signs, float(np.abs(theta[signs != 0], dtype=np.float64).mean()) if signs.any() else 0.0


Rule = Callable[[Array], float]
"""Magnitudes of a layer's weights -> threshold."""
MEAN: Rule = lambda size: 0.7 * size.mean()  # noqa: E731
LARGEST: Rule = lambda size: np.float64(0.05) * size.max()  # noqa: E731


def by_kernel(share: float) -> Rule:
    """Returns the authors' program's rule: a share of the sum of magnitudes by inputs times outputs."""
    return lambda size: share * size.sum() / (size.shape[0] * size.shape[1])


class PlainFttq:
    """Algorithm 1 in numpy and float64; tensors of one dimension are trained by plain SGD.

    `rule` is the clients' threshold; `best`: the factor is the best one in each step instead of a trained one.
    """

    def __init__(
        self, start: TensorMap, lr: float, *, scaled: bool = True, rule: Rule = MEAN, best: bool = False
    ) -> None:
        self.lr, self.scaled, self.names, self.rule, self.best = lr, scaled, list(start), rule, best
        self.theta = {name: tensor.numpy().astype(float) for name, tensor in start.items() if tensor.dim() >= 2}
        found = {name: plain_ternary(theta, rule(np.abs(theta))) for name, theta in self.theta.items()}
        self.signs = {name: signs for name, (signs, _) in found.items()}
        self.w = {name: w for name, (_, w) in found.items()}

    @property
    def weights(self) -> TensorMap:
        return {name: torch.from_numpy((w * self.signs[name]).astype(np.float32)) for name, w in self.w.items()}

    def step(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for name, parameter, gradient in zip(self.names, parameters, gradients, strict=True):
            if name not in self.theta:
                parameter.sub_(self.lr * gradient)
                continue
            slope, signs = gradient.numpy().astype(float), self.signs[name]
            factor = np.where(signs != 0, self.w[name], 1.0) if self.scaled else 1.0
            self.theta[name] -= self.lr * factor * slope
            self.w[name] -= self.lr * float((signs * slope).sum()) / np.count_nonzero(signs)
            self.signs[name], w = plain_ternary(self.theta[name], self.rule(np.abs(self.theta[name])))
            self.w[name] = w if self.best else self.w[name]
        for name, parameter in zip(self.names, parameters, strict=True):
            parameter.copy_(self.weights.get(name, parameter))


@pytest.mark.parametrize("gradient", ["straight_through", "scaled"])
def test_three_steps_of_a_softmax_layer_are_the_formulas(gradient: str) -> None:
    """One ternary layer with bias, gradients of the cross-entropy by hand, in float64."""
    lr, draws = 1.0, np.random.default_rng(0)
    ctx = ctx_of({"gradient": gradient}, lr=lr)
    x, y = draws.normal(size=(20, 6)), draws.integers(0, 4, 20)
    start = {"w": torch.tensor(draws.normal(size=(4, 6)).astype(np.float32)), "b": torch.zeros(4)}
    fttq, plain = Fttq(ctx, start), PlainFttq(start, lr, scaled=gradient == "scaled")
    parameters, wanted = ([one.weights["w"].clone(), start["b"].clone()] for one in (fttq, plain))
    n_nonzero = {int(wanted[0].count_nonzero())}
    for _ in range(3):
        for mine, theirs in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        slopes = flat.softmax_gradient(wanted[0].numpy().astype(float), wanted[1].numpy().astype(float), x, y)
        for one, its in ((fttq, parameters), (plain, wanted)):
            one.step(its, [torch.tensor(slope.astype(np.float32)) for slope in slopes])
        n_nonzero.add(int(wanted[0].count_nonzero()))
    torch.testing.assert_close(parameters, wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(fttq.theta["w"].numpy(), plain.theta["w"].astype(np.float32), rtol=1e-4, atol=1e-6)
    assert len(n_nonzero) > 1  # weights crossed the threshold
    assert torch.equal(fttq.ternary["w"].detach(), parameters[0])


AUTHORS: dict[str, Any] = {
    "threshold": 0.07,
    "threshold_of": "kernel",
    "server_threshold_of": "kernel",
    "factor": "best",
    "gradient": "straight_through",
}


@pytest.mark.parametrize(
    ("params", "rule"),
    [
        ({"threshold": 0.07, "threshold_of": "kernel"}, by_kernel(0.07)),
        ({"threshold": 0.3, "threshold_of": "max"}, lambda size: 0.3 * size.max()),
        ({"factor": "best"}, MEAN),
        (AUTHORS, by_kernel(0.07)),
    ],
)
def test_steps_of_a_convolutional_layer_by_each_rule_are_those_of_numpy(params: dict[str, Any], rule: Rule) -> None:
    """Kernels of 3 x 3; slopes are drawn, since the rules do not depend on how they arise."""
    draws = np.random.default_rng(1)
    start = {"w": torch.tensor(draws.normal(size=(5, 4, 3, 3)).astype(np.float32)), "b": torch.zeros(5)}
    scaled, best = params.get("gradient") != "straight_through", params.get("factor") == "best"
    fttq, plain = Fttq(ctx_of(params, lr=1.0), start), PlainFttq(start, 1.0, scaled=scaled, rule=rule, best=best)
    parameters, wanted = ([one.weights["w"].clone(), start["b"].clone()] for one in (fttq, plain))
    assert 0 < int(wanted[0].count_nonzero()) < wanted[0].numel()
    for _ in range(3):
        slopes = [draws.normal(size=tuple(tensor.shape)).astype(np.float32) for tensor in start.values()]
        for one, its in ((fttq, parameters), (plain, wanted)):
            one.step(its, [torch.tensor(slope) for slope in slopes])
        torch.testing.assert_close(parameters, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("of", "least"), [("mean", 0.05 * 6.5 / 4), ("kernel", 0.05 * 6.5 / 2), ("max", 0.2)])
def test_the_servers_threshold_by_each_rule(of: str, least: float) -> None:
    """Two kernels of two weights each, (1, 2, 1, 2)."""
    theta = torch.tensor([4.0, -2.3, 0.17, 0.03]).reshape(1, 2, 1, 2)
    found = as_ternary(ctx_of({"server_threshold_of": of}), {"w": theta})["w"].detach()
    assert torch.equal(found != 0, theta.abs() > least)
    assert int(found.count_nonzero()) == (2 if of == "max" else 3)


def test_weights_that_are_ternary_already_are_kept_by_every_rule() -> None:
    """The threshold of kernels of 5 x 5, all of their weights 1, would be 1.25."""
    theta = torch.ones(2, 3, 5, 5)
    for of in ("mean", "max", "kernel"):
        assert torch.equal(as_ternary(ctx_of({"server_threshold_of": of}), {"w": theta})["w"].detach(), theta)


def test_a_negative_factor_flips_the_signs_that_are_sent() -> None:
    fttq = Fttq(ctx_of({}), {"w": torch.tensor([[2.0, -2.0, 0.0, 1.0]])})
    fttq.w["w"].fill_(-0.5)
    assert fttq.ternary["w"].detach().tolist() == [[-0.5, 0.5, 0.0, -0.5]]


def test_the_servers_threshold_depends_on_the_largest_weight() -> None:
    ctx = ctx_of({})
    model = {"w": torch.tensor([[2.0, 0.1, -0.11], [-1.0, 0.0, 0.05]]), "b": torch.tensor([1.0, 2.0])}
    found = as_ternary(ctx, model)
    mean = (2 + 0.11 + 1) / 3  # beyond 0.05 * 2
    assert torch.allclose(found["w"].detach(), torch.tensor([[mean, 0, -mean], [-mean, 0, 0]]))
    assert isinstance(found["w"], Coded)
    assert found["b"] is model["b"]
    again = as_ternary(ctx, {name: tensor.detach() for name, tensor in found.items()})
    assert torch.equal(again["w"].detach(), found["w"].detach())
    none = as_ternary(ctx, {"w": torch.zeros(2, 2)})
    assert not none["w"].detach().any()


# ---- received messages


@pytest.mark.parametrize(
    ("quantise", "delta", "weights", "message"),
    [
        (True, ("w", "b"), ("w",), "delta of device-0 holds 'features.1.weight'"),
        (True, ("b",), (), "weights of device-0 lacks 'features.1.weight'"),
        (True, ("b",), ("w", "b"), "weights of device-0 holds 'features.1.bias'"),
        (False, ("b",), ("w",), "delta of device-0 lacks 'features.1.weight'"),
        (False, ("w", "b"), ("w",), "weights of device-0 holds 'features.1.weight'"),
        (True, ("b",), ("w",), None),
        (False, ("w", "b"), (), None),
    ],
)
def test_ternary_weights_are_sent_beside_the_other_tensors(
    quantise: bool, delta: tuple[str, ...], weights: tuple[str, ...], message: str | None
) -> None:
    """`w` stands for the weights of all layers, `b` for the biases."""
    experiment = resolved(**spec_of({"quantise": quantise}))
    parts: dict[str, TensorMap] = {"w": {}, "b": {}}
    for name, tensor in experiment.initial.items():
        parts["w" if tensor.dim() == 2 else "b"][name] = tensor
    update = Ternaries(
        delta={k: t for part in delta for k, t in parts[part].items()},
        weights={k: t for part in weights for k, t in parts[part].items()},
    )
    visit = experiment.ctx(phase="train", round_no=1, n_clients=4, edge=0).at(seat=0)
    with pytest.raises(WireError, match=re.escape(message)) if message else nullcontext():
        check_origin(experiment, visit, update, clients_of(visit, [0]))


# ---- rounds


def plain_rounds(done: Ended | Tried, num_rounds: int, server: Rule = LARGEST, **fttq_by: Any) -> TensorMap:
    """Runs a reference T-FedAvg without tiers, which shares only the training loop."""
    experiment, data, size = done.experiment, done.experiment.data, done.experiment.spec.batch_size
    sizes = [len(seat.train) for seat in experiment.population.seats]
    model = plain_server(experiment.initial, server)
    for round_no in range(1, num_rounds + 1):
        sent = []
        for seat in experiment.population.seats:
            fttq = PlainFttq(model, experiment.spec.lr, **fttq_by)
            models.write_state(experiment.model, model | fttq.weights)
            seed = flat.stream(experiment.spec.seed, f"seat {seat.number}", round_no, 0, 0, "batches")
            generator = torch.Generator().manual_seed(seed)
            drawn = batches(data.train_x, data.train_y, seat.train, batch_size=size, generator=generator, epochs=1)
            train(experiment.model, drawn, lr=experiment.spec.lr, step=fttq.step)
            after = models.read_state(experiment.model)
            sent.append({name: t if t.dim() == 2 else t - model[name] for name, t in after.items()})
        mean = flat.exact_mean(sent, sizes, sum(sizes))
        model = plain_server({name: t if t.dim() == 2 else model[name] + t for name, t in mean.items()}, server)
    return model


def plain_server(model: TensorMap, rule: Rule = LARGEST) -> TensorMap:
    found = dict(model)
    for name, tensor in model.items():
        if tensor.dim() == 2:
            theta = tensor.numpy()
            signs, w = plain_ternary(theta, rule(np.abs(theta)))
            found[name] = torch.from_numpy((np.float32(w) * signs).astype(np.float32))
    return found


async def test_rounds_through_tiers_equal_plain_code_in_any_layout() -> None:
    spec = spec_of({}, batch_size=8, lr=0.5)
    one = await ran(spec, agent_devices=(4,))
    apart = await ran(spec, agent_devices=(1, 2, 1), order=(2, 0, 1))
    assert flat.same_bits(one.model, apart.model)
    assert one.links() == apart.links()
    assert flat.distance(one.model, plain_rounds(one, 2)) < 1e-6
    for name in ("features.1.weight", "head.weight"):
        assert len(one.model[name].unique()) == 3
        assert int((one.model[name].sign() != plain_server(one.experiment.initial)[name].sign()).sum()) > 10


def test_rounds_by_the_authors_rules_equal_plain_code() -> None:
    done = tried(**spec_of(AUTHORS, batch_size=8, lr=0.5))
    wanted = plain_rounds(done, 2, by_kernel(0.05), scaled=False, rule=by_kernel(0.07), best=True)
    assert flat.distance(done.model, wanted) < 1e-6
    assert flat.distance(done.model, plain_rounds(done, 2)) > 1e-2


@pytest.mark.slow
async def test_it_learns_nearly_as_much_from_a_sixteenth_of_the_weights_bytes() -> None:
    """The paper's claim: at most 0.12 below FedAvg, and 3.75 bytes less per weight on each link."""
    more = {"num_rounds": 8, "local_epochs": 5, "lr": 0.2, "data": {"name": "digits", "n_train": 600, "n_test": 200}}
    ternary = await ran(spec_of({"gradient": "straight_through"}, **more), agent_devices=(4,))
    fedavg = await ran(spec_of(None, **more), agent_devices=(4,))
    assert ternary.info.accuracy is not None
    assert fedavg.info.accuracy is not None
    assert ternary.info.accuracy > max(0.75, fedavg.info.accuracy - 0.12)
    saved = 4 * N_WEIGHTS - (N_WEIGHTS // 4 + 4 * LAYERS)
    for mine, theirs in zip(ternary.rounds, fedavg.rounds, strict=True):
        for row, other in zip(mine.seats, theirs.seats, strict=True):
            assert other.up_bytes - row.up_bytes == pytest.approx(saved, abs=600)  # the names of the parts are longer
            assert other.down_bytes - row.down_bytes == pytest.approx(saved, abs=600)


async def test_an_edges_model_is_ternary_between_its_rounds() -> None:
    """The edge sends its mean to the cloud in full; devices get ternary weights in the second edge round as well."""
    done = await ran(spec_of({}, edge_rounds=2, num_rounds=1), agent_devices=(4,))
    for row in done.rounds[0].seats:
        assert row.down_bytes < 2 * N_WEIGHTS
    for edge in done.rounds[0].edges:
        assert edge.up_bytes > 4 * N_WEIGHTS
    assert len(done.model["features.1.weight"].unique()) == 3


async def test_the_servers_model_may_be_broadcast_in_full() -> None:
    done = await ran(spec_of({"download": "full"}, num_rounds=2, batch_size=8, lr=0.5), agent_devices=(3, 1))
    assert len(done.model["features.1.weight"].unique()) > 3
    for row in done.rounds[1].seats:
        assert row.up_bytes < N_WEIGHTS
        assert row.down_bytes > 4 * N_WEIGHTS
