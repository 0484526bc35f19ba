"""Digit data sets are combined into one: resized, split, marked by domain; a data set that is missing is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from shared.core.errors import BadInput, UnknownName
from shared.federation.spec_parser import parse_spec
from shared.runtime import memory
from shared.training.data import digit_domains, sources
from shared.training.data.digit_domains import resized
from shared.training.data.open_data import open_data
from shared.training.data.sources import DataUnavailable
from shared.training.specs import DataSpec
from tests.domains import LOOKS, N_TEST, N_TRAIN, write_domains

FIVE = tuple(LOOKS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with the five small data sets, and a cache folder."""
    return {"data_dir": write_domains(tmp_path_factory.mktemp("sets")), "cache_dir": tmp_path_factory.mktemp("cache")}


def spec_of(**options: Any) -> DataSpec:
    return DataSpec(name="digit_domains", **{"size": 8, **options})


def test_images_of_all_sets_get_three_channels_of_one_size(folders: dict[str, Path]) -> None:
    got = open_data(spec_of(size=12), **folders)
    assert got.train_x.shape[1:] == (12, 12, 3)
    assert (got.sample.shape, got.target.n_outputs, got.domains) == ((3, 12, 12), 10, FIVE)
    assert got.train_domain is not None
    grey = got.train_x[got.train_domain == 0]
    assert (grey == grey[..., :1]).all()
    assert isinstance(got.train_x, np.memmap)


def test_whole_split_trains_on_four_fifths_of_each_class_of_each_set(folders: dict[str, Path]) -> None:
    got = open_data(spec_of(), **folders)
    assert got.train_domain is not None
    assert got.test_domain is not None
    for number, name in enumerate(FIVE):
        with np.load(folders["data_dir"] / f"{name}.npz") as source:
            every = np.bincount(np.concatenate([source["train_y"], source["test_y"]]), minlength=10)
        train = np.bincount(got.train_y[got.train_domain == number], minlength=10)
        test = np.bincount(got.test_y[got.test_domain == number], minlength=10)
        assert (train + test).tolist() == every.tolist()
        assert train.tolist() == [round(0.8 * n) for n in every]
    images = {image.tobytes() for image in got.train_x}
    assert not any(image.tobytes() in images for image in got.test_x)


def test_official_split_keeps_the_official_test_images(folders: dict[str, Path]) -> None:
    got = open_data(spec_of(split="official", domains=("usps", "mnist")), **folders)
    assert got.test_domain is not None
    assert got.domains == ("usps", "mnist")
    with np.load(folders["data_dir"] / "mnist.npz") as source:
        assert np.array_equal(got.test_x[got.test_domain == 1][..., 0], source["test_x"])
        assert np.array_equal(got.test_y[got.test_domain == 1], source["test_y"])
    assert len(got.test_x) == 2 * N_TEST
    assert len(got.train_x) == pytest.approx(2 * 0.8 * N_TRAIN, abs=10)


def test_other_options_give_other_data_and_equal_options_equal_data(folders: dict[str, Path], tmp_path: Path) -> None:
    known = open_data(spec_of(), **folders).digest
    options: list[dict[str, Any]] = [{}, {"split": "official"}, {"size": 9}, {"domains": FIVE[::-1]}]
    digests = [open_data(spec_of(**each), data_dir=folders["data_dir"], cache_dir=tmp_path).digest for each in options]
    assert digests[0] == known
    assert len(set(digests)) == 4


def test_resizing_interpolates_and_keeps_images_of_the_right_size() -> None:
    ramp = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (2, 16, 1))  # 2 x 16 x 16, grey
    half = resized(ramp, 8)
    assert half.shape == (2, 8, 8, 3)
    inner = half[0, 4, 1:-1, 0].astype(int)
    assert (abs(inner - (ramp[0, 0, 2:-2:2].astype(int) + 8)) <= 1).all()  # the mean of two neighbours
    colour = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    assert np.array_equal(resized(colour, 8), colour)


def test_images_that_exceed_the_memory_are_refused_before_they_are_created(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 450 * 10**6)
    n = 5 * (N_TRAIN + N_TEST)
    assert 2 * n * 256**2 * 3 == 491_520_000
    monkeypatch.setattr(digit_domains, "resized", None)
    with pytest.raises(BadInput, match=r"size 256: 1250 images of 256x256 .* 0\.5 GB, 0\.5 GB are free") as refused:
        open_data(spec_of(size=256), data_dir=folders["data_dir"], cache_dir=tmp_path)
    assert refused.value.field == "data.size"
    monkeypatch.undo()
    monkeypatch.setattr(memory, "available_bytes", lambda: 2 * n * 16**2 * 3)
    assert open_data(spec_of(size=16), data_dir=folders["data_dir"], cache_dir=tmp_path).sample.shape == (3, 16, 16)


FOUR = {"name": "digit_domains", "domains": ["mnist", "mnist_m", "synth_digits", "usps"]}


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"data": {**FOUR, "domains": ["mnist", "cifar10"]}}, "data.domains", "cifar10"),
        ({"data": {**FOUR, "domains": ["mnist", "mnist"]}}, "data.domains", "comes twice"),
        ({"data": {"name": "mnist", "size": 28}}, "data.size", "size goes with data: digit_domains"),
        ({"data": {"name": "digit_domain"}}, "data.name", "digit_domains"),
        ({"partition": "by_domain"}, "partition.name", "by_domain goes with data: digit_domains, not with digits"),
        ({"data": FOUR, "partition": {"name": "by_domain", "domains": ["nope"]}}, "partition.domains", "'nope'"),
        ({"data": FOUR, "partition": {"name": "by_domain", "domains": ["usps", "svhn"]}}, "partition.domains", "svhn"),
        ({"test_on": ["union", "nope"]}, "test_on", "test_on nope: the test sets here are union$"),
        ({"test_on": ["unseen"]}, "test_on", "are union$"),
        ({"data": FOUR, "test_on": ["svhn"]}, "test_on", "are mnist, mnist_m, synth_digits, union, usps$"),
        ({"data": FOUR, "test_on": ["unseen"]}, "test_on", "are mnist, "),  # any client may have any
        ({"data": FOUR, "partition": "by_domain", "test_on": ["unseen"]}, "test_on", "are mnist, "),  # clients have all
    ],
)
def test_wrong_options_are_refused_when_the_spec_is_read(options: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=message) as refused:
        parse_spec(options)
    assert refused.value.field == field
    part = {"name": "by_domain", "domains": ["usps", "mnist"]}
    tested = ("union", "unseen", "usps", "synth_digits")
    assert parse_spec({"data": FOUR, "partition": part, "test_on": list(tested)}).test_on == tested
    assert parse_spec({"data": "digit_domains", "test_on": ["svhn"]}).test_on == ("svhn",)


def test_a_missing_data_set_can_be_provided_or_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = sources.DatasetSource(10, Mock(side_effect=OSError("no network")))
    monkeypatch.setitem(sources.DATASETS, "svhn", offline)
    folder, cache = write_domains(tmp_path / "sets", ("mnist", "usps")), tmp_path / "cache"
    with pytest.raises(DataUnavailable, match="svhn could not be loaded") as caught:
        open_data(spec_of(domains=("mnist", "svhn", "usps")), data_dir=folder, cache_dir=cache)
    assert "put the data set as svhn.npz into" in caught.value.detail
    assert caught.value.detail.endswith("data.domains=[mnist, usps], and fewer clients in num_devices or num_edges")
    assert caught.value.field == "data.domains"
    with pytest.raises(DataUnavailable) as alone:
        open_data(spec_of(domains=("svhn",)), data_dir=folder, cache_dir=cache)
    assert "leave it out" not in alone.value.detail
    assert len(open_data(spec_of(domains=("mnist", "usps")), data_dir=folder, cache_dir=cache).train_y)
