"""Validation of input by pydantic: types of fields, checks with hints, and its errors as one `BadInput`.

`explain` reports the first error only, with the path of the field and, for an unknown one, the nearest known name.
The checks of a spec are in `shared/spec/experiment.py` and `shared/federation/spec_parser.py`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from shared.core.errors import BadInput
from shared.core.field_errors import alternatives, cause
from shared.core.formatting import did_you_mean

T = TypeVar("T")
MOST_NAMED = 20
"""Most fields of an object that an error lists."""
MAX_ERRORS = 1000
"""Of more errors only the number is reported: pydantic builds all of them before it returns the first."""


# ---- types and checks of fields


def no_repeats(values: tuple[T, ...]) -> tuple[T, ...]:
    """Refuses a list with a repeated item; a validator of fields.

    Raises:
        ValueError: names the item.
    """
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value} comes twice")
    return values


def visible(text: str) -> str:
    """Refuses a text with a character that is not seen, or one of nothing but spaces; a validator of fields.

    Refused are control characters, line ends, spaces other than the common one, and what Unicode calls format
    characters: those of no width, and those that reverse the writing direction.

    Raises:
        ValueError: names the character.
    """
    for character in text:
        if not character.isprintable():
            name = unicodedata.name(character, "a control character")
            raise ValueError(f"U+{ord(character):04X} ({name}) cannot be seen; use letters, digits, signs and spaces")
    if text and not text.strip():
        raise ValueError("there are only spaces in it")
    return text


VisibleText = Annotated[str, AfterValidator(visible)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Names = Annotated[tuple[Name, ...], Field(max_length=20), AfterValidator(no_repeats)]

ID = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Id = Annotated[str, Field(pattern=ID)]


def check_known(kind: str, name: object, known: Iterable[str]) -> None:
    """Refuses a name that is not among the known ones.

    Raises:
        ValueError: lists the known names, and the most similar one first.
    """
    names = sorted(known)
    if name is None:
        raise ValueError(f"{kind} without a `name`; known: {', '.join(names)}")
    if name not in names:
        hint = did_you_mean(str(name), names) or ";"
        raise ValueError(f"unknown {kind} {name!r:.100}{hint} known: {', '.join(names)}")


# ---- errors


def explain(error: ValidationError, kind: type[BaseModel], prefix: Sequence[str] = ()) -> BadInput:
    """Returns the first error of a validation as `BadInput` with the field's path.

    Args:
        error: of the validation.
        kind: the validated type.
        prefix: where the validated value stands in the user's input; the path begins with it.
    """
    if error.error_count() > MAX_ERRORS:
        return BadInput(f"{error.error_count()} fields are wrong", field=".".join(prefix) or None)
    errors = error.errors(include_url=False, include_input=False)
    # An unknown field is often why another is missing.
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
    steps, known = _locate(kind, first["loc"])
    path = ".".join([*prefix, *steps])[:200]
    reported = [first]
    if first["loc"] and steps[-1:] != [str(first["loc"][-1])]:  # a union: one error for each of its types
        reported = [found for found in errors if found["loc"][:-1] == first["loc"][:-1]]
    message = alternatives([cause(found) for found in reported])[:500]
    if first["type"] == "extra_forbidden":
        inside = ".".join([*prefix, *steps[:-1]])
        message += did_you_mean(str(first["loc"][-1]), known) or _what_stands_in(inside, known)
    more = f" (and {error.error_count() - len(reported)} more)" if error.error_count() > len(reported) else ""
    word = message.partition(" ")[0].rstrip(":")  # the message of a check across fields begins with the one at fault
    if not steps and word.partition(".")[0] in kind.model_fields:
        return BadInput(f"{message}{more}", field=".".join([*prefix, word]))
    return BadInput(f"{path}: {message}{more}" if path else f"{message}{more}", field=path or None)


def _what_stands_in(path: str, known: Sequence[str]) -> str:
    """Returns the fields of an object inside the input, in words; those of the whole input are too many."""
    if not path:
        return ""
    fields = [name for name in known if name != "params"]
    hint = f"; parameters stand in `{path}.params`" if "params" in known else ""
    return (f"; the fields of `{path}` are {', '.join(fields)}" if 1 < len(fields) <= MOST_NAMED else "") + hint


def _locate(kind: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """Returns a field's path, and the known names beside it.

    pydantic's `loc` also names the chosen type of a union; the path does not.
    """
    schema = _schema_of(kind)
    nodes, path, beside = _options(schema, schema), list[str](), list[str]()
    for part in loc:
        beside = sorted({name for node in nodes for name in node.get("properties", ())})
        chosen = [node for node in nodes if _type_name(node) == part]
        if chosen and part not in beside:
            nodes = chosen
            continue
        if isinstance(part, str) and nodes and not any(map(_has_fields, nodes)):
            continue
        path.append(str(part))
        below = [node["items"] for node in nodes if isinstance(part, int) and "items" in node]
        below += [node["properties"][part] for node in nodes if part in node.get("properties", ())]
        nodes = [option for node in below for option in _options(node, schema)]
    return path, beside


@lru_cache(maxsize=64)
def _schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Returns the JSON schema of a model, which takes longer to make than a spec takes to check; do not change it."""
    return kind.model_json_schema()


def _options(node: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the types that a node of a JSON schema allows: references resolved, unions taken apart."""
    if "$ref" in node:
        return _options(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    several = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    return [option for item in several for option in _options(item, schema)] if several else [node]


def _has_fields(node: dict[str, Any]) -> bool:
    """Whether the value at a node of a JSON schema is an object."""
    return "enum" not in node and node.get("type", "object") == "object"


def _type_name(node: dict[str, Any]) -> Any:
    """Returns the name of a union's type as pydantic writes it into `loc`."""
    return node.get("properties", {}).get("name", {}).get("const", node.get("type"))
