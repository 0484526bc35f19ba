"""FedMix: Yoon et al., algorithms 1 and 2, loss (4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from shared.algorithms.fedmix import Mash, Params, mixing
from shared.core.tensor_records import Tensor
from shared.federation.experiment import Experiment
from shared.training.models import build
from tests.shared.algorithms import flat, plain_linear
from tests.shared.algorithms.layouts import Ended, four, ran, tried

ENTRY_BYTES = 4 * (64 + 10)


def spec_of(lam: float, params: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        **four(),
        "algorithm": {"name": "fedmix", "params": {"lam": lam, **(params or {})}},
        "partition": {"name": "shards", "classes_per_device": 2},
        **more,
    }


# ---- the loss


def drawn(n: int, seed: int = 0) -> Tensor:
    """Returns random images of 8x8."""
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def entries(n: int) -> Mash:
    """Returns a mash of such images with soft labels."""
    images = drawn(n, seed=1)
    return Mash(images=images, labels=torch.softmax(images.flatten(1)[:, :10], 1))


def test_loss_of_a_batch_by_hand() -> None:
    """Softmax regression in numpy: the slope of each image's loss is W^T (p - y)."""
    lam, mash, model = 0.2, entries(1), build("linear", (1, 8, 8), 10, 0)
    x, y = drawn(5), torch.tensor([3, 1, 4, 1, 5])
    loss, logits = mixing(mash, Params(lam=lam), torch.Generator())(model, x, y)
    w, b = (part.detach().double().numpy() for part in (model.head.weight, model.head.bias))
    scaled = (1 - lam) * x.flatten(1).double().numpy()
    out = scaled @ w.T + b
    logp = out - np.log(np.exp(out).sum(axis=1, keepdims=True))
    hot, xg, yg = np.eye(10)[y.numpy()], mash.images.double().numpy().ravel(), mash.labels.double().numpy()[0]
    slopes = (np.exp(logp) - hot) @ w
    by_hand = (1 - lam) * -(logp * hot).sum(1) + lam * -(logp @ yg) + lam * slopes @ xg
    assert loss.item() == pytest.approx(by_hand.mean(), rel=1e-5)
    assert np.allclose(logits.detach().numpy(), out, atol=1e-5)


def test_it_approximates_mixup_with_single_images_to_first_order() -> None:
    """If the means are single images, the difference from mixup falls as lam squared."""
    mash = entries(1)
    model = build("mlp", (1, 8, 8), 10, 0).double()
    model.features.add_module("2", torch.nn.Tanh())
    double = Mash.model_construct(images=mash.images.double(), labels=mash.labels.double())
    x, y = drawn(6).double(), torch.arange(6)

    def gap(lam: float) -> float:
        ours = mixing(double, Params(lam=lam), torch.Generator())(model, x, y)[0]
        out = model((1 - lam) * x + lam * double.images[0])
        soft = functional.cross_entropy(out, double.labels.expand(6, -1))
        return abs((ours - ((1 - lam) * functional.cross_entropy(out, y) + lam * soft)).item())

    assert gap(0.02) / gap(0.01) == pytest.approx(4, rel=0.1)
    assert gap(0.001) < 1e-4


def test_naive_mix_is_mixup_with_the_means() -> None:
    mash, model = entries(3), build("mlp", (1, 8, 8), 10, 0)
    x, y = drawn(6), torch.arange(6)
    loss, _ = mixing(mash, Params(lam=0.3, mix="naive"), torch.Generator().manual_seed(5))(model, x, y)
    entry = int(torch.randint(3, (), generator=torch.Generator().manual_seed(5)))
    logp = torch.log_softmax(model(0.7 * x + 0.3 * mash.images[entry]), 1)
    target = 0.7 * functional.one_hot(y, 10) + 0.3 * mash.labels[entry]
    assert loss.item() == pytest.approx(-(logp * target).sum(1).mean().item(), rel=1e-5)


# ---- the rounds


def mash_of(experiment: Experiment) -> tuple[Tensor, Tensor]:
    """Returns every client's mean image and label shares in numpy, sorted by name."""
    images, labels = [], []
    for seat in experiment.population.seats:
        x, y = plain_linear.rows_of(experiment, seat.number)
        images.append(x.mean(axis=0))
        labels.append(np.bincount(y, minlength=10) / len(y))
    return torch.tensor(np.array(images)), torch.tensor(np.array(labels))


def plain(experiment: Experiment, lam: float) -> Tensor:
    """Computes two rounds of softmax regression on (4), one step per round, in float64 with an explicit gradient."""
    w, (images, labels) = torch.from_numpy(plain_linear.joined(experiment.initial)), mash_of(experiment)
    for round_no in (2, 3):
        total = torch.zeros_like(w)
        for seat in range(4):
            stream = torch.Generator().manual_seed(
                flat.stream(experiment.spec.seed, f"seat {seat}", round_no, 0, 0, "mix")
            )
            entry = int(torch.randint(4, (), generator=stream))
            x, y = (torch.from_numpy(part) for part in plain_linear.rows_of(experiment, seat))
            v = w.clone().requires_grad_()
            logp = torch.log_softmax((1 - lam) * x @ v[:, :-1].T + v[:, -1], 1)
            hot = functional.one_hot(y, 10).double()
            taylor = ((logp.exp() - hot) @ v[:, :-1]) @ images[entry]
            loss = -(1 - lam) * (logp * hot).sum(1) - lam * logp @ labels[entry] + lam * taylor
            (slope,) = torch.autograd.grad(loss.mean(), v)
            total += len(y) / 240 * (w - experiment.spec.lr * slope)
        w = total
    return w


def test_rounds_are_those_of_algorithm_2() -> None:
    done = tried(**spec_of(0.2, model="linear", batch_size=plain_linear.ONE_BATCH))
    assert [(phase.name, phase.num_rounds) for phase in done.experiment.phases] == [("mash", 1), ("train", 2)]
    assert flat.distance(done.model, plain_linear.parted(plain(done.experiment, 0.2).numpy())) < 1e-5
    assert flat.distance(done.model, plain_linear.parted(plain(done.experiment, 0.0).numpy())) > 1e-3
    images, labels = mash_of(done.experiment)
    assert torch.allclose(done.state.mash.images.flatten(1).double(), images, atol=1e-5)
    assert torch.allclose(done.state.mash.labels.double(), labels, atol=1e-6)


def test_means_cover_all_samples_of_small_clients() -> None:
    """60 samples in batches of seven give nine means, whose mean weighted by size is that of all samples."""
    done = tried(**spec_of(0.1, {"mash": 7}, num_rounds=1))
    assert len(done.state.mash.images) == 4 * 9
    weights = torch.tensor([7.0] * 8 + [4.0]) / 60
    first = (done.state.mash.images[:9].flatten(1) * weights[:, None]).sum(0)
    assert torch.allclose(first.double(), mash_of(done.experiment)[0][0], atol=1e-5)


def down(done: Ended, round_no: int) -> tuple[list[int], list[int]]:
    """Returns the bytes sent to each device and to each edge."""
    detail = done.rounds[round_no - 1]
    seats = [row.down_bytes for row in sorted(detail.seats, key=lambda row: row.seat)]
    return seats, [row.down_bytes for row in sorted(detail.edges, key=lambda row: row.edge)]


async def test_the_mash_is_sent_once_to_each_edge_and_device_and_its_bytes_count() -> None:
    done = await ran(spec_of(0.1, num_rounds=3), agent_devices=(1,) * 4)
    mash_bytes = 4 * ENTRY_BYTES
    ups = [row.up_bytes for row in done.rounds[0].seats]
    assert all(ENTRY_BYTES < up < ENTRY_BYTES + 2_000 for up in ups)
    (collect, to_edge), (first, first_edge), (second, second_edge), (third, third_edge) = [
        down(done, round_no) for round_no in (1, 2, 3, 4)
    ]
    for before, there, after in zip([*collect, *to_edge], [*first, *first_edge], [*second, *second_edge], strict=True):
        assert mash_bytes < there - before < mash_bytes + 1_000
        assert abs(after - before) < 200
    assert max(abs(a - b) for a, b in zip([*second, *second_edge], [*third, *third_edge], strict=True)) < 20
    assert done.figures("mash") == {seat: [4, 4, 4] for seat in range(4)}
    assert done.state.edges == (0, 1)


@pytest.mark.whole
async def test_a_device_that_was_absent_gets_the_mash_when_it_returns() -> None:
    """Seat 1 misses the first round of training, seat 2 the round of collection."""
    losses = [{"round_no": 2, "seats": [1]}, {"round_no": 1, "seats": [2]}]
    done = await ran(spec_of(0.1, num_rounds=3, losses=losses), agent_devices=(2, 2))
    assert done.figures("mash") == {0: [3, 3, 3], 1: [3, 3], 2: [3, 3, 3], 3: [3, 3, 3]}
    rows = {(detail.round_no, row.seat): row.down_bytes for detail in done.rounds for row in detail.seats}
    assert rows[3, 1] - rows[3, 0] > 3 * ENTRY_BYTES
    assert abs(rows[4, 1] - rows[4, 0]) < 20


@pytest.mark.whole
async def test_edge_rounds_mix_too() -> None:
    done = await ran(spec_of(0.1, edge_rounds=2), agent_devices=(2, 2))
    assert done.figures("mash") == {seat: [4] * 4 for seat in range(4)}
    assert done.state.edges == (0, 1)


@pytest.mark.slow
async def test_the_global_model_forgets_less_where_few_clients_of_two_classes_take_part() -> None:
    """The paper's claim: better on very heterogeneous clients; two of ten a round, so that each lacks most classes."""
    fields: dict[str, Any] = {
        "data": {"name": "digits", "n_train": 400, "n_test": 200},
        "num_devices": 10,
        "num_edges": 1,
        "num_rounds": 8,
        "local_epochs": 10,
        "batch_size": 20,
        "select": "random",
        "fraction_train": 0.2,
    }
    losses = []
    for lam in (0.05, 0.0):
        done = await ran(spec_of(lam, **fields), agent_devices=(10,), n_edges=1)
        tested = [detail.evaluation["global"] for detail in done.rounds if detail.evaluation]
        losses.append(np.mean([score.loss for score in tested[-4:] if score.loss is not None]))
    fedmix, fedavg = losses
    assert fedmix < 0.95 * fedavg
