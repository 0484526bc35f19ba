"""Variants take turns, one round each, so that a disturbance affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Round = Callable[[], float]
"""Runs one round and returns its seconds."""


def in_turns(variants: Mapping[str, Round], n_rounds: int) -> dict[str, list[float]]:
    """Seconds of each variant's rounds; a different variant begins each turn.

    A round before them, which takes longer than the others, is left out. A single round has none before it.
    """
    names = list(variants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(n_rounds + (n_rounds > 1)):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(variants[name]())
    return {name: found[-n_rounds:] for name, found in seconds.items()}
