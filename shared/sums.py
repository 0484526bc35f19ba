"""Adding updates up, by what their fields say (`Mean`, `Each`), exactly and in any order.

    Update --(Fold.add)--> Folded --(Fold.merge, level upon level)--> Folded --(mean_of)--> Update

A `Folded` is the exact sum of some updates; adding sums up gives the sum of all. `mean_of` turns it back into an
update: an aggregate has the type of what it aggregates.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from pydantic import Field, ValidationError

from shared.errors import OutOfBound, WireError
from shared.records import Each, MaskOf, Mean, Record, Tensor, TensorMap
from shared.tensors import add_on_grid, check_bound, from_grid, grid_exponent

PARAMETER_BOUND = 2.0**7
BUFFER_BOUND = 2.0**12


class MeanSum(Record):
    """The sum of one averaged field (or of one group of it).

    Attributes:
        weight: sum of the weights.
        sums: whole grid steps by tensor name, float64; the name is empty for a lone tensor or number.
        positions: sum of the weights by position, float64, for fields averaged per position.
    """

    weight: int
    sums: TensorMap
    positions: TensorMap = Field(default_factory=dict)


class Folded(Record):
    """The exact sum of some updates.

    Attributes:
        n_updates: how many.
        n_samples: their training samples together.
        means: by field name, or `field/group`.
        each: by field name, then client id.
    """

    n_updates: int
    n_samples: int
    means: dict[str, MeanSum]
    each: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Grid:
    """Where sums are exact: up to a total weight, element bounds and which names are buffers."""

    total_weight: int
    buffer_names: frozenset[str] = frozenset()
    parameter_bound: float = PARAMETER_BOUND
    buffer_bound: float = BUFFER_BOUND

    def bound(self, name: str) -> float:
        """The largest element that a tensor of this name may hold."""
        return self.buffer_bound if name in self.buffer_names else self.parameter_bound

    def exponent(self, name: str) -> int:
        """The grid's exponent for a tensor of this name."""
        return grid_exponent(self.total_weight, self.bound(name))


@dataclass
class _Sum:
    weight: int = 0
    sums: TensorMap = field(default_factory=dict)
    positions: TensorMap = field(default_factory=dict)


class _Term(NamedTuple):
    """One averaged field of an update, or one group of it."""

    key: str
    tensors: TensorMap
    masks: TensorMap | None
    by_samples: bool


class Fold:
    """Takes updates and partial sums as they arrive. Not thread-safe: one owner, one thread."""

    def __init__(self, kind: type[Record], grid: Grid) -> None:
        self.kind, self.grid = kind, grid
        self.n_updates = self.n_samples = 0
        self._means: dict[str, _Sum] = {}
        self._each: dict[str, dict[str, Any]] = {name: {} for name in _fields(kind, Each)}

    def add(self, update: Record, n_samples: int, n_updates: int = 1) -> None:
        """Fold one update in.

        Args:
            update: of this fold's type.
            n_samples: how many samples it was trained on.
            n_updates: how many it stands for (an edge's mean of several).

        Raises:
            NotFinite, OutOfBound, WireError: naming field and tensor; the sum is then as it was before.
        """
        check_update(update, self.grid)
        terms = _terms(update)
        each = {name: getattr(update, name) for name in self._each}
        for term in terms:
            self._check_names(term.key, term.tensors)
            self._check_weight(term.key, n_samples if term.by_samples else n_updates)
        self._check_clients(each)
        for term in terms:
            self._add_term(term, n_samples if term.by_samples else n_updates)
        self._unite(each)
        self.n_updates += n_updates
        self.n_samples += n_samples

    def _add_term(self, term: _Term, weight: int) -> None:
        total = self._means.setdefault(term.key, _Sum())
        total.weight += weight
        for name, tensor in term.tensors.items():
            masked = tensor if term.masks is None else tensor * term.masks[name]
            add_on_grid(_zeros_like(total.sums, name, tensor), masked, weight, self.grid.exponent(name))
            if term.masks is not None:
                add_on_grid(_zeros_like(total.positions, name, tensor), term.masks[name], weight, 0)

    def merge(self, folded: Folded) -> None:
        """Fold a partial sum in.

        Raises:
            WireError: its fields or shapes are others, or a client id stands in both; nothing was then added.
        """
        known = {*_fields(self.kind, Mean)}
        for key, part in folded.means.items():
            if key.partition("/")[0] not in known:
                raise WireError(f"{self.kind.__name__} averages no field {key!r}")
            self._check_names(key, part.sums)
            self._check_weight(key, part.weight)
            for name, steps in [*part.sums.items(), *part.positions.items()]:
                if steps.dtype != torch.float64:
                    raise WireError(f"{key} {name}: sums are float64, not {steps.dtype}")
        self._check_clients(folded.each)
        for key, part in folded.means.items():
            total = self._means.setdefault(key, _Sum())
            total.weight += part.weight
            for into, tensors in ((total.sums, part.sums), (total.positions, part.positions)):
                for name, steps in tensors.items():
                    _zeros_like(into, name, steps).add_(steps)
        self._unite(folded.each)
        self.n_updates += folded.n_updates
        self.n_samples += folded.n_samples

    def _check_names(self, key: str, terms: TensorMap) -> None:
        before = self._means[key].sums if key in self._means else terms
        if before.keys() != terms.keys():
            raise WireError(
                f"{key}: some contributions hold {sorted(before.keys() ^ terms.keys())[0]!r}, others not"
            )
        for name, tensor in terms.items():
            if tensor.shape != before[name].shape:
                raise WireError(
                    f"{key} {name} is {tuple(tensor.shape)}, before it was {tuple(before[name].shape)}"
                )

    def _check_weight(self, key: str, weight: int) -> None:
        before = self._means[key].weight if key in self._means else 0
        if weight < 0 or before + weight > self.grid.total_weight:
            raise OutOfBound(
                f"{key}: weights add up to {before + weight}, sums are exact up to {self.grid.total_weight}"
            )

    def _check_clients(self, each: Mapping[str, Mapping[str, Any]]) -> None:
        for name, values in each.items():
            if name not in self._each:
                raise WireError(f"{self.kind.__name__} collects no field {name!r}")
            twice = self._each[name].keys() & values.keys()
            if twice:
                raise WireError(f"{name} came twice from {sorted(twice)[0]}")

    def _unite(self, each: Mapping[str, Mapping[str, Any]]) -> None:
        for name, values in each.items():
            self._each[name].update(values)

    def result(self) -> Folded:
        """The sum so far; names and clients in sorted order, so that the bytes do not depend on arrival."""
        means = {
            key: MeanSum(weight=total.weight, sums=total.sums, positions=total.positions)
            for key, total in sorted(self._means.items())
        }
        each = {name: dict(sorted(values.items())) for name, values in sorted(self._each.items())}
        return Folded(n_updates=self.n_updates, n_samples=self.n_samples, means=means, each=each)


def mean_of(
    folded: Folded, kind: type[Record], grid: Grid, *, model: Mapping[str, Tensor] | None = None
) -> Record | None:
    """The mean update of a sum, None if nothing was folded in.

    Raises:
        WireError: the sum does not fit the update's type or the run's model.
    """
    if not folded.n_updates:
        return None
    values: dict[str, Any] = {}
    for name, how in _fields(kind, Mean).items():
        parts = _parts_of(folded.means, name, how)
        shape_of_field = _inner(kind.model_fields[name].annotation, how)
        found = {group: _restored(part, shape_of_field, grid) for group, part in parts.items()}
        if how.by_group:
            values[name] = found
        elif found:
            values[name] = found[""]
        if how.per_position:
            values[how.per_position] = {
                key: (weights > 0).to(torch.float32) for key, weights in parts[""].positions.items()
            }
    for name in _fields(kind, Each):
        values[name] = folded.each.get(name, {})
    try:
        return kind.model_validate(values, context={"model": model})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise WireError(f"{kind.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def check_update(update: Record, grid: Grid) -> None:
    """Refuse an update of which no exact sum can be made, before it travels.

    Raises:
        NotFinite, OutOfBound, WireError: naming field and tensor.
    """
    for term in _terms(update):
        for name, tensor in term.tensors.items():
            check_bound(tensor, grid.bound(name), f"{term.key} {name}".strip())
            if term.masks is not None and (name not in term.masks or term.masks[name].shape != tensor.shape):
                raise WireError(f"{term.key} {name} has no mask of its shape")


# ---- what a type says of its fields


def mark_of(kind: type[Record], name: str) -> Mean | Each | MaskOf | None:
    """How a field travels up."""
    marks = [item for item in kind.model_fields[name].metadata if isinstance(item, Mean | Each | MaskOf)]
    return marks[0] if marks else None


def _fields(kind: type[Record], mark: type[Any]) -> dict[str, Any]:
    """Field name -> its mark, for the fields that carry one of this class."""
    found = {name: mark_of(kind, name) for name in kind.model_fields}
    return {name: how for name, how in found.items() if isinstance(how, mark)}


def can_be_mean(kind: type[Record]) -> bool:
    """Whether a mean with its two weights says as much as the sum: not where positions or groups weigh apart."""
    return not any(how.per_position or how.by_group for how in _fields(kind, Mean).values())


def check_update_type(kind: type[Record]) -> None:
    """Every field must say how it travels up.

    Raises:
        TypeError: names the field that does not.
    """
    marked = {*_fields(kind, Mean), *_fields(kind, Each), *_fields(kind, MaskOf)}
    for name in kind.model_fields:
        if name not in marked:
            raise TypeError(f"{kind.__name__}.{name} does not say how it travels up: Mean, Each or MaskOf")
    for name, how in _fields(kind, Mean).items():
        if how.per_position and how.per_position not in _fields(kind, MaskOf):
            raise TypeError(f"{kind.__name__}.{name}: {how.per_position} is no MaskOf field")


def _terms(update: Record) -> list[_Term]:
    terms = []
    for name, how in _fields(type(update), Mean).items():
        value = getattr(update, name)
        if value is None:
            continue
        masks = getattr(update, how.per_position) if how.per_position else None
        groups = {f"{name}/{group}": part for group, part in value.items()} if how.by_group else {name: value}
        by_samples = how.weight == "samples"
        terms += [_Term(key, _as_map(part), masks, by_samples) for key, part in groups.items()]
    return terms


def _as_map(value: Any) -> TensorMap:
    if isinstance(value, Mapping):
        return dict(value)
    return {"": value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)}


def _inner(annotation: Any, how: Mean) -> Any:
    """Map, Tensor or float: what the field averages, its group layer and `| None` taken off."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if how.by_group:
        return _inner(typing.get_args(annotation)[1], Mean())
    options = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
    if type(None) in typing.get_args(annotation):
        return _inner(options[0], how)
    return typing.get_origin(annotation) or annotation


def _parts_of(means: Mapping[str, MeanSum], name: str, how: Mean) -> dict[str, MeanSum]:
    if how.by_group:
        return {key.partition("/")[2]: part for key, part in means.items() if key.startswith(f"{name}/")}
    return {"": means[name]} if name in means else {}


def _restored(part: MeanSum, kind: Any, grid: Grid) -> TensorMap | Tensor | float:
    means = {}
    for name, steps in part.sums.items():
        weight = part.positions.get(name, part.weight)
        dtype = torch.float64 if kind is float else torch.float32
        means[name] = from_grid(steps, weight, grid.exponent(name), dtype)
    if kind is dict:
        return means
    return means[""].item() if kind is float else means[""]


def _zeros_like(into: TensorMap, name: str, term: Tensor) -> Tensor:
    if name not in into:
        into[name] = torch.zeros(term.shape, dtype=torch.float64)
    return into[name]
