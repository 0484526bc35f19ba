"""Seconds and bytes in the unit that suits their size."""

from __future__ import annotations

from typing import Literal

_TIMES = ((172_800, 86_400.0, "days"), (7200, 3600.0, "h"), (120, 60.0, "min"), (0, 1.0, "s"))
_SIZES = ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB"), (0, 1.0, "B"))


def scale(unit: Literal["bytes", "seconds"], most: float) -> tuple[float, str]:
    """The unit for values up to `most`: how much one is, and its name."""
    units = _TIMES if unit == "seconds" else _SIZES
    return next((worth, name) for least, worth, name in units if most >= least)
