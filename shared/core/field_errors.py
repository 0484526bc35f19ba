"""What is wrong with a value, in the words of a spec rather than of Python: every error of pydantic as plain text.

All text about a `ValidationError` that a person reads is made here (a test looks for others).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from shared.core.formatting import did_you_mean

_WHOLE, _NUMBER, _TEXT, _LIST, _FIELDS, _YES_NO, _DATE, _URL = (
    "must be a whole number",
    "must be a number",
    "must be a text",
    "must be a list",
    "must be a mapping of names to values",
    "must be true or false",
    "must be a date with time",
    "must be a URL",
)
_CAUSES = {
    "missing": "a value is required",
    "extra_forbidden": "unknown field",
    "none_required": "must be null",
    "value_error": "{error}",
    "assertion_error": "{error}",
    "json_invalid": "no valid JSON: {error}",
    "recursion_loop": "contains itself",
    # numbers
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "has too many digits",
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _YES_NO,
    "bool_parsing": _YES_NO,
    # texts
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "string_type": _TEXT,
    "string_unicode": "must be a text in UTF-8",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have {max_length} or fewer characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "bytes_type": "must be bytes",
    "bytes_invalid_encoding": "must be in {encoding}",
    "datetime_type": _DATE,
    "datetime_parsing": _DATE,
    "datetime_from_date_parsing": _DATE,
    "url_type": _URL,
    "url_parsing": _URL,
    # collections
    "too_short": "must have {min_length} or more items",
    "too_long": "must have {max_length} or fewer items",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "iterable_type": _LIST,
    "dict_type": _FIELDS,
    "mapping_type": _FIELDS,
    "model_type": _FIELDS,
    "model_attributes_type": _FIELDS,
    "dataclass_type": _FIELDS,
    "invalid_key": "names must be texts",
    "union_tag_not_found": "must have the field {discriminator}",
    "is_instance_of": "must be of type {class}",
}
"""The text of each type of error; the types are those of `pydantic_core.core_schema.ErrorType`."""


def cause(found: Mapping[str, Any]) -> str:
    """Returns what one of `ValidationError.errors()` says, without the path of its field.

    A type of error that no field of ours has is named only.
    """
    kind, context = str(found["type"]), found.get("ctx", {})
    if kind == "union_tag_invalid":
        known = [name.strip(" '") for name in context["expected_tags"].split(",")]
        field, name = context["discriminator"].strip("'"), str(context["tag"])
        hint = did_you_mean(name, known) or ";"
        return f"unknown {field} {name!r:.100}{hint} known: {', '.join(known)}"
    text = _CAUSES.get(kind)
    if text is None:
        return f"not valid ({kind.replace('_', ' ')})"
    return text.format_map({name: f"{it:g}" if isinstance(it, float) else it for name, it in context.items()})


def alternatives(causes: Sequence[str]) -> str:
    """Joins the causes of a union's types by "or", with their common beginning once."""
    first, *others = dict.fromkeys(causes)
    return ", or ".join([first, *(text.removeprefix("must be ") for text in others)])


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Returns the path of the first wrong field, as pydantic has it, and the cause; the path of the whole is empty."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(map(str, first["loc"]))[:200], cause(first)[:500]


def told(error: Exception) -> str:
    """Returns an error's text; of a failed validation the path and the cause of its first fault."""
    if not isinstance(error, ValidationError):
        return str(error)
    path, why = first_fault(error)
    return f"{path}: {why}" if path else why
