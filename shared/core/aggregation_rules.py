"""What a type says of its fields: how each of them travels up."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from shared.core.records import Record, holds_model_state


@dataclass(frozen=True)
class Mean:
    """The field is averaged: an exact sum with its weight, level upon level.

    The field is a tensor, a float, a map of tensors, or any of these under group names (`by_group`).
    `per_position` and `by_group` do not go together.

    Attributes:
        weight: `samples` weighs a contribution by its number of training samples, `one` gives each the weight 1.
        per_position: name of a sibling field, a map of 0/1 masks of the same shapes: a position is averaged over
            the contributions whose mask is 1 there (and is 0 where nobody's is). In the aggregate the sibling
            is 1 where anybody contributed.
        by_group: the field is a map from group name to what is averaged; each group is averaged by itself.
    """

    weight: Literal["samples", "one"] = "samples"
    per_position: str | None = None
    by_group: bool = False


@dataclass(frozen=True)
class PerClient:
    """The field is a map from client id to a value; maps are united on the way up, nothing is averaged."""


@dataclass(frozen=True)
class MaskOf:
    """The field is the 0/1 mask of the sibling that names it in `per_position`; it does not travel by itself."""


@dataclass(frozen=True)
class KeptBy:
    """Of the field, a map of tensors, only the positions travel at which the sibling of this name is not 0.

    It is 0 at all others. So are the sibling's, of the same shapes.
    """

    field: str


def rule_of(kind: type[Record], name: str) -> Mean | PerClient | MaskOf | None:
    """How a field travels up."""
    marks = [item for item in kind.model_fields[name].metadata if isinstance(item, Mean | PerClient | MaskOf)]
    return marks[0] if marks else None


@lru_cache(maxsize=256)
def fields_with(kind: type[Record], mark: type[Any]) -> Mapping[str, Any]:
    """Field name -> its mark, for the fields that carry one of this class."""
    found = {name: rule_of(kind, name) for name in kind.model_fields}
    return MappingProxyType({name: how for name, how in found.items() if isinstance(how, mark)})


@lru_cache(maxsize=256)
def coded_fields(kind: type[Record]) -> tuple[str, ...]:
    """The fields of an update whose parameters the spec's codec shortens: those averaged, but not by position."""
    averaged = fields_with(kind, Mean).items()
    return tuple(name for name, how in averaged if not how.per_position and holds_model_state(kind, name))


def can_be_mean(kind: type[Record]) -> bool:
    """Whether a mean with its two weights says as much as the sum: not where positions or groups weigh apart."""
    return not any(how.per_position or how.by_group for how in fields_with(kind, Mean).values())


def names_clients(update: Record) -> bool:
    """Whether an update says something of single clients, which counts though nothing was averaged."""
    return any(getattr(update, name) for name in fields_with(type(update), PerClient))


def unexpected_client(update: Record, clients: Collection[str]) -> tuple[str, str] | None:
    """A field of an update that holds a value of another client than these, and that client's id; None: none does."""
    for name in fields_with(type(update), PerClient):
        others = (getattr(update, name) or {}).keys() - clients
        if others:
            return name, min(others)
    return None


def check_update_type(kind: type[Record]) -> None:
    """Every field must say how it travels up.

    Raises:
        TypeError: names the field that does not.
    """
    masks = fields_with(kind, MaskOf)
    marked = {*fields_with(kind, Mean), *fields_with(kind, PerClient), *masks}
    for name in kind.model_fields:
        if name not in marked:
            raise TypeError(f"{kind.__name__}.{name} does not say how it travels up: Mean, Each or MaskOf")
    for name, how in fields_with(kind, Mean).items():
        if how.per_position and how.per_position not in masks:
            raise TypeError(f"{kind.__name__}.{name}: {how.per_position} is no MaskOf field")
        if how.per_position and how.by_group:
            raise TypeError(f"{kind.__name__}.{name}: per_position and by_group do not go together")


def averaged_type(kind: type[Record], name: str, how: Mean) -> Any:
    """`float`, `Tensor` or a map: what a field averages, its group layer and `| None` taken off."""
    annotation = _bare(kind.model_fields[name].annotation)
    if how.by_group:
        annotation = _bare(typing.get_args(annotation)[1])
    return typing.get_origin(annotation) or annotation


def _bare(annotation: Any) -> Any:
    """An annotation without its `Annotated` and its `| None`."""
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return _bare(args[0])
    if type(None) in args:
        return _bare(next(arg for arg in args if arg is not type(None)))
    return annotation
