"""Waits that end: each has a deadline and a name; one that passes is the product's failure, not the harness's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from shared.core.errors import StrataError

T = TypeVar("T")
POLL_S = 0.05


class Hang(AssertionError):
    """Something did not come in time; says what, and what was seen last."""


def until(
    what: str,
    look: Callable[[], T | bool | None],
    limit_s: float,
    every_s: float = POLL_S,
    meanwhile: Callable[[], None] = lambda: None,
) -> T:
    """What a look finds, once it finds something true; what the product refuses is looked at again.

    Args:
        what: names the wait.
        look: finds it.
        limit_s: seconds until the wait is given up.
        every_s: seconds between two looks.
        meanwhile: done before each look.

    Raises:
        Hang: the limit passed.
    """
    ends, last = time.monotonic() + limit_s, "nothing"
    while True:
        meanwhile()
        try:
            if found := look():
                return found  # type: ignore[return-value]
        except StrataError as error:
            last = error.detail
        if time.monotonic() > ends:
            raise Hang(f"waited {limit_s:g} s for {what}; seen last: {last}")
        time.sleep(every_s)
