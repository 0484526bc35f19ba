"""Errors about fields are plain text: no phrase of pydantic is left in any of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError
from pydantic_core import PydanticKnownError, core_schema

from shared.core.errors import StrataError
from shared.core.field_errors import _CAUSES, cause, told
from shared.core.records import Record
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_as
from shared.spec.ends import Stop
from shared.spec.run import RunSpec
from shared.wire.codec_settings import CompressionSpec

ROOT = Path(__file__).parents[3]
TYPES: tuple[Any, ...] = get_args(core_schema.ErrorType)
CONTEXT = {
    **dict.fromkeys(("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "actual_length", "length"), 3),
    **dict.fromkeys(("max_digits", "decimal_places", "whole_digits", "tz_expected", "tz_actual"), 4),
    **dict.fromkeys(("field_type", "class_name", "class", "method_name", "error_type", "attribute"), "Thing"),
    **dict.fromkeys(("error", "encoding", "encoding_error", "expected_schemes", "pattern"), "why"),
    "expected": "'a' or 'b'",
    "discriminator": "'name'",
    "tag": "drichlet",
    "expected_tags": "'iid', 'dirichlet'",
}
OF_PYDANTIC = re.compile(
    r"Input |inputs? should|Field required|Unable to|Value error|Extra inputs|(?:String|Tuple|List|Data) should"
    r"|Assertion failed|\[type=|pydantic|validation error|not valid \("
)
EXAMPLES = ("nvflare_stragglers", "vibration")
WRONG: tuple[Any, ...] = (
    *(None, "", "?", "x" * 5000, -1, 0, 2.5, 1e300, 10**400, float("nan"), float("inf"), True),
    *([], [None], ["?", "?"], [-1.5] * 50, [[]], {}, {"?": 1}, {"name": "?"}, {"name": None}, {"name": []}, {1: 2}),
    *({"kind": "?"}, {"params": 3}, {"name": "iid", "alpha": "?"}, {"seed": {}}, object()),
)


@pytest.mark.parametrize("kind", sorted(_CAUSES))
def test_the_text_of_a_type_of_error_is_ours_and_complete(kind: str) -> None:
    assert kind in TYPES, "pydantic knows no such type of error"
    said = cause({"type": kind, "ctx": PydanticKnownError(kind, CONTEXT).context or {}})  # type: ignore[arg-type]
    assert said
    assert not re.search(r"[{}]", said)
    assert not OF_PYDANTIC.search(said)
    assert cause({"type": "uuid_version", "ctx": {}}) == "not valid (uuid version)", "another type of error is named"


def test_an_unknown_field_and_an_unknown_name_say_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRATA_PLUGINS", raising=False)
    of_data = (
        "background, columns, csv, domains, faults, file, group, kind, layout, missing, n_test, n_train, name, size, "
        "split, standardise_target, target, value_range"
    )
    known = {"model": ("hidden", "name, projection, width"), "data": ("samples", of_data)}
    for part, (field, fields) in known.items():
        with pytest.raises(StrataError) as refused:
            parse_as({part: {field: 48}}, RunSpec)
        cause = f"unknown field; the fields of `{part}` are {fields}; parameters stand in `{part}.params`"
        assert refused.value.detail == f"{part}.{field}: {cause}"
    with pytest.raises(StrataError, match=r"unknown model 'sensor_net'.*; STRATA_PLUGINS names packages that bring"):
        parse_as({"model": "sensor_net"}, RunSpec)


class Pair(Record):
    left: int
    right: int = 0


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (CompressionSpec, '{"up":{"name":"topp_k"}}', "up: unknown name 'topp_k'; did you mean 'topk'? known: fp16, "),
        (Stop, '{"accuracy":1.5}', "accuracy: must be at most 1"),
        (Pair, "[]", "must be a mapping of names to values"),
        (Pair, "{}", "left: a value is required"),
        (Pair, "{", "no valid JSON: EOF"),
    ],
)
def test_a_fault_is_told_in_words_with_its_path(kind: type[Record], given: str, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(given)
    assert told(caught.value).startswith(said)
    assert "\n" not in told(caught.value)


# ---- every field of a spec


def _refusal(attempt: Callable[..., object], *given: object) -> StrataError | None:
    try:
        attempt(*given)
    except StrataError as error:
        return error
    return None


def _changed(value: Any) -> Iterator[Any]:
    """A spec with one of its values, at any depth, replaced by each wrong one, or a wrong one added."""
    yield from WRONG
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: other} for other in _changed(inner))
        yield {**value, "unheard_of": 1}
    if isinstance(value, list) and value:
        yield from ([other, *value[1:]] for other in _changed(value[0]))


def _all_fields() -> dict[str, Any]:
    """A spec that names every field, also those that the files leave at their defaults."""
    given = {"algorithm": "fedavg", "data": "digits", "model": "mlp", "partition": {"name": "dirichlet", "alpha": 0.5}}
    found: dict[str, Any] = json.loads(parse_as(given, RunSpec).model_dump_json())
    return found


@pytest.mark.parametrize(
    "raw",
    [_all_fields(), *(yaml.safe_load((ROOT / f"experiments/{name}.yaml").read_text()) for name in EXAMPLES)],
    ids=["all fields", *EXAMPLES],
)
def test_no_phrase_of_pydantic_is_in_an_error_about_a_spec(raw: dict[str, Any]) -> None:
    refused = [error.detail for spec in _changed(raw) if (error := _refusal(parse_as, spec, RunSpec))]
    assert len(refused) > 20 * len(raw)
    assert [text for text in refused if OF_PYDANTIC.search(text)] == []


@pytest.mark.parametrize("name", ["bofl", "dtpfl", "es_afl", "fedser", "lafl_cpn", "fedbuff"])
def test_no_phrase_of_pydantic_is_in_an_error_about_a_parameter(name: str) -> None:
    algorithm = load_algorithm(name)
    tried = [{field: value} for field in algorithm.params.model_fields for value in WRONG]
    refused = [error for params in tried if (error := _refusal(algorithm.parse_params, params))]
    assert len(refused) > len(tried) / 2
    assert all((error.field or "").startswith("algorithm.params") for error in refused)
    assert [error.detail for error in refused if OF_PYDANTIC.search(error.detail)] == []
