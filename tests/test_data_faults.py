"""`data.faults` through three real tiers: the training samples of some devices are wrong, and no others."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.core.errors import BadInput
from shared.federation.experiment import Experiment
from shared.federation.messages import Task
from shared.federation.spec_parser import parse_spec
from shared.federation.test_sets import Samples
from shared.federation.visits.trainer import LocalTrainer, trainer_for
from shared.results.reader import read_seats
from tests.federation import small_spec
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import ended, federation, ran, resolved

BOTH = {"share_of_devices": 0.5, "labels": "random", "images": "noise"}
SAMPLED = {"name": "sampled", "samples": 20, "alpha": 0.5}


def faulty_spec(faults: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Returns a spec of six devices, of which three have faults."""
    data = {"name": "digits", "n_train": 240, "n_test": 60, "faults": BOTH if faults is None else faults}
    return small_spec(**{"data": data, "num_devices": 6, "num_rounds": 2, **more})


def draw(key: str) -> int:
    """Returns the documented draw of a key: 63 bits of its sha256."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def ranked(seed: int, seats: list[int]) -> list[int]:
    return sorted(seats, key=lambda seat: draw(f"{seed}|population|seat {seat}|faulty"))


def plain_data(experiment: Experiment, seats: list[int]) -> Any:
    """Returns the data set in which the samples of these seats have random labels and noise, written anew."""
    data, seed = experiment.data, experiment.spec.seed
    x, y = np.array(data.train_x), np.array(data.train_y)
    for seat in seats:
        own = experiment.population.seats[seat].train
        rng = np.random.default_rng(draw(f"{seed}|population|seat {seat}|image faults"))
        x[own] = np.rint((data.train_x[own] + rng.normal(0, 64, (len(own), 8, 8))).clip(0, 255))
        y[own] = np.random.default_rng(draw(f"{seed}|population|seat {seat}|label faults")).integers(10, size=len(own))
    return replace(data, train_x=x, train_y=y)


def trainer_of(experiment: Experiment, number: int | None) -> LocalTrainer:
    seat = experiment.seat(number or 0)
    return trainer_for(experiment, Task(epochs=1, batch_size=8), seat.train, seat.test, seat=number)


def arrays(experiment: Experiment, number: int | None) -> tuple[Any, Any]:
    return trainer_of(experiment, number).arrays("train")


def faulty_of(experiment: Experiment) -> list[int]:
    assert experiment.faults is not None
    return [seat.number for seat in experiment.population.seats if seat.number in experiment.faults]


def faulty_of_folder(root: Path) -> list[int]:
    """Returns the seats that have faults by the one results folder below `root`."""
    (folder,) = [path.parent for path in root.rglob("seats.ndjson")]
    return [seat.seat for seat in read_seats(folder) if seat.faulty]


# ---- through the tiers


@pytest.mark.whole
async def test_a_run_is_that_of_a_data_set_with_these_faults_whichever_agents_train() -> None:
    one = await ran(faulty_spec(), agent_devices=(6,))
    many = await ran(faulty_spec(), agent_devices=(1,) * 7, order=(6, 2, 0, 5, 1, 3, 4))
    assert one.info.model_sha256 == many.info.model_sha256
    assert one.links() == many.links()
    plain = resolved(**faulty_spec())
    seats = ranked(plain.spec.seed, list(range(6)))[:3]
    plain.data = plain_data(plain, seats)
    assert flat.same_bits(one.model, flat.fedavg(plain, 2))
    clean = await ran(faulty_spec(data={"name": "digits", "n_train": 240, "n_test": 60}), agent_devices=(6,))
    assert clean.info.model_sha256 != one.info.model_sha256


async def test_the_record_says_which_seats_have_faults(tmp_path: Path) -> None:
    async with federation(tmp_path, agent_devices=(6,)) as fed:
        run_id = await fed.submit(faulty_spec(num_rounds=1))
        done = await ended(fed, run_id)
        seats = (await fed.seats(run_id)).seats
        await fed.stop("cloud")
    expected = faulty_of(done.experiment)
    assert len(expected) == 3
    assert [seat.seat for seat in seats if seat.faulty] == expected
    assert faulty_of_folder(tmp_path) == expected
    assert done.info.spec.data.faults is not None


@pytest.mark.whole
async def test_devices_trained_at_once_have_their_faults() -> None:
    faulty, clean = faulty_spec(), faulty_spec(data={"name": "digits", "n_train": 240, "n_test": 60})
    exact = await ran(faulty, agent_devices=(6,))
    stacked = await ran({**faulty, "vectorised": {"width": 4}}, agent_devices=(2, 4))
    assert flat.distance(stacked.model, exact.model) < 1e-5
    assert flat.distance((await ran(clean, agent_devices=(6,))).model, exact.model) > 1e-3


@pytest.mark.whole
async def test_samples_that_a_schedule_moves_keep_the_faults_of_their_device() -> None:
    spec = faulty_spec(schedule="equal", client="edge", algorithm="fedper", num_rounds=1)
    one = await ran(spec, agent_devices=(6,))
    other = await ran(spec, agent_devices=(2, 4))
    assert one.info.model_sha256 == other.info.model_sha256
    with_all = [arrays(one.experiment, seat) for seat in (None, 0, 5)]
    assert all(x is with_all[0][0] and y is with_all[0][1] for x, y in with_all)
    plain = plain_data(one.experiment, faulty_of(one.experiment))
    assert np.array_equal(with_all[0][1], plain.train_y)


# ---- which samples change


@pytest.mark.parametrize(
    ("share", "more", "n"), [(0.3, {}, 3), (0.04, {}, 0), (1, {}, 10), (0.5, {"held_out_fraction": 0.2}, 4)]
)
def test_exactly_the_share_of_the_devices_that_train_have_faults(share: float, more: dict[str, Any], n: int) -> None:
    spec = faulty_spec({"share_of_devices": share, "labels": "flipped"}, num_devices=10, **more)
    if n == 0:
        with pytest.raises(BadInput, match=r"0\.04 of 10 devices that train is none") as refused:
            resolved(**spec)
        assert refused.value.field == "data.faults.share_of_devices"
        return
    experiment = resolved(**spec)
    assert len(faulty_of(experiment)) == n
    assert not any(seat in experiment.population.held_out for seat in faulty_of(experiment))
    less = resolved(**faulty_spec({"share_of_devices": share / 1.5, "labels": "shifted"}, num_devices=10, **more))
    assert set(faulty_of(less)) < set(faulty_of(experiment))  # a larger share adds devices


@pytest.mark.parametrize("partition", ["iid", SAMPLED], ids=["dealt", "sampled"])
@pytest.mark.parametrize("test_fraction", [None, 0.25])
def test_no_test_sample_and_no_sample_of_other_devices_changes(partition: Any, test_fraction: float | None) -> None:
    experiment = resolved(**faulty_spec(partition=partition, test_fraction=test_fraction, num_devices=12))
    faulty, data = faulty_of(experiment), experiment.data
    assert 0 < len(faulty) < 12
    for seat in experiment.population.seats:
        trainer = trainer_of(experiment, seat.number)
        x, y = trainer.arrays("train")
        assert np.array_equal(y[seat.train], data.train_y[seat.train]) == (seat.number not in faulty)
        assert np.array_equal(x[seat.train], data.train_x[seat.train]) == (seat.number not in faulty)
        tested, targets = trainer.arrays(seat.test.part)
        clean_x, clean_y = (data.train_x, data.train_y) if seat.test.part == "train" else (data.test_x, data.test_y)
        assert np.array_equal(tested[seat.test.indices], clean_x[seat.test.indices])
        assert np.array_equal(targets[seat.test.indices], clean_y[seat.test.indices])
    for part in ([experiment.population.test], [edge.test for edge in experiment.population.edges]):
        for samples in part:
            tested, targets = trainer_of(experiment, None).arrays(samples.part)
            clean_y = data.train_y if samples.part == "train" else data.test_y
            assert np.array_equal(targets[samples.indices], clean_y[samples.indices])


def test_a_device_keeps_its_faults_while_its_samples_arrive_and_in_each_visit() -> None:
    experiment = resolved(**faulty_spec(partition=SAMPLED, arrival_rate=0.5))
    number = faulty_of(experiment)[0]
    early, all_of_it = experiment.seat_in(number, 1).train, experiment.seat_in(number, 9).train
    assert len(early) == 10
    assert set(early) < set(all_of_it)
    assert np.array_equal(arrays(experiment, number)[1], arrays(experiment, number)[1])
    assert np.array_equal(arrays(experiment, number)[0][early], arrays(experiment, number)[0][early])


def test_very_many_devices_draw_their_faults_one_by_one() -> None:
    faults = {"share_of_devices": 0.3, "labels": "random"}
    experiment = resolved(**faulty_spec(faults, partition=SAMPLED, num_devices=1_000_000, num_edges=2))
    assert experiment.faults is not None
    found = [seat for seat in range(2000) if seat in experiment.faults]
    assert found == [s for s in range(2000) if draw(f"{experiment.spec.seed}|population|seat {s}|faulty") < 0.3 * 2**63]
    assert abs(len(found) - 600) < 4 * np.sqrt(2000 * 0.3 * 0.7)


def test_faults_come_before_augmentation() -> None:
    once = {"name": "randaugment", "when": "once", "magnitude": 0, "n_ops": 1}
    experiment = resolved(**faulty_spec(augment=once))
    number, ctx = faulty_of(experiment)[0], experiment.ctx(phase="train", round_no=1, n_clients=6)
    trainer = trainer_of(experiment, number)
    own = Samples("train", experiment.seat(number).train)
    x, y, at = trainer.source(ctx.at(seat=number), own)
    held_x, held_y = (array[own.indices] for array in trainer.arrays("train"))
    assert np.array_equal(y[at], held_y)
    experiment.faults = None
    clean_x, _, _ = trainer_of(experiment, number).source(ctx.at(seat=number), own)
    assert not np.array_equal(x, clean_x)
    assert np.abs(x.astype(int) - held_x).mean() < np.abs(clean_x.astype(int) - held_x).mean()


def test_label_faults_leave_the_images_where_they_are() -> None:
    experiment = resolved(**faulty_spec({"share_of_devices": 0.5, "labels": "shifted"}))
    number = faulty_of(experiment)[0]
    x, y = arrays(experiment, number)
    own = experiment.seat(number).train
    assert x is experiment.data.train_x
    assert torch.equal(torch.from_numpy(y[own]), torch.from_numpy((experiment.data.train_y[own] + 1) % 10))


# ---- refusals


@pytest.mark.parametrize(
    ("faults", "field", "why"),
    [
        ({"share_of_devices": 0, "labels": "random"}, "data.faults.share_of_devices", "greater than 0"),
        ({"share_of_devices": 1.5, "labels": "random"}, "data.faults.share_of_devices", "at most 1"),
        ({"share_of_devices": 0.3}, "data.faults", "labels, images or both are needed"),
        ({"labels": "random"}, "data.faults.share_of_devices", "missing|required"),
        ({"share_of_devices": 0.3, "labels": "wrong"}, "data.faults.labels", "'random', 'flipped' or 'shifted'"),
        ({"share_of_devices": 0.3, "images": "dark"}, "data.faults.images", "'noise' or 'blur'"),
    ],
)
def test_invalid_faults_are_refused_by_the_field(faults: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        parse_spec(faulty_spec(faults))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("data", "model", "part", "why"),
    [
        ("vibration", "cnn_1d", "labels", "labels are classes, the targets of vibration are numbers"),
        ("breast_cancer", "mlp", "images", "the samples of breast_cancer are numbers"),
    ],
)
def test_data_without_classes_or_images_are_refused(data: str, model: str, part: str, why: str) -> None:
    faults = {"share_of_devices": 0.5, part: {"labels": "random", "images": "blur"}[part]}
    with pytest.raises(BadInput, match=why) as refused:
        resolved(**small_spec(data={"name": data, "faults": faults}, model=model))
    assert refused.value.field == f"data.faults.{part}"


def test_tests_that_another_device_trains_on_are_refused() -> None:
    with pytest.raises(BadInput, match="may be a training sample of another device") as refused:
        resolved(**faulty_spec(partition=SAMPLED, test_fraction=0.25, test_on=["union"]))
    assert refused.value.field == "data.faults"


def test_specs_without_faults_are_written_as_before() -> None:
    assert "faults" not in parse_spec({"data": "digits"}).model_dump_json()
