"""Data sets that are no images: a table, a text, and generated spectra."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from shared.training.data import scikit_learn, vibration
from shared.training.data.class_names import CLASS_NAMES
from shared.training.data.dataset import load
from shared.training.data.sources import DATASETS
from shared.training.description import Classes, Numbers, Tokens
from shared.training.torchvision_compat import torchvision


def test_the_table_is_scikit_learns_and_higher_hospitals_have_larger_tumours(tmp_path: Path) -> None:
    found = load("breast_cancer", data_dir=None, cache_dir=tmp_path)
    x, y = load_breast_cancer(return_X_y=True)
    parts = ((found.train_x, found.train_y), (found.test_x, found.test_y))
    rows = np.concatenate([np.column_stack(part) for part in parts])
    known = np.column_stack([x.astype(np.float32), y])
    assert np.array_equal(np.unique(rows, axis=0), np.unique(known, axis=0))
    assert found.target == Classes(2)
    assert found.reading.classes == tuple(load_breast_cancer().target_names)
    assert found.train_group is not None
    assert found.test_group is not None
    benign = [found.train_y[found.train_group == hospital].mean() for hospital in range(scikit_learn.HOSPITALS)]
    assert benign[0] > 0.8
    assert benign[-1] < 0.4
    sizes = np.bincount(np.concatenate([found.train_group, found.test_group]))
    assert sizes.max() - sizes.min() <= 1
    x, y = np.ones((12, 3)), np.arange(12) % 3
    np.savez(tmp_path / "breast_cancer.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    found = load("breast_cancer", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert (found.target, found.reading.classes) == (Classes(3), ()), "other classes in a file of that name"


def test_the_names_of_published_classes_are_torchvisions() -> None:
    known = torchvision().datasets
    assert list(CLASS_NAMES["emnist"]) == known.EMNIST.classes_split_dict["byclass"]
    fashion = [name.lower().removesuffix("/top") for name in known.FashionMNIST.classes]
    assert list(CLASS_NAMES["fashion_mnist"]) == fashion
    for name, classes in CLASS_NAMES.items():
        assert len(set(classes)) == len(classes) == (DATASETS[name].n_classes or 2)


def test_a_text_is_continued_and_no_test_character_is_trained_on(tmp_path: Path) -> None:
    found = load("sklearn_docs", data_dir=None, cache_dir=tmp_path)
    assert isinstance(found.target, Tokens)
    assert np.array_equal(found.train_x[:, 1:], found.train_y[:, :-1])
    assert found.train_group is not None
    assert found.test_group is not None
    assert set(found.train_group.tolist()) == set(found.test_group.tolist()) == set(range(14))
    first = np.concatenate([found.train_x[found.train_group == 0], found.test_x[found.test_group == 0]])
    files = sorted(scikit_learn._file("descr").glob("*.rst"))
    texts = {path.stem: path.read_text(encoding="utf-8").encode("ascii", "replace") for path in files}
    characters = np.unique(np.frombuffer(b"".join(texts.values()), np.uint8))
    assert characters[first.reshape(-1)].astype(np.uint8).tobytes() == texts["breast_cancer"][: first.size]


def test_the_resonance_alone_tells_the_wear_and_the_gain_belongs_to_the_type(tmp_path: Path) -> None:
    found = load("vibration", data_dir=None, cache_dir=tmp_path)
    assert found.target == Numbers((1,))
    lines = vibration.RATE / vibration.POINTS
    resonance = round(vibration.RESONANCE / lines) - 1
    assert found.train_group is not None
    slopes = []
    for machine in range(vibration.MACHINES):
        own = found.train_group == machine
        energy = np.sqrt((found.train_x[own, 0, resonance - 10 : resonance + 10].astype(float) ** 2).sum(1))
        assert np.corrcoef(energy, found.train_y[own, 0])[0, 1] > 0.95
        slopes.append(np.polyfit(found.train_y[own, 0], energy, 1)[0])
    by_type, gains = np.reshape(slopes, (-1, len(vibration.GAINS))), np.array(vibration.GAINS)
    assert by_type.mean(0) / by_type.mean() == pytest.approx(gains / gains.mean(), rel=0.15)
