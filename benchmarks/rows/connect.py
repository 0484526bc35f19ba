"""The cost of nodes that dial out: their rounds beside those of nodes that are called."""

from __future__ import annotations

from pathlib import Path

from benchmarks.sizes import Sizes
from benchmarks.table import Line
from benchmarks.two_ways import Way, of_two_ways

UP, LISTEN = ({"EDGE_CONNECT": how, "AGENT_CONNECT": how} for how in ("up", "listen"))


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Two lines for small models and for a large one."""
    one, other = Way("of nodes that dial out", env=UP), Way("of nodes that are called", env=LISTEN)
    return of_two_ways("connect", one, other, folder, sizes)
