"""Apportionment of a whole number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def largest_remainder(weights: npt.NDArray[Any], total: int) -> npt.NDArray[np.int64]:
    """Returns whole numbers in proportion to the weights that add up to `total` (largest-remainder method).

    Of equal remainders the first is rounded up. If all weights are zero, the first gets everything.
    """
    if not weights.sum():
        weights = np.eye(1, len(weights))[0]
    exact = weights / weights.sum() * total
    sizes: npt.NDArray[np.int64] = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - sizes), kind="stable")
    sizes[order[: total - int(sizes.sum())]] += 1
    return sizes
