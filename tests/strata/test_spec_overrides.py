"""Overrides of a spec's fields: another name replaces what belonged to the one before."""

from __future__ import annotations

from typing import Any

import pytest

from strata.spec_files import read_spec

SPEC = {
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "algorithm": {"name": "fedprox", "params": {"mu": 0.5}, "local": None},
    "data": {"name": "digits", "n_train": 300},
}


def test_another_partition_replaces_the_fields_of_the_one_before() -> None:
    assert read_spec(SPEC, ["partition.name=shards"]).partition.model_dump(exclude_none=True) == {
        "name": "shards",
        "classes_per_device": 2,
    }


@pytest.mark.parametrize(
    "overrides",
    [
        ["partition.name=edge_skew", "partition.alpha=2"],
        ["partition.alpha=2", "partition.name=edge_skew"],
    ],
)
def test_fields_that_are_given_with_the_name_stay_in_any_order(overrides: list[str]) -> None:
    found: Any = read_spec(SPEC, overrides).partition
    assert (found.name, found.alpha) == ("edge_skew", 2)


def test_the_same_name_keeps_the_fields() -> None:
    found: Any = read_spec(SPEC, ["partition.name=dirichlet"]).partition
    assert found.alpha == 0.3


def test_another_algorithm_drops_the_parameters_of_the_one_before() -> None:
    assert read_spec(SPEC, ["algorithm.name=scaffold"]).algorithm.params == {}


def test_a_name_that_chooses_no_fields_leaves_them() -> None:
    found: Any = read_spec(SPEC, ["name=mine", "data.name=synth_digits"])
    assert (found.name, found.data.n_train, found.partition.alpha) == ("mine", 300, 0.3)
