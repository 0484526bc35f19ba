"""Per-FedAvg: the meta-gradient by hand, FedAvg without it, and the steps before each test, at held-out clients too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shared.algorithms.per_fedavg import Params, meta_objective
from shared.federation.hooks import Broadcast
from shared.federation.messages import Task
from shared.federation.visits.trainer import trainer_for
from shared.training import models
from shared.training.data.dataset import as_batch
from shared.training.evaluation import evaluate
from shared.training.loop import train
from shared.training.optimizers import Sgd
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, four, ran, resolved, tried


def spec_of(params: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices with two classes each at two edges; None: FedAvg's."""
    return {
        **four(),
        "algorithm": {"name": "fedavg"} if params is None else {"name": "per_fedavg", "params": params},
        "partition": {"name": "shards", "classes_per_device": 2},
        "batch_size": 16,
        "lr": 0.05,
        **more,
    }


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = np.random.default_rng(seed)
    return torch.tensor(draws.normal(size=(20, 6)), dtype=torch.float64), torch.tensor(draws.integers(0, 4, 20))


@pytest.mark.parametrize("hessian", ["first_order", "hessian_free"])
def test_the_gradient_is_the_formula_in_numpy(hessian: str) -> None:
    """The gradient of a softmax layer in float64; the exact Hessian product is also computed by autograd."""
    params = {"alpha": 0.3, "hessian": hessian, "delta": 1e-4}
    ctx = resolved(**spec_of(params)).ctx(phase="train", round_no=1, n_clients=4)
    layer, (d, outer, far) = nn.Linear(6, 4).double(), (batch(1), batch(2), batch(3))
    w, b = layer.weight.detach().clone().numpy(), layer.bias.detach().clone().numpy()

    def slope(at: Any, of: Any) -> list[Any]:
        return list(flat.softmax_gradient(at[0], at[1], of[0].numpy(), of[1].numpy()))

    tilde = [value - 0.3 * g for value, g in zip([w, b], slope([w, b], d), strict=True)]
    wanted = slope(tilde, outer)
    if hessian == "hessian_free":
        sides = [slope([w + sign * 1e-4 * wanted[0], b + sign * 1e-4 * wanted[1]], far) for sign in (1, -1)]
        wanted = [v - 0.3 * (a - c) / 2e-4 for v, a, c in zip(wanted, *sides, strict=True)]
    second = iter([far]) if hessian == "hessian_free" else None
    loss, logits = meta_objective(ctx, iter([d]), second)(layer, *outer)
    assert not loss.requires_grad
    assert logits.shape == (20, 4)
    assert np.array_equal(layer.weight.detach().numpy(), w)  # the model is unchanged
    for parameter, value in zip(layer.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad.numpy(), value, rtol=1e-6, atol=1e-9)
    if hessian == "hessian_free":
        v = [torch.tensor(value) for value in slope(tilde, outer)]

        def of_far(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(far[0] @ weight.t() + bias, far[1])

        _, curved = torch.autograd.functional.hvp(of_far, (torch.tensor(w), torch.tensor(b)), tuple(v))
        for parameter, g, h in zip(layer.parameters(), v, curved, strict=True):
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad, g - 0.3 * h, atol=1e-6)


async def test_a_visit_takes_tau_steps_on_any_host() -> None:
    specs = [spec_of({"alpha": 0.1, "hessian": one, "local_steps": 3}) for one in ("hessian_free", "first_order")]
    free, first = [await ran(spec, agent_devices=(1, 2, 1), order=(2, 0, 1)) for spec in specs]
    assert flat.same_bits(free.model, tried(**specs[0]).model)
    assert first.info.model_sha256 != free.info.model_sha256
    for mine, without in zip(free.rounds[0].seats, first.rounds[0].seats, strict=True):
        assert mine.compute_s == pytest.approx(2 * without.compute_s)  # four passes instead of two


@pytest.mark.parametrize("adapt_steps", [1, 3, 6])
def test_a_clients_own_model_is_adapt_steps_away_from_the_model_received(adapt_steps: int) -> None:
    """Steps in numpy on batches of 16 of the client's 60 samples, each sample once in 4 batches."""
    experiment = resolved(**spec_of({"alpha": 0.1, "adapt_steps": adapt_steps}, model="linear"))
    spec, seat = experiment.spec, experiment.population.seats[1]
    ctx = experiment.ctx(phase="train", round_no=2, n_clients=4, edge=seat.home_edge).at(seat=1)
    trainer = trainer_for(experiment, Task(kind="train", epochs=1, batch_size=16), seat.train, seat.test)
    hooks: Any = experiment.algorithm.device
    own = hooks.personalise(ctx, hooks.init(ctx), Broadcast(model=experiment.initial), None, trainer)

    order = np.random.default_rng(flat.stream(spec.seed, "seat 1", 2, 0, 0, "adapt")).permutation(seat.train)
    order, draws = order[: 16 * adapt_steps], torch.Generator()
    draws.manual_seed(flat.stream(spec.seed, "seat 1", 2, 0, 0, "personalise"))
    epochs = (order[torch.randperm(len(order), generator=draws).numpy()] for _ in range(2))
    drawn = [epoch[at : at + 16] for epoch in epochs for at in range(0, len(order), 16)][:adapt_steps]
    w, b = (experiment.initial[name].double().numpy() for name in ("head.weight", "head.bias"))
    for chosen in drawn:
        x = ((experiment.data.train_x[chosen] / 255 - 0.5) / 0.5).reshape(len(chosen), -1)
        to_w, to_b = flat.softmax_gradient(w, b, x, np.asarray(experiment.data.train_y)[chosen])
        w, b = w - 0.1 * to_w, b - 0.1 * to_b
    wanted = {"head.weight": torch.from_numpy(w), "head.bias": torch.from_numpy(b)}
    assert flat.distance(own, wanted) < 1e-6 < flat.distance(experiment.initial, wanted)


@pytest.mark.whole
async def test_adapt_steps_change_what_clients_test_but_not_what_they_train() -> None:
    """The default is one step; in training the model is always looked at one step ahead."""
    assert Params().adapt_steps == 1
    one, ten = [
        await ran(spec_of({"alpha": 0.1, "local_steps": 3, **more}), agent_devices=(3, 1))
        for more in ({}, {"adapt_steps": 10})
    ]
    assert one.info.model_sha256 == ten.info.model_sha256
    for mine, other in zip(one.rounds, ten.rounds, strict=True):
        assert [row.compute_s for row in mine.seats] == [row.compute_s for row in other.seats]
    assert ten.info.final["clients_received"] == one.info.final["clients_received"]
    assert (ten.info.final["clients_own"].accuracy or 0) > (one.info.final["clients_own"].accuracy or 0)


def adapted(done: Ended, model: Any, seat: int, round_no: int, steps: int) -> tuple[Any, Any]:
    """Returns a held-out client's model after some steps, and its remaining test samples, by the documented stream."""
    spec, data, held = done.experiment.spec, done.experiment.data, done.experiment.population.seats[seat].test.indices
    order = np.random.default_rng(flat.stream(spec.seed, f"seat {seat}", round_no, 0, 0, "adapt")).permutation(held)
    n = min(spec.batch_size, len(order) // 2)
    scratch = done.experiment.model
    models.write_state(scratch, model)
    images = as_batch(data.train_x[order[:n]])
    labels = torch.from_numpy(data.train_y[order[:n]].astype(np.int64))
    train(scratch, [(images, labels)] * steps, lr=0, step=Sgd(0.1, 0.0, 0.0))
    return models.read_state(scratch), np.sort(order[n:])


@pytest.mark.matrix
@pytest.mark.parametrize("steps", [4, 1])
async def test_held_out_clients_are_tested_on_all_samples_and_after_their_steps_on_the_rest(steps: int) -> None:
    params = {"alpha": 0.1, "local_steps": 5, "adapt_steps": steps}
    spec = spec_of(params, held_out_fraction=0.25, num_rounds=3)
    done = await ran(spec, agent_devices=(4,))
    (seat,) = [s.number for s in done.experiment.population.seats if s.role == "held_out"]
    model, rest = adapted(done, done.model, seat, 3, steps)
    scratch, data = done.experiment.model, done.experiment.data
    held, wanted = done.experiment.population.seats[seat].test.indices, []
    for state, tests in ((done.model, held), (model, rest)):
        models.write_state(scratch, state)
        found = evaluate(scratch, data.train_x, data.train_y, tests)
        wanted.append(found.n_correct / found.n)
    final = done.info.final
    assert final["held_out_received"].accuracy == pytest.approx(wanted[0])
    assert final["held_out_own"].accuracy == pytest.approx(wanted[1])
    trained = {row.seat for detail in done.rounds for row in detail.seats if row.outcome == "used"}
    assert seat not in trained


@pytest.mark.slow
async def test_one_step_from_the_model_improves_accuracy_also_for_held_out_clients() -> None:
    """The paper's claim: the step improves clients of two classes, including those that never trained."""
    more = {"held_out_fraction": 0.25, "num_rounds": 15, "num_devices": 8}
    done = await ran(spec_of({"alpha": 0.3, "local_steps": 10}, **more), agent_devices=(8,))
    final = {name: found.accuracy or 0.0 for name, found in done.info.final.items()}
    assert final["clients_own"] > final["clients_received"] + 0.05
    assert final["held_out_own"] > final["held_out_received"] + 0.05
