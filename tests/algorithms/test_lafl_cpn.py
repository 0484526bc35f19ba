"""LAFL-CPN: channel statistics, a learned mix of the top layers, augmentation, each by itself and together."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from shared.algorithms.lafl_cpn import Mixing, Own, Params, _aggregated, converged
from shared.messages import Work
from shared.records import TensorMap
from shared.training import models
from shared.training.loop import evaluate
from tests.algorithms import flat
from tests.algorithms.plain_lafl import Plain
from tests.algorithms.ways import ended, federation, resolved, run
from tests.domains import write_domains

ROOMS = (2, 1)
FEDAVG = {"p": 0, "normalise": "fixed"}


def spec_of(params: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Three clients of handwritten digits; without parameters FedAvg's."""
    lafl = {"name": "lafl_cpn", "params": params}
    spec = {
        "algorithm": {"name": "fedavg"} if params is None else lafl,
        "data": {"name": "digits", "n_train": 240, "n_test": 60},
        "num_devices": 3,
        "num_edges": 2,
        "num_rounds": 3,
        "batch_size": 16,
        "lr": 0.1,
    }
    return {**spec, **more}


# ---- the oracle


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        ({"p": 1, "eta": 10, "stats": "raw"}, {"p": 1, "eta": 10}),
        (
            {"p": 9, "normalise": "fixed", "clamp": False, "s": 50},
            {"p": 2, "own_statistics": False, "clamp": False, "s": 50},
        ),
    ],
)
async def test_a_run_is_that_of_the_plain_version(params: Any, plain: Any, tmp_path: Path) -> None:
    done = await run(tmp_path, spec_of(params), rooms=ROOMS)
    expected = Plain(done.lab, **plain)
    assert flat.distance(done.model, expected.run(3)) < 2e-5
    for seat, client in expected.clients.items():
        assert done.figures("visit")[seat] == [1, 2, 3]
        assert done.figures("passes")[seat] == [0, *client.passes]
        assert client.passes[0] >= 10
        mean = sum(float(w.sum()) for w in client.weights.values()) / sum(w.numel() for w in client.weights.values())
        assert done.figures("weights_mean")[seat][-1] == pytest.approx(mean, abs=1e-5)
        assert abs(mean - 1) > 2e-5


def test_gradient_of_w_is_autograds_through_the_mix() -> None:
    """Equation 8's gradient by the chain rule, on a network of two layers, in float64."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
    names = [name for name, _ in net.named_parameters()]

    def draw() -> TensorMap:
        return {n: torch.randn(p.shape, generator=generator, dtype=torch.float64) for n, p in net.named_parameters()}

    own, received, weights = draw(), draw(), {n: torch.rand_like(t) for n, t in draw().items()}
    x = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (7,), generator=generator)
    mixing = Mixing(own, received, dict(weights), eta=0.5, clamp=False)
    parameters = [tensor.clone().requires_grad_(True) for tensor in mixing.mixed().values()]
    loss = functional.cross_entropy(functional_call(net, dict(zip(names, parameters, strict=True)), (x,)), y)
    gradients = list(torch.autograd.grad(loss, parameters))
    with torch.no_grad():
        mixing.learn(parameters, gradients)

    free = {name: tensor.clone().requires_grad_(True) for name, tensor in weights.items()}
    init = {name: own[name] + (received[name] - own[name]) * free[name] for name in names}
    slopes = torch.autograd.grad(functional.cross_entropy(functional_call(net, init, (x,)), y), list(free.values()))
    for name, slope, parameter in zip(names, slopes, parameters, strict=True):
        assert torch.allclose(mixing.weights[name], weights[name] - 0.5 * slope, atol=1e-12)
        assert torch.equal(parameter, own[name] + (received[name] - own[name]) * mixing.weights[name])
    assert all(slope.abs().max() > 1e-3 for slope in slopes)


@pytest.mark.parametrize("clamp", [True, False])
def test_w_stays_between_the_two_models_only_if_it_is_clamped(clamp: bool) -> None:
    own, received = {"w": torch.zeros(4)}, {"w": torch.ones(4)}
    mixing = Mixing(own, received, {"w": torch.ones(4)}, eta=1.0, clamp=clamp)
    parameters = [torch.ones(4)]
    mixing.learn(parameters, [torch.tensor([-3.0, 0.0, 0.25, 3.0])])
    expected = [1.0, 1.0, 0.75, 0.0] if clamp else [4.0, 1.0, 0.75, -2.0]
    assert mixing.weights["w"].tolist() == expected
    assert parameters[0].tolist() == expected


def test_w_rests_when_ten_losses_hardly_differ() -> None:
    assert not converged([1.0] * 9)
    assert converged([1.0] * 10)
    assert converged([9.0, *[1.0] * 10])
    assert not converged([1.0, 2.0] * 5)


@pytest.mark.parametrize(("p", "mixed"), [(1, {"head.weight", "head.bias"}), (2, None), (7, None), (0, set())])
def test_top_layers_are_mixed_and_all_else_is_the_global_model(p: int, mixed: set[str] | None, tmp_path: Path) -> None:
    spec = spec_of({"p": p, "normalise": "fixed"}, model="conv_bn")
    lab = resolved(tmp_path, **spec)
    seat = lab.seat(0)
    ctx = lab.ctx(phase="train", round_no=2, n_clients=3, edge=0).at(seat=0)
    other = models.read_state(models.build("conv_bn", lab.data.input_shape, 10, seed=99))
    received = {name: tensor + 1 if "running" in name else tensor for name, tensor in lab.initial.items()}
    bench = lab.bench(Work(batch_size=16), seat.train, seat.test)
    start, weights, figures = _aggregated(ctx, Own(previous=other, participations=1), received, bench, None)
    parameters = {name for name in received if name not in lab.buffer_names}
    expected = parameters if mixed is None else mixed
    assert weights.keys() == expected
    assert {name for name in start if not torch.equal(start[name], received[name])} <= expected
    assert all(torch.equal(start[name], received[name]) for name in received.keys() - expected)
    for name in expected:
        low, high = torch.minimum(other[name], received[name]), torch.maximum(other[name], received[name])
        assert ((start[name] >= low - 1e-6) & (start[name] <= high + 1e-6)).all()
    if expected:
        n = round(0.8 * len(seat.train))
        assert figures["weights_n_samples"] == figures["passes"] * n
        assert 10 <= figures["passes"] <= 50
        assert flat.distance({"w": start["head.weight"]}, {"w": received["head.weight"]}) > 1e-3


# ---- the reduction


@pytest.mark.parametrize("edge_rounds", [1, 2])
async def test_without_mix_and_statistics_it_is_fedavg_bit_for_bit(edge_rounds: int, tmp_path: Path) -> None:
    more = {"edge_rounds": edge_rounds, "model": "conv_bn", "num_rounds": 2}
    lafl, fedavg, other = [
        await run(tmp_path, spec_of(params, **more), rooms=ROOMS) for params in (FEDAVG, None, {"p": 1})
    ]
    assert lafl.info.model_sha256 == fedavg.info.model_sha256
    assert other.info.model_sha256 != fedavg.info.model_sha256
    for mine, theirs in zip(lafl.rounds, fedavg.rounds, strict=True):
        assert mine.evaluation is not None
        assert theirs.evaluation is not None
        assert mine.evaluation["global"].accuracy == theirs.evaluation["global"].accuracy


async def test_w_that_stays_at_one_is_fedavg_but_for_rounding(tmp_path: Path) -> None:
    lafl = await run(tmp_path, spec_of({"p": 9, "eta": 0, "normalise": "fixed"}), rooms=ROOMS)
    fedavg = await run(tmp_path, spec_of(None), rooms=ROOMS)
    assert flat.distance(lafl.model, fedavg.model) < 1e-6


async def test_augmentation_mix_and_statistics_switch_independently(tmp_path: Path) -> None:
    digests = {}
    for augment, p, normalise in product((None, "randaugment"), (0, 1), ("fixed", "own")):
        spec = spec_of({"p": p, "normalise": normalise}, augment=augment, num_rounds=2, num_edges=1)
        spec = {key: value for key, value in spec.items() if value is not None}
        done = await run(tmp_path, spec, n_edges=1, rooms=(3,))
        digests[augment, p, normalise] = done.info.model_sha256
        assert done.figures("passes")[0][0] == 0
        assert (done.figures("passes")[0][1] > 0) == (p > 0)
        assert (len(done.state.known) == 3) == (normalise == "own")
    assert len(set(digests.values())) == 8


# ---- statistics


async def test_statistics_travel_once_and_are_those_of_the_clients_images(tmp_path: Path) -> None:
    done = await run(tmp_path, spec_of({"p": 0, "stats": "raw"}), rooms=ROOMS)
    x = done.lab.data.train_x.astype(np.float64) / 255
    assert sorted(done.state.known) == ["device-0", "device-1", "device-2"]
    for seat in done.lab.members.seats:
        found = done.state.known[f"device-{seat.number}"]
        assert found.mean[0] == pytest.approx(x[seat.train].mean(), rel=1e-12)
        assert found.std[0] == pytest.approx(x[seat.train].std(), rel=1e-12)
    up: dict[int, list[int]] = {row.seat: [] for row in done.rounds[0].seats}
    for detail in done.rounds:
        for row in detail.seats:
            up[row.seat].append(row.up_bytes)
    assert all(first > second for first, second, _ in up.values())


async def test_a_client_that_was_away_counts_its_own_rounds_and_tells_its_statistics_later(tmp_path: Path) -> None:
    losses = [{"round_no": 1, "seats": [1]}]
    done = await run(tmp_path, spec_of({"p": 1}, losses=losses, edge_rounds=2, num_rounds=2), rooms=ROOMS)
    assert done.figures("visit") == {0: [1, 2, 3, 4], 1: [1, 2], 2: [1, 2, 3, 4]}
    assert [passes > 1 for passes in done.figures("passes")[1]] == [False, True]
    assert len(done.state.known) == 3


def normalised(x: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
    """Images as they come by mean and deviation of each channel, in float64."""
    shift, scale = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))
    return ((x * 0.5 + 0.5 - shift) / scale).float()


@pytest.mark.parametrize("test_stats", ["owner", "own"])
async def test_tests_of_others_are_prepared_by_their_owners_statistics_or_the_testers(
    test_stats: str, tmp_path: Path
) -> None:
    """The final figures by hand: the global model on the union, on the unseen domain, and at each client."""
    data_dir = write_domains(tmp_path / "sets", ("mnist", "mnist_m", "usps"))
    spec = spec_of({"p": 0, "stats": "raw", "test_stats": test_stats}, **by_domain(["mnist", "mnist_m", "usps"], 2))
    done = await run(tmp_path, spec, rooms=(2,), n_edges=1, common={"data_dir": data_dir})
    lab, data = done.lab, done.lab.data
    shares = data.train_x.astype(np.float64) / 255
    of = {seat.number: shares[seat.train] for seat in lab.members.seats}
    every = np.concatenate(list(of.values()))
    unseen = np.asarray(data.test_domain) == 2

    def hits(model: TensorMap, owners: list[tuple[Any, Any]]) -> float:
        """Accuracy on parts, each with the images from which mean and deviation come."""
        right = total = 0
        models.write_state(lab.model, model)
        for indices, images in owners:
            transform = partial(normalised, mean=images.mean(axis=(0, 1, 2)), std=images.std(axis=(0, 1, 2)))
            found = evaluate(lab.model, data.test_x, data.test_y, indices, transform=transform)
            right, total = right + found.n_correct, total + found.n
        return right / total

    parts = [(seat.test.indices, of[seat.number] if test_stats == "owner" else every) for seat in lab.members.seats]
    final = done.info.final
    assert final["global_on_union"].accuracy == pytest.approx(hits(done.model, parts))
    assert final["global"].accuracy == final["global_on_union"].accuracy
    assert final["global_on_unseen"].accuracy == pytest.approx(hits(done.model, [(np.flatnonzero(unseen), every)]))
    received = [hits(done.model, [(seat.test.indices, of[seat.number])]) for seat in lab.members.seats]
    assert final["clients_received"].accuracy == pytest.approx(sum(received) / 2)


# ---- domains


def by_domain(domains: list[str], n_clients: int, **more: Any) -> dict[str, Any]:
    """A client for each of the first domains; the others are unseen."""
    return {
        "data": {"name": "digit_domains", "domains": domains, "size": 8},
        "partition": {"name": "by_domain", "domains": domains[:n_clients]},
        "num_devices": n_clients,
        "num_edges": 1,
        "test_on": ["union", *(["unseen"] if n_clients < len(domains) else [])],
        **more,
    }


async def test_clients_of_domains_that_look_different_do_better_than_with_fedavg(tmp_path: Path) -> None:
    """The claim of the paper, five clients, few rounds: global and own models on all clients' tests."""
    data_dir = write_domains(tmp_path / "sets")
    five = by_domain(["mnist", "mnist_m", "svhn", "synth_digits", "usps"], 5, num_rounds=6, lr=0.05, local_epochs=2)
    found = {}
    for name, params in (("lafl_cpn", {"p": 1}), ("fedavg", None)):
        done = await run(tmp_path, spec_of(params, **five), n_edges=1, rooms=(5,), common={"data_dir": data_dir})
        own = [row.own_on["union"] for row in done.rounds[-1].seats]
        assert len(own) == 5
        found[name] = done.info.final["global_on_union"].accuracy or 0, sum(own) / 5
    assert found["lafl_cpn"][0] > found["fedavg"][0] + 0.1
    assert found["lafl_cpn"][1] > found["fedavg"][1] + 0.1


async def test_a_run_goes_on_without_a_domain_that_cannot_be_had_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shared.training import sources

    def fail(_: Path) -> Any:
        raise OSError("no network")

    monkeypatch.setitem(sources.DATASETS, "svhn", sources.Known(10, fail))
    data_dir = write_domains(tmp_path / "sets", ("mnist", "usps"))
    spec = spec_of({"p": 1}, **by_domain(["mnist", "svhn", "usps"], 3, num_rounds=1))
    done = await run(tmp_path, spec, n_edges=1, rooms=(3,), common={"data_dir": data_dir})
    assert len(done.info.notes) == 1
    assert done.info.notes[0].startswith("without svhn: svhn could not be had (no network)")
    assert (done.info.spec.num_devices, done.info.spec.data.domains) == (2, ("mnist", "usps"))
    assert [row.seat for row in done.rounds[0].seats] == [0, 1]


# ---- what a device remembers


async def test_w_model_visits_and_statistics_outlive_the_devices_process(tmp_path: Path) -> None:
    params, augment = {"p": 1}, "randaugment"
    whole = await run(tmp_path, spec_of(params, augment=augment), rooms=ROOMS)
    async with federation(tmp_path, rooms=ROOMS) as fed:
        run_id = await fed.submit(spec_of(params, augment=augment, num_rounds=2))
        await ended(fed, run_id, tmp_path)
        await fed.stop("agent-0")
        await fed.start_agent(0)
        await fed.until(lambda: fed.n_agents() == 2)
        assert (await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 1})).status_code == 200
        done = await ended(fed, run_id, tmp_path)
    assert done.info.model_sha256 == whole.info.model_sha256
    assert done.figures("visit") == whole.figures("visit")
    assert done.figures("weights_mean") == whole.figures("weights_mean")
    assert not any(row.fresh_state for detail in done.rounds for row in detail.seats)


def test_parameters_default_to_the_papers() -> None:
    assert (Params().p, Params().eta, Params().s) == (5, 1.0, 80.0)
