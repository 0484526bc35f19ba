"""The differences by which runs are labelled."""

from __future__ import annotations

from typing import Any

from shared.federation.spec_parser import parse_spec
from shared.results.spec_differences import described, differing, flat, labels
from shared.run_records.runs import RunInfo
from tests.strata.samples import a_run


def run_of(run: str, name: str, **spec: Any) -> RunInfo:
    return a_run(run=run, name=name, spec=parse_spec({"name": name, **spec}))


def test_keys_are_dotted_and_exclude_the_name() -> None:
    found = flat(parse_spec({"name": "x", "partition": {"name": "dirichlet", "alpha": 0.5}}))
    assert found["partition.name"] == "dirichlet"
    assert found["partition.alpha"] == 0.5
    assert "name" not in found


def test_only_values_that_are_not_shared_differ_also_where_a_key_is_absent() -> None:
    iid, skewed = parse_spec({}), parse_spec({"lr": 0.2, "partition": {"name": "dirichlet", "alpha": 0.5}})
    assert set(differing([flat(iid), flat(skewed)])) == {
        "lr",
        "partition.name",
        "partition.alpha",
        "partition.min_samples",
    }


def test_a_file_of_devices_is_known_by_its_digest() -> None:
    one, other = (parse_spec({"devices": {"file": {"path": "d.csv", "csv": f"up_bps\n{n}"}}}) for n in (1, 2))
    assert differing([flat(one), flat(other)]) == ["devices.file.sha256"]
    assert flat(one)["devices.file.path"] == "d.csv"
    runs = [run_of(f"r{n}", "a", devices=spec.devices.model_dump()) for n, spec in enumerate((one, other))]
    assert labels(runs) == [f"sha256={spec.devices.file.digest[:12]}" for spec in (one, other) if spec.devices.file]


def test_values_are_labelled_by_the_last_part_of_their_key_unless_two_share_it() -> None:
    assert described({"partition.alpha": 0.1, "partition.name": "iid", "seed": None}) == (
        "alpha=0.1, partition=iid, seed=-"
    )
    assert described({"devices.up_bps": 1, "edge_link.up_bps": 2}) == "devices.up_bps=1, edge_link.up_bps=2"


def test_label_is_the_name_if_that_is_unique() -> None:
    assert labels([run_of("r1", "a", lr=0.1), run_of("r2", "b", lr=0.2)]) == ["a", "b"]


def test_runs_of_equal_names_are_labelled_by_their_differences() -> None:
    runs = [run_of("r1", "a", lr=0.1), run_of("r2", "a", lr=0.2), run_of("r3", "b", seed=5)]
    assert labels(runs) == ["a: lr=0.1", "a: lr=0.2", "b"]
    assert labels(runs[:2]) == ["lr=0.1", "lr=0.2"]


def test_equal_runs_and_long_names_are_distinguished_by_id() -> None:
    assert labels([run_of("r1", "a"), run_of("r2", "a")]) == ["a (r1)", "a (r2)"]
    long = "x" * 99
    assert labels([run_of("r1", long + "y"), run_of("r2", long + "z")]) == ["x" * 59 + "… (r1)", "x" * 59 + "… (r2)"]
