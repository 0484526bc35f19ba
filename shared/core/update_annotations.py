"""Aggregation rules: annotations that say how each field of an update is aggregated on its way up.

`shared/federation/aggregation` adds up and averages updates by them.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from shared.core.records import Record
from shared.core.tensor_records import holds_model_state


@dataclass(frozen=True)
class Mean:
    """The field is averaged, as an exact sum and its weight that are added up at each tier.

    The field is a tensor, a float, a map of tensors, or any of these under group names (`by_group`).
    `per_position` and `by_group` do not go together.

    Attributes:
        weight: `samples` weighs a contribution by its number of training samples, `one` gives each the weight 1.
        per_position: name of another field, a map of 0/1 masks of the same shapes. Each position is averaged over the
            contributions whose mask is 1 there; it is 0 where no mask is. In the aggregate the mask is 1 wherever at
            least one contribution had a 1.
        by_group: the field is a map from group name to such a value; each group is averaged on its own.
    """

    weight: Literal["samples", "one"] = "samples"
    per_position: str | None = None
    by_group: bool = False


@dataclass(frozen=True)
class PerClient:
    """The field is a map from client id to a value; aggregation unites the maps and averages nothing."""


@dataclass(frozen=True)
class MaskOf:
    """The field is the 0/1 mask of the field that names it in `per_position`, with which it travels."""


@dataclass(frozen=True)
class KeptBy:
    """The field is a map of tensors that are 0 wherever the field of this name is 0; only the other positions travel.

    The named field is a map of tensors of the same shapes, of which likewise only these positions travel.
    """

    field: str


def rule_of(kind: type[Record], name: str) -> Mean | PerClient | MaskOf | None:
    """Returns the aggregation rule of a field, None if it has none."""
    rules = [item for item in kind.model_fields[name].metadata if isinstance(item, Mean | PerClient | MaskOf)]
    return rules[0] if rules else None


@lru_cache(maxsize=256)
def fields_with(kind: type[Record], rule_type: type[Any]) -> Mapping[str, Any]:
    """Returns field name -> aggregation rule, for the fields whose rule is of this type."""
    rules = {name: rule_of(kind, name) for name in kind.model_fields}
    return MappingProxyType({name: rule for name, rule in rules.items() if isinstance(rule, rule_type)})


@lru_cache(maxsize=256)
def coded_fields(kind: type[Record]) -> tuple[str, ...]:
    """Returns the fields of an update that the spec's codec compresses: model states averaged, but not per position."""
    averaged = fields_with(kind, Mean).items()
    return tuple(name for name, rule in averaged if not rule.per_position and holds_model_state(kind, name))


def can_be_mean(kind: type[Record]) -> bool:
    """Whether a mean and its two weights hold as much as the sum: not if positions or groups have own weights."""
    return not any(rule.per_position or rule.by_group for rule in fields_with(kind, Mean).values())


def names_clients(update: Record) -> bool:
    """Whether an update holds values of single clients, which count also where nothing was averaged."""
    return any(getattr(update, name) for name in fields_with(type(update), PerClient))


def clients_in(update: Record) -> set[str]:
    """Returns the ids of the clients of which an update holds values."""
    return {client for name in fields_with(type(update), PerClient) for client in getattr(update, name) or {}}


def unexpected_client(update: Record, clients: Collection[str]) -> tuple[str, str] | None:
    """Returns a field with a value of a client that is not among these, and that client's id; None if there is none."""
    for name in fields_with(type(update), PerClient):
        others = (getattr(update, name) or {}).keys() - clients
        if others:
            return name, min(others)
    return None


def check_update_type(kind: type[Record]) -> None:
    """Checks that every field of an update has an aggregation rule.

    Raises:
        TypeError: names the field without one, or with one that does not fit.
    """
    masks = fields_with(kind, MaskOf)
    with_rule = {*fields_with(kind, Mean), *fields_with(kind, PerClient), *masks}
    for name in kind.model_fields:
        if name not in with_rule:
            raise TypeError(f"{kind.__name__}.{name} has no aggregation rule: Mean, PerClient or MaskOf")
    for name, rule in fields_with(kind, Mean).items():
        if rule.per_position and rule.per_position not in masks:
            raise TypeError(f"{kind.__name__}.{name}: {rule.per_position} is not a MaskOf field")
        if rule.per_position and rule.by_group:
            raise TypeError(f"{kind.__name__}.{name}: per_position and by_group do not go together")


def averaged_type(kind: type[Record], name: str, rule: Mean) -> Any:
    """Returns the type that a field averages, without groups and `| None`: `float`, `Tensor` or a map."""
    annotation = _bare(kind.model_fields[name].annotation)
    if rule.by_group:
        annotation = _bare(typing.get_args(annotation)[1])
    return typing.get_origin(annotation) or annotation


def _bare(annotation: Any) -> Any:
    """Returns an annotation without `Annotated` and `| None`."""
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return _bare(args[0])
    if type(None) in args:
        return _bare(next(arg for arg in args if arg is not type(None)))
    return annotation
