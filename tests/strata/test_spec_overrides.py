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


@pytest.mark.parametrize(
    ("overrides", "known"),
    [
        (["partition.name=shards"], {"name": "shards", "classes_per_device": 2}),
        (["partition.name=edge_skew", "partition.alpha=2"], {"name": "edge_skew", "alpha": 2}),
        (["partition.alpha=2", "partition.name=edge_skew"], {"name": "edge_skew", "alpha": 2}),
        (["partition.name=dirichlet"], {"name": "dirichlet", "alpha": 0.3, "min_samples": 2}),
        (["name=mine", "data.name=synth_digits"], {"name": "dirichlet", "alpha": 0.3, "min_samples": 2}),
    ],
)
def test_another_partition_replaces_the_fields_of_the_one_before(overrides: list[str], known: dict[str, Any]) -> None:
    assert read_spec(SPEC, overrides).partition.model_dump(exclude_none=True) == known


def test_another_algorithm_drops_the_parameters_of_the_one_before_and_another_name_nothing() -> None:
    assert read_spec(SPEC, ["algorithm.name=scaffold"]).algorithm.params == {}
    found = read_spec(SPEC, ["name=mine", "data.name=synth_digits"])
    assert (found.name, found.data.name, found.data.n_train) == ("mine", "synth_digits", 300)
