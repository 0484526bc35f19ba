"""Samples are divided by class, by group, or by bins of their target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shared.core.errors import BadInput
from shared.federation.labels import labels_of
from shared.federation.population import counts_of, population
from shared.federation.spec_parser import parse_spec
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.description import Classes, Numbers, Sample

N, N_TEST = 240, 60
RNG = np.random.default_rng(0)
DATA = Dataset(
    name="prices",
    train_x=np.zeros((N, 2), np.float32),
    train_y=RNG.lognormal(size=(N, 1)).astype(np.float32),
    test_x=np.zeros((N_TEST, 2), np.float32),
    test_y=RNG.lognormal(size=(N_TEST, 1)).astype(np.float32),
    train_group=np.arange(N, dtype=np.int64) % 6 * 10,
    test_group=np.arange(N_TEST, dtype=np.int64) % 6 * 10,
    target=Numbers((1,)),
    sample=Sample((2,)),
    digest="prices",
)


def spec_of(**changes: Any) -> ExperimentSpec:
    return parse_spec({"num_devices": 6, "max_devices": 6, "num_edges": 2, **changes})


def test_bins_hold_equally_many_training_samples_and_follow_the_target() -> None:
    labels = labels_of(spec_of(partition={"name": "dirichlet", "bins": 4}), DATA)
    assert (labels.n, np.bincount(labels.train).tolist()) == (4, [60] * 4)
    order = np.argsort(DATA.train_y[:, 0])
    assert (np.diff(labels.train[order]) >= 0).all()
    low = DATA.train_y[labels.train == 0].max()
    assert (labels.test == 0).tolist() == (DATA.test_y[:, 0] <= low).tolist()


def test_equal_targets_share_a_bin() -> None:
    data = replace(DATA, train_y=np.repeat(np.array([1, 2], np.float32), N // 2)[:, None])
    labels = labels_of(spec_of(partition={"name": "dirichlet", "bins": 10}), data)
    assert len(np.unique(labels.train)) == 2
    assert len(np.unique(labels.train[: N // 2])) == len(np.unique(labels.train[N // 2 :])) == 1


def test_groups_are_labels_where_the_spec_says_so() -> None:
    spec = spec_of(partition={"name": "shards", "by": "group", "classes_per_device": 1})
    found = population(spec, DATA)
    counts = counts_of(found.seats, found.labels)
    assert counts.shape == (6, 6)
    assert (np.count_nonzero(counts, axis=1) == 1).all()
    tested = [set(np.asarray(DATA.test_group)[seat.test.indices].tolist()) for seat in found.seats]
    trained = [set(np.asarray(DATA.train_group)[seat.train].tolist()) for seat in found.seats]
    assert tested == trained


def test_skewed_bins_give_devices_other_targets() -> None:
    found = population(spec_of(partition={"name": "dirichlet", "bins": 4, "alpha": 0.05}), DATA)
    counts = counts_of(found.seats, found.labels)
    assert (counts == 0).any(axis=1).all()


@pytest.mark.parametrize("partition", ["dirichlet", "shards", "by_group", "edge_skew", "sampled"])
def test_partitions_by_class_of_numbers_say_what_is_possible(partition: str) -> None:
    with pytest.raises(
        BadInput, match=f"{partition} divides by class, and the targets of prices are numbers"
    ) as caught:
        population(spec_of(partition=partition), DATA)
    for way in ("partition: iid", "partition.bins", "by_writer", "partition.by: group"):
        assert way in caught.value.detail
    assert caught.value.field == "partition.name"


def test_without_test_groups_test_samples_are_cut_from_clients_own() -> None:
    data = replace(DATA, test_group=None)
    spec = spec_of(partition={"name": "dirichlet", "by": "group"})
    with pytest.raises(BadInput, match="set test_fraction"):
        population(spec, data)
    found = population(spec.replace(test_fraction=0.5), data)
    assert {seat.test.part for seat in found.seats} == {"train"}


def test_bins_of_classes_and_bins_together_with_groups_are_refused() -> None:
    spec = spec_of(partition={"name": "dirichlet", "bins": 4})
    with pytest.raises(BadInput, match="the targets of prices are classes"):
        labels_of(
            spec, replace(DATA, train_y=np.zeros(N, np.int64), test_y=np.zeros(N_TEST, np.int64), target=Classes(1))
        )
    with pytest.raises(BadInput, match="labels are groups or bins"):
        spec_of(partition={"name": "dirichlet", "bins": 4, "by": "group"})


def test_a_partition_without_labels_of_its_own_keeps_its_digest() -> None:
    assert "bins" not in spec_of(partition="dirichlet").model_dump_json()
    assert "sum_bounds" not in spec_of().model_dump_json()
