"""The grid of a sweep: `key=v1,v2` for each key, and every combination of their values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.core import parsing
from shared.core.errors import BadInput
from shared.core.records import Record
from shared.results.spec_differences import described, text
from shared.spec.run import RunSpec
from strata.spec_files import SpecSource, read_spec, written

MAX_COMBINATIONS = 1000
"""Largest number of combinations of a sweep: a cloud keeps as many runs by default."""

Finish = Callable[[RunSpec], RunSpec]
Axis = tuple[str, list[str]]
"""A dotted key, and the distinct texts of its values."""
_OPENING, _CLOSING, _QUOTES = "[{", "]}", "\"'"


@dataclass(frozen=True)
class SpecifiedCombination:
    """One combination.

    Attributes:
        values: the values of the keys that have several, as YAML reads them.
        spec: the validated spec with these values.
    """

    values: dict[str, Any]
    spec: RunSpec


def axes_of(arguments: Iterable[str]) -> list[Axis]:
    """The axes in arguments `key=v1,v2` with dotted keys and YAML values; text in brackets or quotes is one value.

    Raises:
        BadInput: an argument has another form, or names a value twice.
    """
    return [_axis(*_parsed(argument)) for argument in arguments]


def axes_in(values: Mapping[str, Any]) -> list[Axis]:
    """The axes in values by dotted key: of a list, tuple or array each item is a value; anything else is one value.

    Raises:
        BadInput: a list is empty, names a value twice, or holds one that no spec can have.
    """
    return [_axis(key, [written(key, each) for each in _several(value)]) for key, value in values.items()]


def _several(value: Any) -> Iterable[Any]:
    """The values of a key, or one more than a sweep can have."""
    if isinstance(value, str | bytes | Mapping | Record) or not isinstance(value, Iterable):
        return [value]
    return itertools.islice(value, MAX_COMBINATIONS + 1)


def combinations_of(source: SpecSource, arguments: Sequence[str], finish: Finish) -> list[SpecifiedCombination]:
    """The combinations that the arguments of a command name: `grid_of` their axes."""
    return grid_of(source, axes_of(arguments), finish)


def grid_of(source: SpecSource, axes: Sequence[Axis], finish: Finish) -> list[SpecifiedCombination]:
    """All combinations of the values, the last key changing fastest; each is a valid spec.

    Args:
        source: the spec.
        axes: the keys and their values.
        finish: fills in the fields that depend on where the spec runs.

    Raises:
        BadInput: the spec of a combination is invalid, or two combinations are equal; names them.
    """
    keys = [key for key, _ in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise BadInput(f"{key} is given twice; write all its values in one argument, {key}=v1,v2", field=key)
    size = 1
    for _, texts in axes:
        size *= len(texts)
    if size > MAX_COMBINATIONS:
        raise BadInput(f"{size} combinations; at most {MAX_COMBINATIONS} are allowed")
    swept = {key for key, texts in axes if len(texts) > 1}
    choices = itertools.product(*(texts for _, texts in axes))
    found = [_combination(source, dict(zip(keys, choice, strict=True)), swept, finish) for choice in choices]
    first: dict[str, SpecifiedCombination] = {}
    for combination in found:
        same = first.setdefault(combination.spec.digest(), combination)
        if same is not combination:  # 1 and 1.0 are two texts and one rate
            raise BadInput(f"{described(same.values)} and {described(combination.values)} make the same spec")
    return found


def _combination(source: SpecSource, chosen: dict[str, str], swept: set[str], finish: Finish) -> SpecifiedCombination:
    overrides = [f"{key}={value}" for key, value in chosen.items()]
    values = {key: _value(key, value) for key, value in chosen.items() if key in swept}
    try:
        spec = finish(read_spec(source, overrides))
    except BadInput as error:
        where = f" (with {described(values)})" if values else ""
        raise BadInput(f"{error.detail}{where}", field=error.field) from None
    return SpecifiedCombination(values, spec)


def _parsed(argument: str) -> Axis:
    """The key of an argument and the texts of its values."""
    key, found, rest = argument.partition("=")
    if not found or not key:
        raise BadInput(f"a key to sweep has the form key=v1,v2, not {argument!r}")
    return key, [part.strip() for part in _split(rest)]


def _axis(key: str, texts: list[str]) -> Axis:
    """A key with its values, of which none is missing or comes twice."""
    if not texts or not all(texts):
        raise BadInput(f"{key}: a value is missing in {key}={','.join(texts)}", field=key)
    seen = set()
    for each in texts:
        value = text(_value(key, each))
        if value in seen:
            raise BadInput(f"{key}: {value} is given twice", field=key)
        seen.add(value)
    return key, texts


def _value(key: str, written: str) -> Any:
    return parsing.load(written, f"the value of {key}")


def _split(written: str) -> list[str]:
    """Split at the commas outside brackets and quotes; a quote opens only at the beginning of a value."""
    parts, depth, quote = [""], 0, ""
    for letter in written:
        if letter == "," and not depth and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES and not parts[-1].strip():
            quote = letter
        depth += (letter in _OPENING and not quote) - (letter in _CLOSING and not quote)
        parts[-1] += letter
    return parts
