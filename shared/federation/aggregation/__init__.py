"""Aggregation of updates by the rules of their fields (`Mean`, `PerClient`): exact, and the same in any order.

    Update --(Accumulator.add)--> PartialSum --(Accumulator.merge, tier by tier)--> PartialSum --(mean_of)--> Update

A `PartialSum` is the exact sum of some updates; merging partial sums gives the sum of all their updates. `mean_of`
turns it back into an update: an aggregate has the type of what it aggregates.
"""

from shared.core.bounds import BUFFER_BOUND, PARAMETER_BOUND
from shared.core.update_annotations import can_be_mean, check_update_type, names_clients, rule_of
from shared.federation.aggregation.accumulator import Accumulator, check_update
from shared.federation.aggregation.mean import check_partial_sum, mean_of
from shared.federation.aggregation.partial_sum import (
    FixedPoint,
    MeanSum,
    PartialSum,
    weighted,
)

__all__ = [
    "BUFFER_BOUND",
    "PARAMETER_BOUND",
    "Accumulator",
    "FixedPoint",
    "MeanSum",
    "PartialSum",
    "can_be_mean",
    "check_partial_sum",
    "check_update",
    "check_update_type",
    "mean_of",
    "names_clients",
    "rule_of",
    "weighted",
]
