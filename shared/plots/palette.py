"""Colours that colour-blind readers can distinguish too, for all programs that draw."""

from __future__ import annotations

# Okabe and Ito (2008), "Color Universal Design", without yellow and black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
CELLS = ("#deebf7", "#9ecae1", "#4292c6", "#2171b5", "#08306b")
"""Of heat maps, from low to high values: lightness alone orders them."""


def colour(at: int) -> str:
    """The colour of that number; numbers beyond the palette repeat it."""
    return COLOURS[at % len(COLOURS)]
