"""T-FedAvg: ternary weights are trained, averaged, made ternary again, and sent in two bits each."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
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
from tests.shared.algorithms.layouts import Ended, resolved, run

Array = npt.NDArray[Any]
N_WEIGHTS = 64 * 64 + 64 * 10
LAYERS = 2


def spec_of(params: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices at two edges; None: FedAvg's."""
    spec = {
        "algorithm": {"name": "fedavg"} if params is None else {"name": "t_fedavg", "params": params},
        "data": {"name": "digits", "n_train": 240, "n_test": 60},
        "num_devices": 4,
        "num_edges": 2,
        "num_rounds": 2,
        "lr": 0.05,
    }
    return {**spec, **more}


def ctx_of(params: dict[str, Any], **more: Any) -> Any:
    return resolved(**spec_of(params, **more)).ctx(phase="train", round_no=1, n_clients=4)


# ---- the formulas


def plain_ternary(theta: Array, least: float) -> tuple[Array, float]:
    """Returns the signs beyond the threshold and their mean magnitude."""
    signs = np.sign(theta) * (np.abs(theta) > least)
    return signs, float(np.abs(theta[signs != 0], dtype=np.float64).mean()) if signs.any() else 0.0


class PlainFttq:
    """Algorithm 1 in numpy and float64; tensors of one dimension are trained by plain SGD."""

    def __init__(self, start: TensorMap, lr: float, *, scaled: bool = True) -> None:
        self.lr, self.scaled, self.names = lr, scaled, list(start)
        self.theta = {name: tensor.numpy().astype(float) for name, tensor in start.items() if tensor.dim() == 2}
        found = {name: plain_ternary(theta, 0.7 * np.abs(theta).mean()) for name, theta in self.theta.items()}
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
            self.signs[name], _ = plain_ternary(self.theta[name], 0.7 * np.abs(self.theta[name]).mean())
        for name, parameter in zip(self.names, parameters, strict=True):
            parameter.copy_(self.weights.get(name, parameter))


@pytest.mark.parametrize("gradient", ["straight_through", "scaled"])
def test_three_steps_of_a_softmax_layer_are_the_formulas(gradient: str, tmp_path: Path) -> None:
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


def test_a_negative_factor_flips_the_signs_that_are_sent(tmp_path: Path) -> None:
    fttq = Fttq(ctx_of({}), {"w": torch.tensor([[2.0, -2.0, 0.0, 1.0]])})
    fttq.w["w"].fill_(-0.5)
    assert fttq.ternary["w"].detach().tolist() == [[-0.5, 0.5, 0.0, -0.5]]


def test_the_servers_threshold_depends_on_the_largest_weight(tmp_path: Path) -> None:
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


def plain_rounds(done: Ended, num_rounds: int) -> TensorMap:
    """Runs a reference T-FedAvg without tiers, which shares only the training loop."""
    experiment, data, size = done.experiment, done.experiment.data, done.experiment.spec.batch_size
    sizes = [len(seat.train) for seat in experiment.population.seats]
    model = plain_server(experiment.initial)
    for round_no in range(1, num_rounds + 1):
        sent = []
        for seat in experiment.population.seats:
            fttq = PlainFttq(model, experiment.spec.lr)
            models.write_state(experiment.model, model | fttq.weights)
            seed = flat.stream(experiment.spec.seed, f"seat {seat.number}", round_no, 0, 0, "batches")
            generator = torch.Generator().manual_seed(seed)
            drawn = batches(data.train_x, data.train_y, seat.train, batch_size=size, generator=generator, epochs=1)
            train(experiment.model, drawn, lr=experiment.spec.lr, step=fttq.step)
            after = models.read_state(experiment.model)
            sent.append({name: t if t.dim() == 2 else t - model[name] for name, t in after.items()})
        mean = flat.exact_mean(sent, sizes, sum(sizes))
        model = plain_server({name: t if t.dim() == 2 else model[name] + t for name, t in mean.items()})
    return model


def plain_server(model: TensorMap) -> TensorMap:
    found = dict(model)
    for name, tensor in model.items():
        if tensor.dim() == 2:
            theta = tensor.numpy()
            signs, w = plain_ternary(theta, np.float64(0.05) * np.abs(theta).max())
            found[name] = torch.from_numpy((np.float32(w) * signs).astype(np.float32))
    return found


async def test_rounds_through_tiers_equal_plain_code_in_any_layout(tmp_path: Path) -> None:
    spec = spec_of({}, batch_size=8, lr=0.5)
    one = await run(tmp_path, spec, agent_devices=(4,))
    apart = await run(tmp_path, spec, agent_devices=(1, 2, 1), order=(2, 0, 1))
    assert flat.same_bits(one.model, apart.model)
    assert one.links() == apart.links()
    assert flat.distance(one.model, plain_rounds(one, 2)) < 1e-6
    for name in ("features.1.weight", "head.weight"):
        assert len(one.model[name].unique()) == 3
        assert int((one.model[name].sign() != plain_server(one.experiment.initial)[name].sign()).sum()) > 10


@pytest.mark.parametrize("edge_rounds", [1, 2])
async def test_without_quantisation_it_is_fedavg_bit_for_bit(edge_rounds: int, tmp_path: Path) -> None:
    more: dict[str, Any] = {"edge_rounds": edge_rounds, "num_rounds": 1}
    off, fedavg = [await run(tmp_path, spec_of(p, **more), agent_devices=(3, 1)) for p in ({"quantise": False}, None)]
    assert off.info.model_sha256 == fedavg.info.model_sha256


async def test_it_learns_nearly_as_much_from_a_sixteenth_of_the_weights_bytes(tmp_path: Path) -> None:
    """The paper's claim: at most 0.12 below FedAvg, and 3.75 bytes less per weight on each link."""
    more = {"num_rounds": 8, "local_epochs": 5, "lr": 0.2, "data": {"name": "digits", "n_train": 600, "n_test": 200}}
    ternary = await run(tmp_path, spec_of({"gradient": "straight_through"}, **more), agent_devices=(4,))
    fedavg = await run(tmp_path, spec_of(None, **more), agent_devices=(4,))
    assert ternary.info.accuracy is not None
    assert fedavg.info.accuracy is not None
    assert ternary.info.accuracy > max(0.75, fedavg.info.accuracy - 0.12)
    saved = 4 * N_WEIGHTS - (N_WEIGHTS // 4 + 4 * LAYERS)
    for mine, theirs in zip(ternary.rounds, fedavg.rounds, strict=True):
        for row, other in zip(mine.seats, theirs.seats, strict=True):
            assert other.up_bytes - row.up_bytes == pytest.approx(saved, abs=600)  # the names of the parts are longer
            assert other.down_bytes - row.down_bytes == pytest.approx(saved, abs=600)


async def test_an_edges_model_is_ternary_between_its_rounds(tmp_path: Path) -> None:
    """The edge sends its mean to the cloud in full; devices get ternary weights in the second edge round as well."""
    done = await run(tmp_path, spec_of({}, edge_rounds=2, num_rounds=1), agent_devices=(4,))
    for row in done.rounds[0].seats:
        assert row.down_bytes < 2 * N_WEIGHTS
    for edge in done.rounds[0].edges:
        assert edge.up_bytes > 4 * N_WEIGHTS
    assert len(done.model["features.1.weight"].unique()) == 3


async def test_the_servers_model_may_be_broadcast_in_full(tmp_path: Path) -> None:
    done = await run(tmp_path, spec_of({"download": "full"}, num_rounds=2, batch_size=8, lr=0.5), agent_devices=(3, 1))
    assert len(done.model["features.1.weight"].unique()) > 3
    for row in done.rounds[1].seats:
        assert row.up_bytes < N_WEIGHTS
        assert row.down_bytes > 4 * N_WEIGHTS
