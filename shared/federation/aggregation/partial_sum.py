"""What a sum consists of, and the grid on which it is exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from shared.core.aggregation_rules import KeptBy
from shared.core.records import Count, Record, TensorMap
from shared.core.tensors import fixed_point_exponent

PARAMETER_BOUND = 2.0**7
BUFFER_BOUND = 2.0**12


class MeanSum(Record):
    """The sum of one averaged field (or of one group of it).

    Attributes:
        weight: sum of the weights.
        sums: whole grid steps by tensor name, float64; the name is empty for a lone tensor or number.
        positions: sum of the weights by position, float64, for fields averaged per position.
    """

    weight: Count
    sums: Annotated[TensorMap, KeptBy("positions")]
    positions: TensorMap = Field(default_factory=dict)


class PartialSum(Record):
    """The exact sum of some updates.

    Attributes:
        n_updates: how many.
        n_samples: their training samples together.
        means: by field name, or `field/group`.
        each: by field name, then client id.
    """

    n_updates: Count
    n_samples: Count
    means: dict[str, MeanSum]
    each: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class FixedPoint:
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
        return fixed_point_exponent(self.total_weight, self.bound(name))

    def steps(self, name: str, weight: int) -> float:
        """The most grid steps that terms of so much weight together can come to."""
        return float(weight * math.ceil(self.bound(name) * 2.0 ** self.exponent(name)))
