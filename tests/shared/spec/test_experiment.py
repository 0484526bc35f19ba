"""The spec of an experiment: refused values and their messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import BadInput, UnknownName
from shared.core.records import canonical
from shared.federation.spec_parser import parse_spec
from shared.spec.experiment import ExperimentSpec
from strata.spec_files import override_field, read_spec


def refusal(raw: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        parse_spec(raw)
    return caught.value


def test_an_empty_spec_is_fedavg_on_digits() -> None:
    spec = parse_spec({})
    names = (spec.algorithm.name, spec.data.name, spec.model.name, spec.partition.name)
    assert names == ("fedavg", "digits", "mlp", "iid")
    assert (spec.num_devices, spec.num_edges, spec.max_devices) == (None, None, None)


def test_short_forms_are_names() -> None:
    short = parse_spec({"algorithm": "fedprox", "data": "mnist", "partition": "shards"})
    long = parse_spec({"algorithm": {"name": "fedprox"}, "data": {"name": "mnist"}, "partition": {"name": "shards"}})
    assert short == long
    assert short.digest() == long.digest()
    assert parse_spec({"model": "resnet50"}) == parse_spec({"model": {"name": "resnet50", "projection": None}})


@pytest.mark.parametrize(
    ("raw", "field", "near"),
    [
        ({"num_round": 3}, "num_round", "num_rounds"),
        ({"learning_rate": 0.1, "batchsize": 3}, "learning_rate", "lr"),  # a name used by other programs
        ({"num_clients": 3}, "num_clients", "num_devices"),
        ({"batchsize": 3}, "batchsize", "batch_size"),
        ({"partition": {"name": "dirichlet", "alhpa": 0.5}}, "partition.alhpa", "alpha"),
        ({"partition": {"name": "by_group", "n_group": 2}}, "partition.n_group", "n_groups"),
        ({"timeouts": {"visits_s": 2}}, "timeouts.visits_s", "visit_s"),
        ({"devices": {"profile": {"compute": 2}}}, "devices.profile.compute", "compute_sps"),
        ({"edge_link": {"worker": 2}}, "edge_link.worker", "worker_sps"),
        ({"losses": [{"round_no": 1, "seats": [1], "edge_rounds": 2}]}, "losses.0.edge_rounds", "edge_round"),
        ({"partition": {"name": "shards", "alpha": 1}}, "partition.alpha", None),  # another partition's
        ({"data": {"n_tests": 2}}, "data.n_tests", "n_test"),
        ({"model": {"projections": 2}}, "model.projections", "projection"),
        ({"algorithm": {"param": {}}}, "algorithm.param", "params"),
        ({"xyzzy": 2}, "xyzzy", None),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(raw: Any, field: str, near: str | None) -> None:
    error = refusal(raw)
    assert error.field == field
    assert f"{field}: unknown field" in error.detail
    assert (f"did you mean {near!r}?" in error.detail) if near else ("did you mean" not in error.detail)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"num_rounds": 0}, "num_rounds"),
        ({"num_rounds": 1.5}, "num_rounds"),
        ({"lr": 0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"lr": "fast"}, "lr"),
        ({"momentum": 1}, "momentum"),
        ({"fraction_train": 0}, "fraction_train"),
        ({"quorum": 1.1}, "quorum"),
        ({"round_deadline_s": 0}, "round_deadline_s"),
        ({"overselection": -0.1}, "overselection"),
        ({"staleness_discount": 0}, "staleness_discount"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**53}, "seed"),
        ({"held_out_fraction": 1}, "held_out_fraction"),
        ({"test_fraction": 0}, "test_fraction"),
        ({"test_fraction": [0.5, 1]}, "test_fraction.1"),
        ({"test_fraction": []}, "test_fraction"),
        ({"test_fraction": {"name": "uniform", "low": 0.3, "high": 1.1}}, "test_fraction"),
        ({"test_fraction": {"name": "pareto", "shape": 1, "scale": 1}}, "test_fraction"),
        ({"num_edges": 0}, "num_edges"),
        ({"num_devices": 1_000_001}, "num_devices"),
        ({"client": "cloud"}, "client"),
        ({"edge_upload": "median"}, "edge_upload"),
        ({"algorithm": {"name": "../etc"}}, "algorithm.name"),
        ({"partition": {"name": "dirichlet", "alpha": -1}}, "partition.alpha"),
        ({"partition": {"name": "nobody"}}, "partition.name"),
        ({"timeouts": {"visit_s": 0}}, "timeouts.visit_s"),
        ({"data": {"n_train": 0}}, "data.n_train"),
        ({"partition": {"name": "by_domain", "per_client": 0}}, "partition.per_client"),
        ({"partition": {"name": "by_domain", "per_client": float("nan")}}, "partition.per_client"),
        ({"partition": {"name": "by_domain", "per_client": "largest"}}, "partition.per_client"),
        ({"algorithm": {"name": "fedmix", "params": {"mash": 1}}}, "algorithm.params.mash"),
    ],
    ids=str,
)
def test_a_value_out_of_bounds_is_refused_with_its_path(raw: Any, field: str) -> None:
    assert refusal(raw).field == field


def test_errors_of_a_value_with_two_types_name_both() -> None:
    found = refusal({"partition": {"name": "by_domain", "per_client": 0}})
    wanted = "must be 'smallest' or 'all', or at least 1"
    assert found.detail == f"partition.per_client: {wanted}"
    two = refusal({"partition": {"name": "by_domain", "per_client": 0}, "lr": 0})
    assert two.detail == f"partition.per_client: {wanted} (and 1 more)"


@pytest.mark.parametrize(
    ("raw", "field", "twice"),
    [
        ({"test_on": ["union", "union"]}, "test_on", "u"),
        ({"data": {"name": "digit_domains", "domains": ["usps", "mnist", "usps"]}}, "data.domains", "u"),
        ({"partition": {"name": "by_domain", "domains": ["usps", "usps"]}}, "partition.domains", "u"),
        (
            {"algorithm": {"name": "fedser", "params": {"transforms": ["flip"] * 2}}},
            "algorithm.params.transforms",
            "flip",
        ),
    ],
)
def test_duplicates_are_refused(raw: Any, field: str, twice: str) -> None:
    found = refusal(raw)
    assert (found.field, found.detail.startswith(f"{field}: {twice}")) == (field, True)
    assert "comes twice" in found.detail


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"num_devices": 4, "max_devices": 3}, "max_devices 3 is below num_devices 4"),
        ({"num_devices": 4, "min_devices": 5}, "min_devices 5 is above num_devices 4"),
        ({"num_devices": 4, "num_edges": 20}, "num_edges: 20 edges for 4 devices"),
        ({"num_devices": 2, "max_devices": 30, "data": {"n_train": 20}}, "30 devices for 20 training samples"),
        ({"average_every": "epoch"}, "average_every: epoch needs a schedule that divides samples"),
        (
            {"schedule": "equal", "average_every": "step", "momentum": 0.9},
            "momentum needs average_every: visit or epoch",
        ),
        (
            {"schedule": "equal", "average_every": "step", "select": "random"},
            "select needs average_every: visit or epoch",
        ),
        ({"schedule": "equal", "overrun": 2}, "overrun needs a schedule that plans shares"),
        ({"schedule": "finish_time", "overrun": 2, "clock": "real"}, "overrun needs clock: simulated"),
        ({"schedule": "finish_time", "late": "next_round", "round_deadline_s": 9}, "late: next_round needs schedule"),
        ({"schedule": "finish_time", "partial_work": True, "round_deadline_s": 9}, "partial_work needs schedule"),
        (
            {"schedule": "free_compute", "select": "random", "fraction_train": 0.5, "overselection": 0.5},
            "overselection needs schedule",
        ),
        ({"schedule": "free_compute", "algorithm": "bofl"}, "bofl decides by reports"),
        ({"arrival_rate": 1.5}, "arrival_rate 1.5 is neither"),
        ({"divide_batch": True}, "divide_batch needs a schedule that divides samples"),
        ({"divide_batch": True, "schedule": "equal", "average_every": "step"}, "divide_batch needs average_every"),
        ({"clock": "real", "devices": {"profile": {"load": "sinus"}}}, "load needs clock: simulated"),
        ({"fraction_train": 0.5}, "fraction_train below 1 needs select: random"),
        ({"fraction_candidates": 0.5}, "fraction_candidates needs select: power_of_choice"),
        ({"select": "power_of_choice", "fraction_candidates": 0.5}, "fraction_candidates is below fraction_train"),
        ({"partial_work": True}, "partial_work needs round_deadline_s"),
        ({"overselection": 0.5}, "overselection needs a policy that does not select all"),
        ({"overselection": 0.5, "select": "random"}, "overselection needs fraction_train below 1"),
        ({"report_deadline_s": 5}, "report_deadline_s: devices of fedavg announce nothing"),
        ({"late": "next_round"}, "late: next_round needs round_deadline_s"),
        ([], "a spec is a mapping of fields, not list"),
    ],
)
def test_contradicting_numbers_are_refused(raw: Any, message: str) -> None:
    found = refusal(raw)
    assert message in found.detail
    first = message.split(" ")[0].rstrip(":")
    assert first not in ExperimentSpec.model_fields or found.field == first, "the wrong one is named"


@pytest.mark.parametrize(
    ("raw", "field"),
    [({"algorithm": "fedavgg"}, "algorithm.name"), ({"data": "mnits"}, "data.name"), ({"model": "mlpp"}, "model.name")],
)
def test_an_unknown_name_is_refused_and_the_known_ones_listed(raw: Any, field: str) -> None:
    error = refusal(raw)
    assert isinstance(error, UnknownName)
    assert error.field == field
    assert error.detail.startswith(f"{field}: unknown ")
    assert "known: " in error.detail


@pytest.mark.parametrize(("params", "field"), [({"mu": -1}, "algorithm.params.mu"), ({"nu": 1}, "algorithm.params.nu")])
def test_parameters_of_an_algorithm_are_checked_by_the_algorithm(params: Any, field: str) -> None:
    error = refusal({"algorithm": {"name": "fedprox", "params": params}})
    assert error.field == field
    assert error.detail.endswith("parameters of fedprox: mu")
    assert "did you mean" not in error.detail
    assert "did you mean 'mu'?" in refusal({"algorithm": {"name": "fedprox", "params": {"mue": 1}}}).detail


def test_the_first_error_is_shown_and_the_others_are_counted() -> None:
    assert refusal({"lr": 0, "quorum": 2, "seed": -1}).detail.endswith("(and 2 more)")
    assert refusal({f"x{index}": 1 for index in range(5000)}).detail == "5000 fields are wrong"
    assert refusal({"partition": {"name": "\ud800"}}).detail.encode(), "it can be printed"


# ---- numbers that depend on the available nodes


@pytest.mark.parametrize(
    ("raw", "there", "resolved"),
    [
        ({}, (6, 2), (6, 6, 2)),
        ({}, (0, 0), (1, 1, 1)),
        ({}, (1, 3), (1, 1, 1)),  # no more edges than seats
        ({"num_devices": 4, "num_edges": 1}, (6, 2), (4, 4, 1)),
        ({"num_devices": 4, "max_devices": 8}, (6, 2), (4, 8, 2)),
        ({"max_devices": 8}, (6, 2), (6, 8, 2)),
        ({"max_devices": 4}, (6, 2), (4, 4, 2)),
    ],
)
def test_open_numbers_are_set_to_the_available_nodes(
    raw: Any, there: tuple[int, int], resolved: tuple[int, int, int]
) -> None:
    spec = parse_spec(raw).resolved(n_devices=there[0], n_edges=there[1])
    assert None not in (spec.num_devices, spec.num_edges, spec.max_devices)
    assert (spec.num_devices, spec.max_devices, spec.num_edges) == resolved
    assert spec.resolved(n_devices=99, n_edges=99) == spec


# ---- digest, files, overrides


def test_the_digest_depends_on_the_experiment_and_not_on_its_spelling() -> None:
    a, b = parse_spec({"lr": 0.1, "seed": 3}), parse_spec({"seed": 3, "lr": 0.1, "num_rounds": 10})
    assert a.digest() == b.digest()
    assert a.digest() != a.replace(seed=4).digest()
    with pytest.raises(ValueError, match="greater than"):
        a.replace(lr=-1)
    assert parse_spec(json.loads(canonical(a))) == a


def test_overrides_set_dotted_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("num_rounds: 5\npartition: dirichlet\ndata: {name: digits}\n", encoding="utf-8")
    spec = read_spec(path, ["num_rounds=3", "partition.alpha=0.1", "data.n_train=100", "name=a=b"])
    assert (spec.num_rounds, spec.data.n_train, spec.name) == (3, 100, "a=b")
    assert spec.partition.model_dump()["alpha"] == 0.1
    assert read_spec(path).num_rounds == 5
    path.write_text('{"num_rounds": 6}', encoding="utf-8")  # JSON is YAML
    assert read_spec(path).num_rounds == 6
    path.write_text("num_rounds: &n 3\nedge_rounds: *n\n", encoding="utf-8")
    assert read_spec(path).edge_rounds == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_rounds", "key=value"),
        ("=3", "key=value"),
        ("num_rounds=[", "not valid YAML"),
        ("num_rounds.x=3", "num_rounds"),
        ("num_runds=3", "did you mean 'num_rounds'"),
    ],
)
def test_a_bad_override_is_refused(tmp_path: Path, override: str, message: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("num_rounds: 5\n", encoding="utf-8")
    with pytest.raises(BadInput, match=message):
        read_spec(path, [override])


def test_an_override_does_not_change_the_original_mapping() -> None:
    shared = {"name": "dirichlet"}
    raw: dict[str, Any] = {"partition": shared}
    override_field(raw, "partition.alpha=2")
    assert raw == {"partition": {"name": "dirichlet", "alpha": 2}}
    assert shared == {"name": "dirichlet"}


@pytest.mark.parametrize(
    "text",
    [
        *(b"[1, 2]", b"a: [", b"\xff\xfe", b"", b"a: " + b"[" * 3000, b"a: &a [*a]"),
        *(b"seed: !!int abc", b"seed: !!bool abc", b"seed: !!timestamp abc", b"seed: 2020-99-99"),
    ],
)
def test_what_is_no_mapping_in_yaml_is_bad_input(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(text)
    with pytest.raises(BadInput, match=r"spec\.yaml"):
        read_spec(path)


@pytest.mark.parametrize("below", ["[*x{0}, *x{0}]", "{{<<: [*x{0}, *x{0}]}}"])
def test_aliases_may_not_multiply(tmp_path: Path, below: str) -> None:
    lines = ["x0: &x0 {a: 1}", *(f"x{i}: &x{i} {below.format(i - 1)}" for i in range(1, 40)), "name: *x39"]
    path = tmp_path / "spec.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(BadInput, match="too many aliases"):
        read_spec(path)


def test_a_file_beyond_the_limit_or_that_is_not_there_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the limit is"):
        read_spec(Path("/dev/zero"))
    with pytest.raises(BadInput, match="No such file"):
        read_spec(tmp_path / "absent.yaml")


@pytest.mark.parametrize(("quorum", "n", "needed"), [(0.28, 25, 7), (0.5, 3, 2), (1.0, 7, 7)])
def test_a_quorum_is_rounded_up_but_not_by_the_error_of_its_product(quorum: float, n: int, needed: int) -> None:
    assert ExperimentSpec(quorum=quorum).quorum_of(n) == needed
