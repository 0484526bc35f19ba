"""The combinations of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.spec.run import RunSpec
from strata.runs.spec_check import checked
from strata.sweeps.grid import MAX_COMBINATIONS, combinations_of


def as_it_is(spec: RunSpec) -> RunSpec:
    return spec


def values_of(path: Path, *arguments: str) -> list[dict[str, Any]]:
    return [cell.values for cell in combinations_of(path, arguments, as_it_is)]


def test_every_combination_is_listed_and_the_last_key_changes_fastest(spec_file: Path) -> None:
    found = combinations_of(spec_file, ["lr=0.1,0.2", "seed=1,2"], as_it_is)
    assert [cell.values for cell in found] == [
        {"lr": 0.1, "seed": 1},
        {"lr": 0.1, "seed": 2},
        {"lr": 0.2, "seed": 1},
        {"lr": 0.2, "seed": 2},
    ]
    assert [(cell.spec.lr, cell.spec.seed) for cell in found] == [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]
    assert {cell.spec.num_rounds for cell in found} == {3}


def test_key_with_one_value_is_set_and_not_swept(spec_file: Path) -> None:
    (first, second) = combinations_of(spec_file, ["num_rounds=5", "seed=1,2"], as_it_is)
    assert (first.values, second.values) == ({"seed": 1}, {"seed": 2})
    assert first.spec.num_rounds == second.spec.num_rounds == 5


def test_values_are_yaml_and_brackets_and_quotes_keep_their_commas(spec_file: Path) -> None:
    one, two = "{name: dirichlet, alpha: 0.1}", "{name: shards, classes_per_device: 2}"
    found = combinations_of(spec_file, [f"partition={one}, {two},iid"], as_it_is)
    assert [cell.spec.partition.name for cell in found] == ["dirichlet", "shards", "iid"]
    assert values_of(spec_file, 'name="a, b",it\'s') == [{"name": "a, b"}, {"name": "it's"}]
    losses = "[{round_no: 1, seats: [0, 1]}]"
    assert [len(cell.spec.losses) for cell in combinations_of(spec_file, [f"losses=[],{losses}"], as_it_is)] == [0, 1]
    assert values_of(spec_file, "edge_rounds=1,2,[1,3]") == [{"edge_rounds": each} for each in (1, 2, [1, 3])]


def test_dotted_keys_set_nested_fields(spec_file: Path) -> None:
    found = combinations_of(spec_file, ["partition.name=dirichlet", "partition.alpha=0.1,10"], as_it_is)
    assert [cell.spec.partition.model_dump()["alpha"] for cell in found] == [0.1, 10.0]
    assert found[0].values == {"partition.alpha": 0.1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["num_roundz=1,2"], "num_roundz: unknown field; did you mean 'num_rounds'?"),
        (["lr=0.1,-1"], r"lr: .* \(with lr=-1\)"),
        (["lr=0.1,0.10"], "lr: 0.1 is given twice"),
        (["lr=1,2,1.0"], "lr=1 and lr=1.0 make the same spec"),
        (["seed=1,2", "data=digits,{name: digits}"], "make the same spec"),
        (["lr=0.1,,0.2"], "lr: a value is missing"),
        (["lr="], "lr: a value is missing"),
        (["lr"], "has the form key=v1,v2, not 'lr'"),
        (["=1"], "has the form key=v1,v2, not '=1'"),
        (["lr=0.1", "lr=0.2"], "lr is given twice"),
        (["losses=[1,2"], "the value of losses is not valid YAML"),
        (["seed=" + ",".join(map(str, range(MAX_COMBINATIONS + 1)))], f"at most {MAX_COMBINATIONS}"),
    ],
)
def test_wrong_argument_is_named_before_anything_starts(spec_file: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        combinations_of(spec_file, arguments, as_it_is)


def test_contradicting_numbers_are_found_in_the_complete_spec(spec_file: Path) -> None:
    with pytest.raises(BadInput, match=r"num_edges: 20 edges for 10 devices \(with num_edges=20\)"):
        combinations_of(spec_file, ["num_edges=2,20"], checked)
