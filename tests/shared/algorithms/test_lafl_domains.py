"""LAFL-CPN on clients of different domains: their statistics, their test sets, missing data sets."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.algorithms.lafl_cpn import ALGORITHM, Down, Own, _measured
from shared.core.tensor_records import TensorMap
from shared.federation.messages import Task
from shared.federation.visits.trainer import trainer_for
from shared.spec.experiment import ExperimentSpec
from shared.training import models
from shared.training.data import sources
from shared.training.data.augmentation import as_pixels
from shared.training.data.channel_statistics import Statistics, normaliser
from shared.training.evaluation import evaluate
from tests.domains import write_domains
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import experiment_of, federation, ran, resolved, run
from tests.shared.algorithms.test_lafl_cpn import ROOMS, spec_of

MNIST_M = {"name": "digit_domains", "domains": ["mnist_m"], "size": 8}


# ---- statistics


@pytest.mark.parametrize(
    ("stats", "when", "versions"), [("augmented", "load", 1), ("augmented", "expand", 2), ("raw", "expand", 1)]
)
def test_images_of_the_statistics_pass_get_mean_0_and_deviation_1_by_it(
    stats: str, when: str, versions: int, tmp_path: Path
) -> None:
    spec = spec_of({"stats": stats}, augment={"when": when}, data=MNIST_M, num_edges=1)
    experiment = experiment_of(
        ExperimentSpec.model_validate(spec).resolved(n_devices=3, n_edges=1), write_domains(tmp_path / "sets")
    )
    seat, ctx = experiment.seat(0), experiment.ctx(phase="train", round_no=1, n_clients=3, edge=0).at(seat=0)
    trainer = trainer_for(experiment, Task(batch_size=16), seat.train, seat.test)
    found = _measured(ctx, trainer)
    drawn = [x for x, _ in trainer.batches(ctx, purpose="statistics", epochs=1, augment=stats == "augmented")]
    pixels = torch.cat([as_pixels(x) for x in drawn]).numpy()
    assert found.n == len(seat.train) * 64 * versions
    assert found.mean == pytest.approx((pixels / 255).mean(axis=(0, 2, 3)), rel=1e-12)
    assert (pixels.sum() == experiment.data.train_x[seat.train].sum()) == (stats == "raw")
    transform = normaliser(found)
    assert transform is not None
    z = torch.cat([transform(x) for x in drawn]).double()
    assert z.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (z.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5


async def test_statistics_are_sent_once_and_are_those_of_the_clients_images() -> None:
    done = await ran(spec_of({"p": 0, "stats": "raw"}), agent_devices=ROOMS)
    x = done.experiment.data.train_x.astype(np.float64) / 255
    assert sorted(done.state.known) == ["device-0", "device-1", "device-2"]
    for seat in done.experiment.population.seats:
        found = done.state.known[f"device-{seat.number}"]
        assert found.mean[0] == pytest.approx(x[seat.train].mean(), rel=1e-12)
        assert found.std[0] == pytest.approx(x[seat.train].std(), rel=1e-12)
    up: dict[int, list[int]] = {row.seat: [] for row in done.rounds[0].seats}
    for detail in done.rounds:
        for row in detail.seats:
            up[row.seat].append(row.up_bytes)
    assert all(first > second for first, second, _ in up.values())


@pytest.mark.whole
async def test_a_client_that_was_absent_counts_its_own_rounds_and_sends_its_statistics_later() -> None:
    losses = [{"round_no": 1, "seats": [1]}]
    done = await ran(spec_of({"p": 1}, losses=losses, edge_rounds=2, num_rounds=2), agent_devices=ROOMS)
    assert done.figures("visit") == {0: [1, 2, 3, 4], 1: [1, 2], 2: [1, 2, 3, 4]}
    assert [passes > 1 for passes in done.figures("passes")[1]] == [False, True]
    assert len(done.state.known) == 3


def normalised(x: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
    """Returns images normalised by mean and deviation of each channel, in float64."""
    shift, scale = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))
    return ((x * 0.5 + 0.5 - shift) / scale).float()


@pytest.mark.matrix
@pytest.mark.parametrize("test_stats", ["owner", "own"])
async def test_tests_of_others_are_prepared_by_their_owners_statistics_or_the_testers(
    test_stats: str, tmp_path: Path
) -> None:
    """Final scores are computed by hand: the global model on the union, on the unseen domain, and at each client."""
    data_dir = write_domains(tmp_path / "sets", ("mnist", "mnist_m", "usps"))
    spec = spec_of({"p": 0, "stats": "raw", "test_stats": test_stats}, **by_domain(["mnist", "mnist_m", "usps"], 2))
    done = await run(tmp_path, spec, agent_devices=(2,), n_edges=1, common={"data_dir": data_dir})
    experiment, data = done.experiment, done.experiment.data
    shares = data.train_x.astype(np.float64) / 255
    of = {seat.number: shares[seat.train] for seat in experiment.population.seats}
    every = np.concatenate(list(of.values()))
    unseen = np.asarray(data.test_domain) == 2

    def hits(model: TensorMap, owners: list[tuple[Any, Any]]) -> float:
        """Returns the accuracy on parts, each with the images that give its mean and deviation."""
        right = total = 0
        models.write_state(experiment.model, model)
        for indices, images in owners:
            transform = partial(normalised, mean=images.mean(axis=(0, 1, 2)), std=images.std(axis=(0, 1, 2)))
            found = evaluate(experiment.model, data.test_x, data.test_y, indices, transform=transform)
            right, total = right + found.n_correct, total + found.n
        return right / total

    parts = [
        (seat.test.indices, of[seat.number] if test_stats == "owner" else every) for seat in experiment.population.seats
    ]
    final = done.info.final
    assert final["global_on_union"].accuracy == pytest.approx(hits(done.model, parts))
    assert final["global"].accuracy == final["global_on_union"].accuracy
    assert final["global_on_unseen"].accuracy == pytest.approx(hits(done.model, [(np.flatnonzero(unseen), every)]))
    received = [hits(done.model, [(seat.test.indices, of[seat.number])]) for seat in experiment.population.seats]
    assert final["clients_received"].accuracy == pytest.approx(sum(received) / 2)


A, B, C, D = (Statistics(n=100, sums=(2000 * k,), squares=(50_000 * k * k,)) for k in (1, 2, 3, 4))
"""Means of 20 to 80 grey levels, deviations of 10 to 40."""


@pytest.mark.parametrize(
    ("test_stats", "owner", "expected"),
    [
        ("owner", "device-1", B),
        ("owner", "device-2", D),
        ("owner", "device-0", C),
        ("owner", None, C),
        ("own", "device-1", C),
        ("own", "device-2", C),
        ("own", "device-0", C),
        ("own", None, C),
    ],
)
def test_images_of_each_owner_are_prepared_by_these_statistics(
    test_stats: str, owner: str | None, expected: Statistics
) -> None:
    """Device 0 has statistics A in its state; those broadcast for it are C."""
    known = {"device-1": B, "device-0": C, "device-2": D}
    found = prepared(test_stats, Own(statistics=A), known, owner)
    assert found == by(expected)
    assert len({by(each) for each in (A, B, C, D)}) == 4


@pytest.mark.parametrize(("test_stats", "others"), [("owner", B), ("own", None)])
def test_a_device_uses_its_own_statistics_for_unknown_owners_or_else_the_pools(
    test_stats: str, others: Statistics | None
) -> None:
    known = {"device-1": B, "device-2": D}
    of_others = others or A
    for owner, expected in (("device-0", A), (None, A), ("device-1", of_others), ("device-9", A)):
        assert prepared(test_stats, Own(statistics=A), known, owner) == by(expected)
    pool = B + D
    for owner, expected in (("device-0", pool), (None, pool), ("device-1", others or pool)):  # before it trains
        assert prepared(test_stats, Own(), known, owner) == by(expected)
    assert prepared(test_stats, Own(), {}, "device-0") is None


def prepared(test_stats: str, state: Own, known: dict[str, Statistics], owner: str | None) -> Any:
    """Returns device 0's normalisation of an image of one black and one white pixel; None if it has none."""
    experiment = resolved(**spec_of({"test_stats": test_stats}))
    ctx = experiment.ctx(phase="train", round_no=2, n_clients=3, edge=0).at(seat=0)
    transform = ALGORITHM.device.prepare(ctx, state, Down(model=experiment.initial, known=known), owner)
    return None if transform is None else values(transform(torch.tensor([[[[-1.0, 1.0]]]])))


def by(found: Statistics) -> tuple[float, ...]:
    """Returns the two pixels normalised by mean and deviation, in plain numbers."""
    mean = found.sums[0] / found.n
    std = (found.squares[0] / found.n - mean**2) ** 0.5
    return values(torch.tensor([(0 - mean) / std, (255 - mean) / std]))


def values(x: torch.Tensor) -> tuple[float, ...]:
    return tuple(round(value, 3) for value in x.flatten().tolist())


def test_a_device_that_lost_its_state_uses_the_statistics_known_to_the_cloud() -> None:
    """A new measurement would use another draw, so the client's statistics would differ from those its peers have."""
    experiment = resolved(**spec_of({}, augment="randaugment"))
    seat = experiment.seat(0)
    trainer = trainer_for(experiment, Task(batch_size=16), seat.train, seat.test)

    def visit(round_no: int, state: Own, known: dict[str, Statistics]) -> Any:
        ctx = experiment.ctx(phase="train", round_no=round_no, n_clients=3, edge=0).at(seat=0)
        return ALGORITHM.device.local_update(ctx, state, Down(model=experiment.initial, known=known), trainer)

    first = visit(1, Own(), {})
    assert first.update.reported == {"device-0": first.state.statistics}
    again = visit(2, Own(), first.update.reported)
    assert again.state.statistics == first.state.statistics
    assert again.update.reported == {}
    unknown = visit(2, Own(), {})
    assert unknown.state.statistics != first.state.statistics
    assert flat.distance(again.model, unknown.model) > 0


# ---- domains


def by_domain(domains: list[str], n_clients: int, **more: Any) -> dict[str, Any]:
    """Returns a spec with one client for each of the first domains; the others are unseen."""
    return {
        "data": {"name": "digit_domains", "domains": domains, "size": 8},
        "partition": {"name": "by_domain", "domains": domains[:n_clients]},
        "num_devices": n_clients,
        "num_edges": 1,
        "test_on": ["union", *(["unseen"] if n_clients < len(domains) else [])],
        **more,
    }


@pytest.mark.slow
async def test_clients_of_visually_different_domains_do_better_than_with_fedavg(tmp_path: Path) -> None:
    """The paper's claim with five clients and few rounds: global and own models on all clients' tests."""
    data_dir = write_domains(tmp_path / "sets")
    five = by_domain(["mnist", "mnist_m", "svhn", "synth_digits", "usps"], 5, num_rounds=6, lr=0.05, local_epochs=2)
    found = {}
    for name, params in (("lafl_cpn", {"p": 1}), ("fedavg", None)):
        done = await run(
            tmp_path, spec_of(params, **five), n_edges=1, agent_devices=(5,), common={"data_dir": data_dir}
        )
        own = [row.own_on["union"] for row in done.rounds[-1].seats]
        assert len(own) == 5
        found[name] = done.info.final["global_on_union"].accuracy or 0, sum(own) / 5
    assert found["lafl_cpn"][0] > found["fedavg"][0] + 0.1
    assert found["lafl_cpn"][1] > found["fedavg"][1] + 0.1


async def test_a_run_whose_data_lack_a_domain_fails_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> Any:
        raise OSError("no network")

    monkeypatch.setitem(sources.DATASETS, "svhn", sources.DatasetSource(10, fail))
    data_dir = write_domains(tmp_path / "sets", ("mnist", "usps"))
    spec = spec_of({"p": 1}, **by_domain(["mnist", "svhn", "usps"], 3, num_rounds=1))
    async with federation(tmp_path, n_edges=1, agent_devices=(3,), common={"data_dir": data_dir}) as fed:
        info = await fed.run(spec)
    assert info.status == "failed"
    assert "svhn could not be loaded (no network)" in (info.reason or "")
    assert "data.domains=[mnist, usps]" in (info.reason or "")
