"""Adding updates up, by what their fields say (`Mean`, `Each`), exactly and in any order.

    Update --(Fold.add)--> Folded --(Fold.merge, level upon level)--> Folded --(mean_of)--> Update

A `Folded` is the exact sum of some updates; adding sums up gives the sum of all. `mean_of` turns it back into an
update: an aggregate has the type of what it aggregates.
"""

from shared.core.aggregation_rules import can_be_mean, check_update_type, mark_of, names_clients
from shared.federation.aggregation.accumulator import Fold, check_update
from shared.federation.aggregation.mean import check_folded, mean_of
from shared.federation.aggregation.partial_sum import BUFFER_BOUND, PARAMETER_BOUND, Folded, Grid, MeanSum

__all__ = [
    "BUFFER_BOUND",
    "PARAMETER_BOUND",
    "Fold",
    "Folded",
    "Grid",
    "MeanSum",
    "can_be_mean",
    "check_folded",
    "check_update",
    "check_update_type",
    "mark_of",
    "mean_of",
    "names_clients",
]
