"""Lists of names as fields, and hints at what somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

ELSEWHERE = {
    "learning_rate": "lr",
    "rounds": "num_rounds",
    "n_rounds": "num_rounds",
    "epochs": "local_epochs",
    "clients": "num_devices",
    "num_clients": "num_devices",
    "dataset": "data",
}
"""What other tools call some fields of a spec, and their names here."""


def hint(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known name means the same or is like this one, else nothing."""
    names = sorted(known)
    same = ELSEWHERE.get(name)
    near = [same] if same in names else difflib.get_close_matches(name[:100], names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def no_repeats(values: tuple[T, ...]) -> tuple[T, ...]:
    """Refuse a list in which something comes twice; a validator of fields.

    Raises:
        ValueError: naming what does.
    """
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{value} comes twice")
    return values


def check_known(kind: str, name: object, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones, which are listed.

    Raises:
        ValueError: with the nearest of them first.
    """
    names = sorted(known)
    if name is None:
        raise ValueError(f"{kind} without a `name`; known: {', '.join(names)}")
    if name not in names:
        raise ValueError(f"unknown {kind} {name!r:.100}{hint(str(name), names)}; known: {', '.join(names)}")
