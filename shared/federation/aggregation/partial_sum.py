"""The exact sum of updates as a record, and the fixed-point steps in which it is exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated, Any

import torch
from pydantic import Field

from shared.core.bounds import BUFFER_BOUND, PARAMETER_BOUND, Count
from shared.core.exact_sum import digit_bits, fixed_point_exponent
from shared.core.records import Record
from shared.core.tensor_records import TensorMap
from shared.core.update_annotations import KeptBy, Mean


class MeanSum(Record):
    """The weighted sum of one averaged field, or of one group of it.

    Attributes:
        weight: sum of the weights.
        sums: by tensor name, whole fixed-point steps as float64; the name of a single tensor or number is empty.
        positions: sum of the weights by position, float64, for fields averaged per position.
        digits: by number, the sums of the digits into which elements beyond the range of the steps are cut, and -1 for
            what rounding to steps takes from float64, see `shared.core.exact_sum`; only digits that occur.
    """

    weight: Count
    sums: Annotated[TensorMap, KeptBy("positions")]
    positions: TensorMap = Field(default_factory=dict)
    digits: dict[int, TensorMap] = Field(default_factory=dict, exclude_if=lambda digits: not digits)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """All its tensors, in maps by name."""
        return self.sums, self.positions, *self.digits.values()


class PartialSum(Record):
    """The exact sum of some updates.

    Attributes:
        n_updates: number of updates.
        n_samples: number of their training samples.
        means: sums of the `Mean` fields by field name, or by `field/group`.
        each: values of the `PerClient` fields by field name, then client id.
    """

    n_updates: Count
    n_samples: Count
    means: dict[str, MeanSum]
    each: dict[str, dict[str, Any]]


def weighted(partial_sum: PartialSum, factor: int) -> PartialSum:
    """A partial sum with all weights multiplied by a whole number; it takes over the tensors and overwrites them."""
    if factor == 1:
        return partial_sum
    for part in partial_sum.means.values():
        for tensor in chain.from_iterable(tensors.values() for tensors in part.maps):
            tensor.mul_(factor)
    means = {key: part.replace(weight=part.weight * factor) for key, part in partial_sum.means.items()}
    return partial_sum.replace(means=means)


COARSEST = 14
"""A bound that a spec raises makes steps no larger than 2 ** -COARSEST; elements beyond the range of such are cut into
digits. An update's elements are often a thousandth."""
LARGEST = torch.finfo(torch.float32).max
"""Largest absolute value of an element that has a sum."""
BELOW = -1
"""The number of the digit below the steps."""


@dataclass(frozen=True)
class FixedPoint:
    """The fixed-point steps of exact sums: a power of two per tensor name, so that float64 adds without rounding.

    Sums are exact as long as weights add up to at most `total_weight`. Elements within the range of the steps are whole
    numbers of them, larger ones are cut into digits. Larger ones than the bound are refused: training diverges.

    Attributes:
        parameter_bound: largest absolute value of an element of a parameter.
        buffer_bound: that of a buffer; the usual one means that any that float32 holds is added up.
        weight_steps: steps of the weight 1; above 1 where updates are also weighted by their staleness.
        fine_names: tensors of float64, of which also what is below a step is added up.
        by_samples: whether samples weigh in fields that say so; otherwise each device weighs the same there.
    """

    total_weight: int
    buffer_names: frozenset[str] = frozenset()
    parameter_bound: float = PARAMETER_BOUND
    buffer_bound: float = BUFFER_BOUND
    weight_steps: int = 1
    fine_names: frozenset[str] = frozenset()
    by_samples: bool = True

    def weight(self, rule: Mean, n_samples: int, n_updates: int, n_clients: int) -> int:
        """Weight in a field of this rule of so many updates, of the samples of so many devices; none without any."""
        if rule.weight == "samples":
            return n_samples if self.by_samples else min(n_samples, n_clients)
        return n_updates

    def bound(self, name: str) -> float:
        """Largest absolute value of an element of a tensor of this name; the name of a number is empty."""
        if name in self.buffer_names:
            return LARGEST if self.buffer_bound == BUFFER_BOUND else self.buffer_bound
        return self.parameter_bound if name else LARGEST

    def option(self, name: str) -> str:
        """The field of a spec that bounds the elements of a tensor of this name."""
        return "sum_bounds.buffers" if name in self.buffer_names else "sum_bounds.parameters"

    @cached_property
    def digit_bits(self) -> int:
        """Bits of a digit."""
        return digit_bits(self.total_weight)

    def exponent(self, name: str) -> int:
        """Binary exponent: a step for this tensor name is 2 ** -exponent."""
        return self._buffer_exponent if name in self.buffer_names else self._parameter_exponent

    @cached_property
    def _buffer_exponent(self) -> int:
        return self._exponent_for(BUFFER_BOUND, self.buffer_bound)

    @cached_property
    def _parameter_exponent(self) -> int:
        return self._exponent_for(PARAMETER_BOUND, self.parameter_bound)

    def _exponent_for(self, usual: float, wanted: float) -> int:
        """The exponent for elements up to the usual bound, or up to a raised one as far as steps do not get coarse."""
        raised = max(usual, min(wanted, 2.0 ** (self.digit_bits - COARSEST)))
        return fixed_point_exponent(self.total_weight, wanted if wanted <= usual else raised)

    def unit(self, name: str) -> float | None:
        """The power of two beyond which elements are cut into digits; None if all are refused."""
        found = 2.0 ** (self.digit_bits - self.exponent(name))
        return found if self.bound(name) > found and self.digit_bits > 0 else None

    def digit_exponent(self, name: str, number: int) -> int:
        """Binary exponent of the steps of a digit."""
        return self.exponent(name) - self.digit_bits * number

    def has_digit(self, name: str, number: int) -> bool:
        """Whether elements of this name can have a digit of this number."""
        if number == BELOW:
            return name in self.fine_names
        return number > 0 and self.unit(name) is not None and 2.0 ** -self.digit_exponent(name, number) <= LARGEST

    def largest_sum(self, name: str, weight: int) -> float:
        """Largest absolute value, in steps, of a sum of terms whose weights add up to `weight`."""
        most = self.bound(name) if self.unit(name) is None else 2.0 ** (self.digit_bits - self.exponent(name))
        return float(weight * math.ceil(most * 2.0 ** self.exponent(name)))

    def largest_digit_sum(self, weight: int) -> float:
        """Largest absolute value of a sum of digits whose weights add up to `weight`."""
        return weight * 2.0**self.digit_bits
