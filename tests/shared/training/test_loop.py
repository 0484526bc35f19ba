"""The training loop takes the steps of the formulas, counts them, and depends on its inputs only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.core.errors import BadInput, Cancelled, NotFinite
from shared.training import loop
from shared.training.data.dataset import as_batch
from shared.training.evaluation import Evaluated, evaluate
from shared.training.loop import Trained, batches, train
from shared.training.models import build, read_state
from shared.training.optimizers import Adam
from tests.forked_strata import run

Array = np.ndarray[Any, Any]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int = 20, shape: tuple[int, ...] = (8, 8)) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, 10, n)


class Scalar(nn.Module):
    """logits = (w, 0) for any image: the loss of label 0 is log(1 + exp(-w)), its derivative -1 / (1 + exp(w))."""

    def __init__(self, w: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.w, torch.zeros(1)]).expand(len(x), 2)


def zeros(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.zeros(n, 1, 1, 1), torch.zeros(n, dtype=torch.int64)) for n in sizes]


def same(a: nn.Module, b: nn.Module) -> bool:
    one, two = read_state(a), read_state(b)
    return all(torch.equal(one[name], two[name]) for name in one)


# ---- one step by hand


def test_one_step_by_hand() -> None:
    model = Scalar(0.0)
    got = train(model, zeros(3), lr=0.5)
    assert (got.n_samples, got.n_steps, got.n_correct) == (3, 1, 3)
    assert got.loss == pytest.approx(math.log(2))
    assert model.w.item() == pytest.approx(0.25)  # 0 - 0.5 * (-1/2)
    assert model.w.grad is None, "gradients are released"
    assert train(Scalar(-1.0), zeros(5), lr=1e-6).n_correct == 0
    assert train(model, [], lr=1.0) == Trained(0, 0, 0.0, 0, 0)
    assert model.w.item() == pytest.approx(0.25), "no batches are no steps"


def test_loss_is_the_mean_over_samples_not_over_batches() -> None:
    model = Scalar(0.0)
    got = train(model, zeros(3, 1), lr=0.5)
    second = math.log(1 + math.exp(-0.25))
    assert got.loss == pytest.approx((3 * math.log(2) + second) / 4)
    assert (got.n_samples, got.n_steps, got.n_correct) == (4, 2, 4)


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)])
def test_sgd_equals_torchs_bit_for_bit(momentum: float, weight_decay: float) -> None:
    x, y = pictures()
    ours, theirs = (build("mlp", (1, 8, 8), 10, seed=0) for _ in range(2))
    data = list(batches(x, y, range(20), batch_size=6, epochs=3, generator=seeded()))
    train(ours, data, lr=0.1, momentum=momentum, weight_decay=weight_decay)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for images, labels in data:
        optimiser.zero_grad()
        functional.cross_entropy(theirs(images), labels).backward()
        optimiser.step()
    assert same(ours, theirs)


# ---- corrections, steps, transforms and objectives of the caller


def test_fedprox_is_a_gradient_correction_which_sees_zeros_where_the_loss_does_not_depend() -> None:
    seen: list[list[float]] = []

    def pull(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        seen.append(gradients[1].tolist())
        torch._foreach_add_(gradients, parameters, alpha=0.1)  # towards the start, which is 0

    model = Scalar(0.0)
    model.spare = nn.Parameter(torch.zeros(2))
    train(model, zeros(1, 1), lr=0.5, correct=pull)
    slope = -1 / (1 + math.exp(0.25))  # w1 = 0.25: the proximal term is 0 in the first step
    assert model.w.item() == pytest.approx(0.25 - 0.5 * (slope + 0.1 * 0.25))
    assert seen == [[0.0, 0.0]] * 2


def test_frozen_parameters_stay() -> None:
    model = build("mlp", (1, 8, 8), 10, seed=0)
    model.features.requires_grad_(False)
    before = read_state(model)
    x, y = pictures()
    train(model, batches(x, y, range(20), batch_size=5, epochs=1, generator=seeded()), lr=0.1, weight_decay=0.1)
    after = read_state(model)
    assert torch.equal(before["features.1.weight"], after["features.1.weight"])
    assert not torch.equal(before["head.weight"], after["head.weight"])


def test_transform_reaches_the_model_objective_replaces_the_loss_and_step_that_of_sgd() -> None:
    seen: list[float] = []

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(x.sum().item())
        logits = model(x)
        return 3 * logits[0, 0], logits

    def sign_step(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= gradient.sign()

    model = Scalar(1.0)
    got = train(model, zeros(2), lr=0.1, transform=lambda x: x + 4, objective=objective)
    assert (seen, got.loss) == ([8.0], 3.0)
    assert model.w.item() == pytest.approx(0.7)
    model = Scalar(0.0)
    assert train(model, zeros(1, 1), lr=0.0, step=sign_step).n_steps == 2
    assert model.w.item() == 2.0


def test_an_objective_may_call_backward_on_each_of_its_passes() -> None:
    """Gradients from before the training do not count."""
    went_back, at_once, corrected = Scalar(1.0), Scalar(1.0), list[float]()
    went_back.w.grad = torch.tensor([7.0])

    def passes(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        terms = []
        for factor in (3, -1):
            terms.append(factor * model(x)[0, 0].square())
            terms[-1].backward()
        return torch.stack(terms).sum().detach(), model(x).detach()

    def total(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(x)
        return 2 * logits[0, 0].square(), logits

    def note(_: list[Tensor], gradients: list[Tensor]) -> None:
        corrected.append(gradients[0].item())

    found = train(went_back, zeros(1, 1), lr=0.1, objective=passes, correct=note)
    assert found == train(at_once, zeros(1, 1), lr=0.1, objective=total)
    assert went_back.w.item() == at_once.w.item() == pytest.approx(0.6**2)
    assert corrected == pytest.approx([4.0, 2.4])


def test_stopped_is_called_before_each_batch() -> None:
    answers = iter([False, False, True])
    model = Scalar(0.0)
    with pytest.raises(Cancelled, match="after 2 steps"):
        train(model, zeros(1, 1, 1, 1), lr=0.5, stopped=lambda: next(answers))
    assert model.w.item() > 0.25
    x, y = pictures(4)
    turns = iter([False, True])
    mlp = build("mlp", (1, 8, 8), 10, 0)
    with pytest.raises(Cancelled, match="after 2 of 4"):
        evaluate(mlp, x, y, range(4), batch_size=2, stopped=lambda: next(turns))


def test_what_is_not_finite_is_named() -> None:
    answers = iter([1.0, math.nan])
    with pytest.raises(NotFinite, match="the loss is nan at step 2"):
        train(Scalar(), zeros(1, 1), lr=0.1, loss=lambda logits, _: logits[0, 0] * next(answers))
    with pytest.raises(NotFinite, match="w is not finite after step 1"):
        train(Scalar(), zeros(1), lr=math.inf)
    with pytest.raises(NotFinite, match="evaluation on 2 samples"):
        evaluate(Scalar(math.nan), np.zeros((2, 1, 1), np.uint8), np.zeros(2, int), [0, 1])


# ---- batches


def positions(got: Iterator[loop.Batch]) -> list[list[int]]:
    return [labels.tolist() for _, labels in got]


def test_an_epoch_is_every_sample_once_in_an_order_of_the_generator_and_steps_are_its_prefix() -> None:
    x, y, torchs = np.zeros((30, 2, 2), np.uint8), np.arange(30), torch.get_rng_state()

    def drawn(seed: int, **how: Any) -> list[list[int]]:
        return positions(batches(x, y, range(1, 30, 2), batch_size=6, generator=seeded(seed), **how))

    got = drawn(0, epochs=2)
    assert [len(batch) for batch in got] == [6, 6, 3] * 2
    first, second = [*chain(*got[:3])], [*chain(*got[3:])]
    assert sorted(first) == sorted(second) == list(range(1, 30, 2))
    assert first != second
    assert drawn(0, steps=4) == got[:4]
    assert drawn(0, epochs=2) == got != drawn(1, epochs=2)
    assert torch.equal(torch.get_rng_state(), torchs)


def test_images_belong_to_their_labels() -> None:
    x = np.arange(12, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    for images, labels in batches(x, np.arange(12), range(12), batch_size=5, epochs=1, generator=seeded()):
        assert torch.equal(images, as_batch(x[labels.numpy()]))


def test_batches_need_epochs_or_steps_and_samples_for_steps() -> None:
    x, y = pictures(4)
    with pytest.raises(BadInput, match="either epochs or steps"):
        batches(x, y, range(4), batch_size=2, generator=seeded())
    with pytest.raises(BadInput, match="no samples"):
        batches(x, y, [], batch_size=2, steps=1, generator=seeded())
    assert list(batches(x, y, [], batch_size=2, epochs=3, generator=seeded())) == []


@pytest.mark.parametrize(
    ("n", "least", "sizes"),
    [(9, 1, [4, 4, 1]), (9, 2, [4, 5]), (10, 2, [4, 4, 2]), (8, 2, [4, 4]), (3, 2, [3]), (0, 2, [])],
)
def test_remaining_samples_that_are_too_few_join_the_batch_before(n: int, least: int, sizes: list[int]) -> None:
    x, _ = pictures(max(n, 1))
    got = positions(batches(x, np.arange(n), range(n), batch_size=4, epochs=2, generator=seeded(), least=least))
    assert [len(batch) for batch in got] == [*sizes, *sizes]
    assert sorted(chain(*got[: len(sizes)])) == list(range(n))
    assert loop.batch_sizes(n, 4, least) == sizes


@pytest.mark.parametrize(("n", "batch_size", "field"), [(1, 4, "partition"), (5, 1, "batch_size")])
def test_a_batch_that_batch_norm_cannot_train_on_is_refused(n: int, batch_size: int, field: str) -> None:
    x, y = pictures(5)
    why = f"a batch has 1 of {n} samples; the model's batch-norm needs 2 or more"
    with pytest.raises(BadInput, match=why) as refused:
        batches(x, y, range(n), batch_size=batch_size, epochs=1, generator=seeded(), least=2)
    assert refused.value.field == field


# ---- same bits


@pytest.mark.parametrize(("name", "shape"), [("mlp", (8, 8)), ("cnn_6_12", (16, 16, 3))])
def test_a_map_and_an_array_give_the_same_bits_small_or_large(
    name: str, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = pictures(23, shape)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    channels = 3 if len(shape) == 3 else 1
    results = []
    for source, limit in ((x, 2**30), (mapped, 2**30), (mapped, 0)):
        monkeypatch.setattr(loop, "SMALL_BYTES", limit)
        model = build(name, (channels, shape[0], shape[1]), 10, seed=0)
        if source is x:  # the format of the model passed in does not matter either
            model.to(memory_format=torch.channels_last)
        data = batches(source, y, range(3, 23), batch_size=6, epochs=2, generator=seeded())
        trained = train(model, data, lr=0.05, momentum=0.9)
        results.append((trained, evaluate(model, source, y, range(23)), _sha(model)))
    assert results[0] == results[1] == results[2]


def _sha(model: nn.Module) -> str:
    state = read_state(model)
    return hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()


def trained_sha() -> str:
    x, y = pictures(24, (12, 12))
    model = build("cnn_mnist", (1, 12, 12), 10, seed=3)
    train(model, batches(x, y, range(24), batch_size=7, epochs=2, generator=seeded(4)), lr=0.05)
    return _sha(model)


@pytest.mark.slow
def test_another_process_gets_the_same_bits() -> None:
    done = run(module=__name__)
    assert done.stdout.strip() == trained_sha(), done.stderr


# ---- evaluation


def test_evaluation_by_hand_changes_neither_model_nor_mode() -> None:
    zero, labels = np.zeros((4, 1, 1), np.uint8), np.array([0, 1, 0, 0])
    got = evaluate(Scalar(math.log(3)), zero, labels, [0, 1, 2], batch_size=2)
    assert (got.n, got.n_correct) == (3, 2)
    assert got.loss_sum == pytest.approx(2 * math.log(4 / 3) + math.log(4))
    assert evaluate(Scalar(), zero, labels, []) == Evaluated(0, 0, 0.0)
    x, y = pictures(6, (8, 8, 3))
    model, fresh = (build("mobilenet_v1", (3, 8, 8), 10, seed=0) for _ in range(2))
    evaluate(model, x, y, range(6))
    assert model.training
    assert same(model, fresh)


# ---- optimisers that replace SGD


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_and_adamw_equal_torchs_bit_for_bit(weight_decay: float, decoupled: bool) -> None:
    """Twenty steps on parameters of several shapes; a second training starts with moments of 0."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 3), (5,), (2, 3, 2)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    for _ in range(2):
        ours, theirs = ([tensor.clone() for tensor in start] for _ in range(2))
        step, kind = Adam(0.01, weight_decay, decoupled=decoupled), torch.optim.AdamW if decoupled else torch.optim.Adam
        optimiser = kind(theirs, lr=0.01, weight_decay=weight_decay)
        for _ in range(20):
            gradients = [torch.randn(shape, generator=generator) for shape in shapes]
            for parameter, gradient in zip(theirs, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimiser.step()
            step(ours, gradients)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert not torch.equal(ours[0], start[0])


if __name__ == "__main__":
    print(trained_sha())
