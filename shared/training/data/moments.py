"""Mean and standard deviation in float64, right for any number of values of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def moments(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Returns mean and population standard deviation of finite numbers, (n,); 0 only if all are the same.

    Values are scaled by a power of two, so that no square overflows, and the mean is corrected by that of the
    deviations from it.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low, 0.0
    _, exponent = np.frexp(max(abs(low), abs(high)))
    scaled = np.ldexp(values.astype(np.float64), -int(exponent))
    mean = scaled.mean()
    mean += (scaled - mean).mean()
    spread = np.sqrt(np.square(scaled - mean).mean())
    return float(np.ldexp(mean, exponent)), float(np.ldexp(spread, exponent))
