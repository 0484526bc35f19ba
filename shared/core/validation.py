"""What pydantic found wrong, as one error that names the field and, for an unknown one, the nearest that is known.

Lists of names as fields, and hints at what somebody may have meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from shared.core.errors import BadInput

T = TypeVar("T")

ELSEWHERE = {
    "learning_rate": "lr",
    "rounds": "num_rounds",
    "n_rounds": "num_rounds",
    "epochs": "local_epochs",
    "clients": "num_devices",
    "num_clients": "num_devices",
    "dataset": "data",
}
"""What other tools call some fields of a spec, and their names here."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known name means the same or is like this one, else nothing."""
    names = sorted(known)
    same = ELSEWHERE.get(name)
    near = [same] if same in names else difflib.get_close_matches(name[:100], names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def no_repeats(values: tuple[T, ...]) -> tuple[T, ...]:
    """Refuse a list in which something comes twice; a validator of fields.

    Raises:
        ValueError: naming what does.
    """
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{value} comes twice")
    return values


def check_known(kind: str, name: object, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones, which are listed.

    Raises:
        ValueError: with the nearest of them first.
    """
    names = sorted(known)
    if name is None:
        raise ValueError(f"{kind} without a `name`; known: {', '.join(names)}")
    if name not in names:
        raise ValueError(f"unknown {kind} {name!r:.100}{did_you_mean(str(name), names)}; known: {', '.join(names)}")


MAX_ERRORS = 1000
"""Of more faults than these none is described."""


def explain(error: ValidationError, kind: type[BaseModel], prefix: Sequence[str] = ()) -> BadInput:
    """The first error of a validation of `kind` as `BadInput` with the field's path, which begins with `prefix`."""
    if error.error_count() > MAX_ERRORS:
        return BadInput(f"{error.error_count()} fields are wrong", field=".".join(prefix) or None)
    errors = error.errors(include_url=False, include_input=False)
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])  # it explains others
    below, known = _place(kind, first["loc"])
    path = ".".join([*prefix, *below])[:200]
    told = [first]
    if first["loc"] and below[-1:] != [str(first["loc"][-1])]:  # one of several kinds: what each of them wants
        told = [found for found in errors if found["loc"][:-1] == first["loc"][:-1]]
    message = _joined([found["msg"].removeprefix("Value error, ") for found in told])[:500]
    if first["type"] == "extra_forbidden":
        message = "unknown field" + did_you_mean(str(first["loc"][-1]), known)
    more = f" (and {error.error_count() - len(told)} more)" if error.error_count() > len(told) else ""
    word = message.partition(" ")[0].rstrip(":")  # fields that do not fit together: the one at fault is named first
    if not below and word in kind.model_fields:
        return BadInput(f"{message}{more}", field=".".join([*prefix, word]))
    return BadInput(f"{path}: {message}{more}" if path else f"{message}{more}", field=path or None)


def _joined(messages: Sequence[str]) -> str:
    """What is wanted, where it may be one of several: what all begin with is said once."""
    first, *others = dict.fromkeys(messages)
    return ", or ".join([first, *(message.removeprefix("Input should be ") for message in others)])


def _place(kind: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """A field's path, and the known names beside it.

    Where a value may be of several kinds, pydantic puts the kind's name into the path: here it is left out.
    """
    schema = kind.model_json_schema()
    places, path, beside = _options(schema, schema), list[str](), list[str]()
    for part in loc:
        beside = sorted({name for place in places for name in place.get("properties", ())})
        chosen = [place for place in places if _kind_of(place) == part]
        if chosen and part not in beside:
            places = chosen
            continue
        if isinstance(part, str) and places and not any(map(_has_names, places)):
            continue
        path.append(str(part))
        found = [place["items"] for place in places if isinstance(part, int) and "items" in place]
        found += [place["properties"][part] for place in places if part in place.get("properties", ())]
        places = [option for item in found for option in _options(item, schema)]
    return path, beside


def _options(place: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What may stand at a place of a JSON schema: what it refers to, or any of several kinds."""
    if "$ref" in place:
        return _options(schema["$defs"][place["$ref"].rpartition("/")[2]], schema)
    several = [*place.get("anyOf", ()), *place.get("oneOf", ())]
    return [option for item in several for option in _options(item, schema)] if several else [place]


def _has_names(place: dict[str, Any]) -> bool:
    """Whether what stands at a place of a JSON schema has parts with names."""
    return "enum" not in place and place.get("type", "object") == "object"


def _kind_of(place: dict[str, Any]) -> Any:
    """The name of one of several kinds, as pydantic puts it into a path."""
    return place.get("properties", {}).get("name", {}).get("const", place.get("type"))


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Names = Annotated[tuple[Name, ...], Field(max_length=20), AfterValidator(no_repeats)]

ID = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Id = Annotated[str, Field(pattern=ID)]
