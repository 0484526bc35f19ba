"""Specs and small JSON messages between tiers give a record, or an error that names the fault."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.core.errors import BadInput
from shared.core.records import canonical
from shared.core.validation import explain
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_spec
from shared.service.api.membership import (
    AgentHeartbeat,
    AgentRegistration,
    EdgeHeartbeat,
    EdgeRegistration,
    HeartbeatAnswer,
    RosterEntry,
)
from shared.spec.experiment import ExperimentSpec
from strata.spec_files import read_spec
from tests.fuzz.bodies import check_message, other_value

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
SPECS: list[Any] = [
    *(yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "experiments").glob("*.yaml"))),
    ExperimentSpec().model_dump(mode="json"),
    {"losses": [{"round_no": 1, "seats": [0, 1], "edge_round": 0}], "partition": {"name": "dirichlet", "alpha": 0.5}},
]
SMALL = [
    AgentRegistration(agent="a-1", name="agent-1", devices=2, profile="standard", port=1, nonce="n" * 16),
    EdgeRegistration(edge="edge-1", port=1, nonce="n" * 16),
    AgentHeartbeat(agent="a-1", visiting=3, waiting=1),
    EdgeHeartbeat(edge="edge-1", roster=(RosterEntry(agent="a-1", age_s=0.5, visiting=1),)),
    HeartbeatAnswer(unknown=("a-1",), heard={"a-2": 1.0}, moved={"a-3": "http://127.0.0.1:1"}),
]
PIECES = ("&a ", "*a", "!!int ", "!!timestamp ", "<<: ", "? ", "- ", "\t", "[", "{", "%", "\x85", "|")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def parsed(raw: Any) -> ExperimentSpec | None:
    """Returns the spec, or None if it is refused; any other error is raised."""
    try:
        spec = parse_spec(raw)
    except BadInput as error:
        refused = error
    else:
        assert parse_spec(spec.model_dump(mode="json")) == spec
        assert canonical(spec).encode()
        return spec
    check_message(refused)
    return None


@EXAMPLES
@given(raw=st.dictionaries(st.sampled_from([*ExperimentSpec.model_fields, "x"]), json_values, max_size=4) | json_values)
def test_any_json_is_parsed_as_a_spec_or_refused(raw: Any) -> None:
    parsed(raw)


@EXAMPLES
@given(which=st.integers(0, 10**6), random=st.randoms(use_true_random=False), times=st.integers(1, 3))
def test_a_mutated_spec_is_parsed_or_refused(which: int, random: Random, times: int) -> None:
    raw = SPECS[which % len(SPECS)]
    for _ in range(times):
        raw = other_value(raw, random)
    parsed(raw)


@EXAMPLES
@given(which=st.integers(0, 10**6), random=st.randoms(use_true_random=False))
def test_any_text_is_parsed_as_a_spec_or_refused(tmp_path: Path, which: int, random: Random) -> None:
    text = yaml.safe_dump(SPECS[which % len(SPECS)])
    for _ in range(random.randint(1, 4)):
        begin = random.randrange(len(text) + 1)
        piece = random.choice(PIECES)
        text = text[:begin] + piece + text[begin + random.choice((0, 0, 1, 9)) :]
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        read_spec(path)
    except BadInput as error:
        refused = error
    else:
        return
    check_message(refused)


@EXAMPLES
@given(which=st.integers(0, 10**6), random=st.randoms(use_true_random=False))
def test_mutated_registrations_and_heartbeats_are_read_or_refused(which: int, random: Random) -> None:
    record = SMALL[which % len(SMALL)]
    try:
        found = type(record).model_validate(other_value(record.model_dump(mode="json"), random))
    except ValidationError as error:
        check_message(explain(error, type(record)))
    else:
        type(record).model_validate_json(found.model_dump_json())


def test_the_mutations_cause_both_valid_specs_and_refusals() -> None:
    random = Random(5)
    ends = [parsed(other_value(raw, random)) is None for raw in SPECS for _ in range(20)]
    assert len(ends) / 10 < sum(ends) < len(ends)


@pytest.mark.parametrize("named", ["no_such_package", "os", ".relative", "tests.no_such", "json.decoder"])
def test_a_mistake_in_strata_algorithms_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("STRATA_PLUGINS", named)
    with pytest.raises(BadInput, match="STRATA_PLUGINS: ") as caught:
        load_algorithm("fedavg")
    assert "\n" not in caught.value.detail
