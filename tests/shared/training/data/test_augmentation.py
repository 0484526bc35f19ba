"""RandAugment: the 14 operations at one magnitude, seeded; floats are converted back to pixels exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from shared.core.errors import BadInput
from shared.federation.experiment import Experiment
from shared.federation.messages import Task
from shared.federation.spec_parser import parse_spec
from shared.federation.test_sets import Samples
from shared.federation.visits.trainer import trainer_for
from shared.training.data.augmentation import _policy, as_floats, as_pixels, augmented, augmented_apart
from shared.training.data.dataset import as_batch
from shared.training.data.open_data import open_data
from shared.training.specs import AugmentSpec
from shared.training.torchvision_compat import torchvision
from tests.domains import write_domains

STRONG = AugmentSpec()


def images(n: int = 6, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, channels, 12, 12), generator=generator, dtype=torch.uint8)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, float]]]:
    """The operations that were applied, with their magnitudes."""
    torchvision()
    from torchvision.transforms import autoaugment

    apply = Mock(wraps=autoaugment._apply_op)
    monkeypatch.setattr(autoaugment, "_apply_op", apply)
    return lambda: [called.args[1:3] for called in apply.call_args_list]


Drawn = Callable[[], list[tuple[str, float]]]


def test_the_fourteen_operations_are_equally_frequent_and_in_their_last_bin(drawn: Drawn) -> None:
    augmented(images(420, 1), STRONG, seed=5)
    counts = Counter(name for name, _ in drawn())
    assert counts.total() == 840
    assert len(counts) == 14
    assert chisquare(list(counts.values())).pvalue > 0.001
    space = _policy(2, 10)._augmentation_space(11, (12, 12))
    for name, magnitude in drawn():
        bins, _ = space[name]
        assert abs(magnitude) == (abs(float(bins[-1])) if bins.ndim else 0.0), name
    signed = {name for name, (_, signed) in space.items() if signed}
    assert {name for name, magnitude in drawn() if magnitude < 0} == signed


def test_full_strength_is_ten_of_ten_and_weaker_is_weaker(drawn: Drawn) -> None:
    augmented(images(200, 1), AugmentSpec(magnitude=5, n_ops=1), seed=5)
    assert {abs(magnitude) for name, magnitude in drawn() if name == "Rotate"} == {15.0}  # half of 30 degrees
    assert len(drawn()) == 200


def test_draws_follow_the_seed_and_do_not_change_torchs_generator() -> None:
    before = torch.get_rng_state()
    first, again, other = (augmented(images(), STRONG, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, images())
    assert (first.dtype, first.shape) == (torch.uint8, images().shape)
    every = augmented_apart(images(), STRONG, range(6))
    assert torch.equal(augmented_apart(images()[3:5], STRONG, [3, 4]), every[3:5]), "whatever else is in the batch"


def test_threads_of_one_process_have_separate_draws() -> None:
    many = images(25)
    alone = [augmented(many, STRONG, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        beside = list(threads.map(lambda seed: augmented(many, STRONG, seed), range(4)))
    assert all(map(torch.equal, alone, beside))


def test_pixels_round_trip_exactly() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    floats = as_batch(every)
    assert torch.equal(as_pixels(floats), torch.from_numpy(every)[None])
    assert torch.equal(as_floats(as_pixels(floats)), floats)


def test_a_spec_gives_the_augmentation_by_name_or_by_fields() -> None:
    assert parse_spec({}).augment is None
    assert parse_spec({"augment": "randaugment"}).augment == STRONG
    assert parse_spec({"augment": "crop_flip"}).augment == AugmentSpec(name="crop_flip")
    assert parse_spec({"augment": {"name": "randaugment", "when": "once"}}).augment == AugmentSpec(when="once")


@pytest.mark.parametrize(
    ("augment", "more", "message"),
    [
        ({"name": "randaugment", "magnitude": 11}, {}, "magnitude"),
        ({"name": "crop_flip", "magnitude": 3}, {}, "magnitude goes with randaugment: crop_flip has no operations"),
        (
            {"when": "expand"},
            {"average_every": "step", "schedule": "free_compute"},
            "expand needs average_every: visit or epoch",
        ),
    ],
)
def test_an_augmentation_that_does_not_fit_is_refused(augment: Any, more: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        parse_spec({"augment": augment, **more})
    assert (refused.value.field or "").startswith("augment")


def test_crop_and_flip_moves_whole_pixels_by_up_to_an_eighth_and_mirrors_half_of_the_images() -> None:
    x = torch.randint(0, 256, (400, 2, 16, 24), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    seen = augmented(x, AugmentSpec(name="crop_flip"), seed=3)
    assert seen.dtype == torch.uint8
    bordered = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (3, 3)))
    found = Counter[tuple[int, int, bool]]()
    for image, padded in zip(seen.numpy(), bordered, strict=True):
        places = [
            (top, left, mirrored)
            for top in range(5)
            for left in range(7)
            for mirrored in (False, True)
            if np.array_equal(image[..., ::-1] if mirrored else image, padded[:, top : top + 16, left : left + 24])
        ]
        assert len(places) == 1
        found[places[0]] += 1
    assert len(found) > 65  # of 5 x 7 x 2
    assert 160 < sum(n for (_, _, mirrored), n in found.items() if mirrored) < 240
    again, other = (augmented(x, AugmentSpec(name="crop_flip"), seed) for seed in (3, 4))
    assert torch.equal(seen, again)
    assert not torch.equal(seen, other)


class Client:
    """Seat 0 of two, with 20 training images of a data set."""

    def __init__(self, augment: dict[str, str], unpacked: Path, sets: Path | None = None) -> None:
        name = "svhn" if sets else "digits"
        spec = parse_spec({"augment": augment, "data": {"name": name, "n_train": 20}})
        self.spec = spec.resolved(n_devices=2, n_edges=1)
        self.experiment = Experiment(self.spec, open_data(spec.data, data_dir=sets, cache_dir=unpacked))
        self.seat, self.ctx = self.experiment.population.seats[0], self.visit(1)

    def visit(self, round_no: int) -> Any:
        return self.experiment.ctx(phase="train", round_no=round_no, n_clients=2).at(seat=0)

    def trainer(self, epochs: int = 2) -> Any:
        return trainer_for(self.experiment, Task(epochs=epochs, batch_size=4), self.seat.train, self.seat.test)


@pytest.mark.parametrize("name", ["randaugment", "crop_flip"])
def test_an_expanded_set_has_the_originals_and_a_copy_of_each_of_the_visits_own(name: str, unpacked: Path) -> None:
    """The copies are those of `augmented` with a seed of seat, visit and image; all epochs of a visit have the same."""
    client = Client({"name": name, "when": "expand"}, unpacked)
    experiment, seat, ctx, trainer = client.experiment, client.seat, client.ctx, client.trainer

    def images_of(drawn: Iterable[Any]) -> list[tuple[bytes, int]]:
        found = [(image.numpy().tobytes(), int(label)) for x, y in drawn for image, label in zip(x, y, strict=True)]
        return sorted(found)

    x, y = experiment.data.train_x[seat.train], experiment.data.train_y[seat.train]
    seeds, how = [ctx.seed(f"augmented|train {index}") for index in seat.train], client.spec.augment
    assert how is not None
    copies = [augmented(as_pixels(as_batch(x[at : at + 1])), how, seed) for at, seed in enumerate(seeds)]
    pixels = torch.cat([as_pixels(as_batch(x)), *copies])
    expected = images_of([(as_floats(pixels), [*y, *y])])
    drawn = list(trainer().batches(ctx))
    assert [len(targets) for _, targets in drawn] == [4] * 10  # two epochs of 20
    assert images_of(drawn[:5]) == images_of(drawn[5:]) == expected
    assert [len(batch) for batch in trainer().order(ctx)] == [4] * 10
    assert trainer().n_samples == 10
    assert images_of(trainer().batches(ctx, epochs=1, augment=False)) == images_of([(as_floats(pixels[:10]), y)])
    assert images_of(trainer().batches(client.visit(2), epochs=1)) != expected
    part = images_of(trainer().batches(ctx, samples=Samples("train", seat.train[3:5]), epochs=1))
    assert len(part) == 4
    assert set(part) <= set(expected)


def test_a_clients_images_are_augmented_once(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, made = Client({"name": "randaugment", "when": "once"}, unpacked), Mock(wraps=augmented_apart)
    monkeypatch.setattr("shared.federation.visits.trainer.augmented_apart", made)
    trainer, ctx = client.trainer(), client.ctx
    first, again = [torch.cat([x for x, _ in trainer.batches(ctx)]) for _ in range(2)]
    assert torch.equal(first, again)
    samples = Samples("train", client.seat.train[:3])
    part = torch.cat([x for x, _ in trainer.batches(ctx, samples=samples, epochs=1)])
    assert [len(called.args[0]) for called in made.call_args_list] == [10, 3]
    assert {image.numpy().tobytes() for image in part} <= {image.numpy().tobytes() for image in first}


def test_colours_keep_their_places_when_augmented_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An augmentation that changes nothing gives the images as they are: no axis is confused with another."""
    sets = write_domains(tmp_path / "sets", ("svhn",))
    client = Client({"name": "randaugment", "when": "once"}, tmp_path / "cache", sets)
    monkeypatch.setattr("shared.federation.visits.trainer.augmented_apart", lambda images, how, seeds: images)
    trainer = client.trainer(epochs=1)
    same, plain = [torch.cat([x for x, _ in trainer.batches(client.ctx, augment=augment)]) for augment in (True, False)]
    assert same.shape[1] == 3
    assert torch.equal(same, plain)
