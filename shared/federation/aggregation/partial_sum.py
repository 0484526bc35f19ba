"""The exact sum of updates as a record, and the fixed-point steps in which it is exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from shared.core.bounds import BUFFER_BOUND, PARAMETER_BOUND, Count
from shared.core.exact_sum import fixed_point_exponent
from shared.core.records import Record
from shared.core.tensor_records import TensorMap
from shared.core.update_annotations import KeptBy


class MeanSum(Record):
    """The weighted sum of one averaged field, or of one group of it.

    Attributes:
        weight: sum of the weights.
        sums: by tensor name, whole fixed-point steps as float64; the name of a single tensor or number is empty.
        positions: sum of the weights by position, float64, for fields averaged per position.
    """

    weight: Count
    sums: Annotated[TensorMap, KeptBy("positions")]
    positions: TensorMap = Field(default_factory=dict)


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
        for tensor in (*part.sums.values(), *part.positions.values()):
            tensor.mul_(factor)
    means = {key: part.replace(weight=part.weight * factor) for key, part in partial_sum.means.items()}
    return partial_sum.replace(means=means)


@dataclass(frozen=True)
class FixedPoint:
    """The fixed-point steps of exact sums: a power of two per tensor name, so that float64 adds without rounding.

    Sums are exact as long as weights add up to at most `total_weight` and elements stay within the bounds.

    Attributes:
        weight_steps: steps of the weight 1; above 1 where updates are also weighted by their staleness.
    """

    total_weight: int
    buffer_names: frozenset[str] = frozenset()
    parameter_bound: float = PARAMETER_BOUND
    buffer_bound: float = BUFFER_BOUND
    weight_steps: int = 1

    def bound(self, name: str) -> float:
        """Largest absolute value of an element of a tensor of this name."""
        return self.buffer_bound if name in self.buffer_names else self.parameter_bound

    def option(self, name: str) -> str:
        """The field of a spec that bounds the elements of a tensor of this name."""
        return "sum_bounds.buffers" if name in self.buffer_names else "sum_bounds.parameters"

    def exponent(self, name: str) -> int:
        """Binary exponent: a step for this tensor name is 2 ** -exponent."""
        return fixed_point_exponent(self.total_weight, self.bound(name))

    def largest_sum(self, name: str, weight: int) -> float:
        """Largest absolute value, in steps, of a sum of terms whose weights add up to `weight`."""
        return float(weight * math.ceil(self.bound(name) * 2.0 ** self.exponent(name)))
