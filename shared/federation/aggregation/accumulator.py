"""`Accumulator`: adds up updates and partial sums as they arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from shared.core.errors import OutOfBound, WireError
from shared.core.exact_sum import add_all_fixed_point, add_fixed_point, check_bound, digit_below, digits_above, exceeds
from shared.core.records import Record
from shared.core.tensor_records import Tensor, TensorMap, copy_tensors
from shared.core.tensors import private_copies
from shared.core.update_annotations import Mean, PerClient, fields_with
from shared.federation.aggregation.mean import check_finite, check_partial_sum
from shared.federation.aggregation.partial_sum import BELOW, LARGEST, FixedPoint, MeanSum, PartialSum


@dataclass
class _Sum:
    """The running sum of one averaged field, or of one group of it.

    Attributes:
        weight: sum of the weights so far.
        sums, positions, digits: as in `MeanSum`.
        borrowed: the tensors still belong to the partial sum that came first and must not be written.
    """

    weight: int = 0
    sums: TensorMap = field(default_factory=dict)
    positions: TensorMap = field(default_factory=dict)
    digits: dict[int, TensorMap] = field(default_factory=dict)
    borrowed: bool = False

    def add(self, part: MeanSum, *, take: bool) -> None:
        """Adds a partial sum, the first one without a copy; with `take` its tensors may be written."""
        if not self.sums:
            self.sums, self.positions, self.borrowed = dict(part.sums), dict(part.positions), not take
            self.digits = {number: dict(digits) for number, digits in part.digits.items()}
        else:
            self.own()
            for number, digits in part.digits.items():
                self.digits.setdefault(number, {})
                for name, steps in digits.items():
                    _zeros_like(self.digits[number], name, steps).add_(steps)
            for into, tensors in ((self.sums, part.sums), (self.positions, part.positions)):
                for name, steps in tensors.items():
                    into[name].add_(steps)
        self.weight += part.weight

    def own(self) -> None:
        """Copies borrowed tensors, so that they may be written."""
        if self.borrowed:
            self.sums, self.positions, self.borrowed = private_copies(self.sums), private_copies(self.positions), False
            self.digits = {number: private_copies(digits) for number, digits in self.digits.items()}

    def add_digits(self, term: Tensor, name: str, weight: int, fixed_point: FixedPoint) -> Tensor:
        """Adds the digits of a term; returns the rest of it, which is within the range of the steps."""
        unit, digits = fixed_point.unit(name), dict[int, Tensor]()
        if unit is not None and exceeds(term, unit):
            term, digits = digits_above(term, unit, fixed_point.digit_bits)
        if name in fixed_point.fine_names:
            digits[BELOW] = digit_below(term, fixed_point.exponent(name), fixed_point.digit_bits)
        for number, digit in digits.items():
            add_fixed_point(_zeros_like(self.digits.setdefault(number, {}), name, term), digit, weight, 0)
        return term


class _Term(NamedTuple):
    """One averaged field of an update, or one group of it."""

    key: str
    tensors: TensorMap
    masks: TensorMap | None
    rule: Mean


class Accumulator:
    """The exact sum of the updates that have arrived so far. Not thread-safe: one owner, one thread.

    Args:
        kind: the type of the updates.
        fixed_point: the steps in which sums are exact.
        model: the run's model, against which partial sums are validated (updates are validated when they are decoded).
    """

    def __init__(self, kind: type[Record], fixed_point: FixedPoint, model: Mapping[str, Tensor] | None = None) -> None:
        self.kind, self.fixed_point, self.model = kind, fixed_point, model
        self.n_updates = self.n_samples = 0
        self._means: dict[str, _Sum] = {}
        self._each: dict[str, dict[str, Any]] = {name: {} for name in fields_with(kind, PerClient)}

    def add(
        self,
        update: Record,
        n_samples: int,
        n_updates: int = 1,
        *,
        n_clients: int | None = None,
        factor: int = 1,
        checked: bool = False,
    ) -> None:
        """Adds one update.

        Args:
            update: of the accumulator's type.
            n_samples: number of samples that it was trained on.
            n_updates: number of updates that it stands for (an edge's mean of several).
            n_clients: number of devices whose samples these are, by which it counts where samples do not weigh; None
                means `n_updates`. An edge's own update is one update of all its devices.
            factor: multiplies its weight: its staleness weight, in steps.
            checked: `check_update` has accepted it already.

        Raises:
            NotFinite, OutOfBound, WireError: naming field and tensor; the sum is then unchanged.
        """
        if n_samples < 0 or n_updates < 0:
            raise OutOfBound(f"an update of {n_samples} samples that stands for {n_updates}")
        if not checked:
            check_update(update, self.fixed_point)
        terms = _terms(update)
        each = {name: getattr(update, name) or {} for name in self._each}
        counted = (n_samples, n_updates, n_updates if n_clients is None else n_clients)
        weighted = [(term, factor * self.fixed_point.weight(term.rule, *counted)) for term in terms]
        for term, weight in weighted:
            self._check_names(term.key, term.tensors)
            self._check_weight(term.key, weight)
        self._check_clients(each)
        for term, weight in weighted:
            self._add_term(term, weight)
        self._unite(each)
        self.n_updates += n_updates
        self.n_samples += n_samples

    def _add_term(self, term: _Term, weight: int) -> None:
        total = self._means.setdefault(term.key, _Sum())
        total.own()
        total.weight += weight
        due: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for name, tensor in term.tensors.items():
            masked = tensor if term.masks is None else tensor * term.masks[name]
            sums, rests = due.setdefault(self.fixed_point.exponent(name), ([], []))
            sums.append(_zeros_like(total.sums, name, tensor))
            rests.append(total.add_digits(masked, name, weight, self.fixed_point))
            if term.masks is not None:
                add_fixed_point(_zeros_like(total.positions, name, tensor), term.masks[name], weight, 0)
        for exponent, (sums, rests) in due.items():
            add_all_fixed_point(sums, rests, weight, exponent)

    def merge(self, partial_sum: PartialSum, *, take: bool = False, checked: bool = False) -> None:
        """Adds a partial sum.

        Args:
            partial_sum: the exact sum of other updates.
            take: the caller no longer reads its tensors, so that they may be written.
            checked: `check_partial_sum` has accepted it already, with this model.

        Raises:
            NotFinite, OutOfBound, WireError: it is not a sum of such updates, its tensors differ from those added so
                far, or both sums have a value of the same client; the sum is then unchanged.
        """
        if not checked:
            check_partial_sum(partial_sum, self.kind, self.fixed_point, model=self.model)
        for key, part in partial_sum.means.items():
            self._check_names(key, part.sums)
            self._check_weight(key, part.weight)
        self._check_clients(partial_sum.each)
        for key, part in partial_sum.means.items():
            self._means.setdefault(key, _Sum()).add(part, take=take)
        self._unite(partial_sum.each)
        self.n_updates += partial_sum.n_updates
        self.n_samples += partial_sum.n_samples

    def _check_names(self, key: str, terms: TensorMap) -> None:
        before = self._means[key].sums if key in self._means else terms
        if before.keys() != terms.keys():
            raise WireError(f"{key}: some contributions hold {sorted(before.keys() ^ terms.keys())[0]!r}, others not")
        for name, tensor in terms.items():
            if tensor.shape != before[name].shape:
                what = f"{key} {name}".strip()
                raise WireError(f"{what} is {tuple(tensor.shape)}, before it was {tuple(before[name].shape)}")

    def _check_weight(self, key: str, weight: int) -> None:
        before = self._means[key].weight if key in self._means else 0
        if before + weight > self.fixed_point.total_weight:
            raise OutOfBound(
                f"{key}: weights add up to {before + weight}, sums are exact up to {self.fixed_point.total_weight}"
            )

    def _check_clients(self, each: Mapping[str, Mapping[str, Any]]) -> None:
        for name, values in each.items():
            twice = self._each[name].keys() & values.keys()
            if twice:
                raise WireError(f"{name} came twice from {sorted(twice)[0]}")

    def _unite(self, each: Mapping[str, Mapping[str, Any]]) -> None:
        """Keeps copies of the values: a view of a body would keep the whole body in memory until the round ends."""
        for name, values in each.items():
            self._each[name].update(copy_tensors(dict(values)))

    def result(self) -> PartialSum:
        """The sum so far, sorted by name, so that its bytes do not depend on the order of arrival.

        Its tensors are the accumulator's own: encode it, or take its mean, before the next `add` or `merge`.
        """
        means = {
            key: MeanSum(
                weight=total.weight,
                sums=_sorted(total.sums),
                positions=_sorted(total.positions),
                digits={number: _sorted(digits) for number, digits in sorted(total.digits.items())},
            )
            for key, total in sorted(self._means.items())
        }
        each = {name: _sorted(values) for name, values in sorted(self._each.items())}
        return PartialSum(n_updates=self.n_updates, n_samples=self.n_samples, means=means, each=each)


def check_update(update: Record, fixed_point: FixedPoint) -> None:
    """Refuses an update that has no exact sum, before it is sent.

    Raises:
        NotFinite, OutOfBound, WireError: naming field and tensor.
    """
    for name, how in fields_with(type(update), Mean).items():
        if how.per_position and getattr(update, name) is not None:
            _check_masks(name, getattr(update, name), getattr(update, how.per_position))
    for term in _terms(update):
        for name, tensor in term.tensors.items():
            bound = fixed_point.bound(name)
            option = fixed_point.option(name) if bound < LARGEST else None
            check_bound(tensor, bound, f"{term.key} {name}".strip(), option)
    for name in fields_with(type(update), PerClient):
        check_finite(getattr(update, name), name)


def _check_masks(field: str, tensors: Any, masks: Any) -> None:
    for name, tensor in tensors.items():
        mask = masks.get(name) if isinstance(masks, Mapping) else None
        if mask is None or mask.shape != tensor.shape:
            raise WireError(f"{field} {name} has no mask of its shape")
        if not ((mask == 0) | (mask == 1)).all():
            raise WireError(f"the mask of {field} {name} holds other values than 0 and 1")


def _terms(update: Record) -> list[_Term]:
    terms = []
    for name, how in fields_with(type(update), Mean).items():
        value = getattr(update, name)
        if value is None:
            continue
        masks = getattr(update, how.per_position) if how.per_position else None
        groups = {f"{name}/{group}": part for group, part in value.items()} if how.by_group else {name: value}
        terms += [_Term(key, _as_map(part), masks, how) for key, part in groups.items()]
    return terms


def _as_map(value: Any) -> TensorMap:
    if isinstance(value, Mapping):
        return dict(value)
    return {"": value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)}


def _sorted(items: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(items.items()))


def _zeros_like(into: TensorMap, name: str, term: Tensor) -> Tensor:
    if name not in into:
        into[name] = torch.zeros(term.shape, dtype=torch.float64)
    return into[name]
