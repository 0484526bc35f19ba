"""Contenders take turns, a round each, so that what disturbs one disturbs all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Round = Callable[[], float]
"""Does one round; answers with its seconds."""


def in_turns(contenders: Mapping[str, Round], n_rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender's rounds, without its first; who begins changes from turn to turn."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(n_rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(contenders[name]())
    return {name: found[1:] for name, found in seconds.items()}
