"""Form fields of a schema, and entered values as a document without defaults."""

from __future__ import annotations

import pytest

from cloud_server.dashboard.forms import FormField, described, fields_of, help_line, parse_value, with_value
from shared.core.errors import BadInput
from shared.federation.registry import all_algorithms
from shared.federation.spec_parser import parse_spec
from shared.spec.experiment import ExperimentSpec
from shared.spec.fields import SELECTIONS

FIELDS = {field.name: field for field in fields_of(ExperimentSpec.model_json_schema())}


def test_each_field_of_the_spec_has_the_input_of_its_type() -> None:
    assert list(FIELDS) == list(ExperimentSpec.model_fields)
    kinds = {name: FIELDS[name].kind for name in ("name", "num_rounds", "lr", "partial_work", "select", "partition")}
    assert list(kinds.values()) == ["text", "integer", "number", "switch", "choice", "yaml"]
    assert (FIELDS["num_edges"].kind, FIELDS["num_edges"].nullable) == ("integer", True)
    assert FIELDS["select"].choices == SELECTIONS


def test_default_values_leave_the_document_empty() -> None:
    document: dict[str, object] = {}
    for field in FIELDS.values():
        if field.kind != "yaml":
            value = parse_value(field, field.default)
            document = with_value(document, (field.name,), field.default if value is None else value, field.default)
    assert document == {}


def test_every_parameter_of_every_algorithm_has_a_field() -> None:
    for algorithm in all_algorithms().values():
        names = [field.name for field in fields_of(algorithm.params.model_json_schema())]
        assert names == list(algorithm.params.model_fields), algorithm.name


def test_entered_values_become_a_spec() -> None:
    document = with_value({"name": "x"}, ("lr",), parse_value(FIELDS["lr"], "0.1"), FIELDS["lr"].default)
    line = parse_value(FIELDS["partition"], "{name: dirichlet, alpha: 0.3}")
    document = with_value(document, ("partition",), line, FIELDS["partition"].default)
    document = with_value(document, ("algorithm", "params", "mu"), 0.5, 0.0)
    assert document == {
        "name": "x",
        "lr": 0.1,
        "partition": {"name": "dirichlet", "alpha": 0.3},
        "algorithm": {"params": {"mu": 0.5}},
    }
    spec = parse_spec({**document, "algorithm": {"name": "fedprox", **document["algorithm"]}})
    assert (spec.lr, spec.algorithm.params) == (0.1, {"mu": 0.5})
    assert with_value(document, ("algorithm", "params", "mu"), 0.0, 0.0) == {
        k: document[k] for k in ("name", "lr", "partition")
    }


@pytest.mark.parametrize(
    ("value", "expected"), [("", None), (None, None), (3.0, 3), ("3", 3), ("1e3", 1000), ("2.5", 2.5)]
)
def test_integer_field_returns_integers(value: object, expected: object) -> None:
    parsed = parse_value(FIELDS["num_rounds"], value)
    assert (parsed, type(parsed)) == (expected, type(expected))


def test_error_of_invalid_yaml_names_the_field() -> None:
    with pytest.raises(BadInput, match="partition is not valid YAML"):
        parse_value(FIELDS["partition"], "{name: [")


@pytest.mark.parametrize("text", ["1e", "a", "-", "0,1"])
def test_what_is_no_number_is_refused(text: str) -> None:
    for name in ("num_rounds", "lr"):
        with pytest.raises(BadInput, match=f"{name} is not a number"):
            parse_value(FIELDS[name], text)


@pytest.mark.parametrize(
    ("schema", "bounds"),
    [
        ({"minimum": 1, "maximum": 1e6}, "1 to 1,000,000"),
        ({"exclusiveMinimum": 0.0, "maximum": 100.0}, "above 0, at most 100"),
        ({"minimum": 0, "exclusiveMaximum": 2**53}, "at least 0, below 9,007,199,254,740,992"),
        ({"minimum": 0.1}, "at least 0.1"),
        ({}, ""),
    ],
)
def test_bounds_are_told_in_words(schema: dict[str, float], bounds: str) -> None:
    options = [{"type": "number", **schema}, {"type": "null"}]
    for part in (options[0], {"anyOf": options}):
        (field,) = fields_of({"properties": {"x": part}})
        assert field.bounds == bounds


@pytest.mark.parametrize(
    ("field", "line"),
    [
        (FormField("x", "number", help="a rate.", bounds="above 0"), "A rate. Above 0."),
        (FormField("x", "text", help="its name; None means that it has none."), "Its name; empty: it has none."),
        (FormField("x", "text", help="its name. None means `x`."), "Its name. Empty: x."),
        (FormField("x", "text", help="its name; None: the file's."), "Its name; empty: the file's."),
        (FormField("x", "yaml", {"name": "a", "b": {"c": None}}, help="`it`."), "it. Empty: {b: {}, name: a}."),
        (FormField("x", "yaml", []), ""),
    ],
)
def test_help_says_what_a_field_is_what_an_empty_one_means_and_its_bounds(field: FormField, line: str) -> None:
    assert help_line(field) == line


@pytest.mark.parametrize("name", list(ExperimentSpec.model_fields))
def test_every_field_of_the_spec_has_help(name: str) -> None:
    assert len(FIELDS[name].help) > 10


@pytest.mark.parametrize("name", sorted(all_algorithms()))
def test_every_parameter_of_an_algorithm_has_help(name: str) -> None:
    fields = fields_of(all_algorithms()[name].params.model_json_schema())
    assert {field.name: field.help for field in fields if len(field.help) <= 10} == {}


def test_help_is_read_from_the_attributes_of_docstrings_and_a_description_of_its_own_comes_first() -> None:
    document = """A record.

        Text before.

        Attributes:
            one: first line
                and the second.
            two, three: both.

        Raises:
            four: no attribute.
        """
    texts = {"one": "first line and the second.", "two": "both.", "three": "both."}
    assert described(document) == texts
    assert described("No attributes.") == {}
    one_line = "mu: weight of the term; the paper tries 0.1;\n    and 1; temperature: T."
    assert described(one_line) == {"mu": "weight of the term; the paper tries 0.1; and 1.", "temperature": "T."}
    properties = {"one": {"type": "string"}, "two": {"type": "string", "description": "own"}, "five": {}}
    fields = fields_of({"properties": properties, "description": "Own.\n\nAttributes:\n    five: 5."}, document)
    assert [field.help for field in fields] == ["first line and the second.", "own", "5."]
