"""Waits that end: each has a deadline and a name, and a deadline that passes is the product's failure, not the harness's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from shared.errors import StrataError

T = TypeVar("T")
POLL_S = 0.05


class Hang(AssertionError):
    """Something did not come in time; says what, and what was seen last."""


def until(what: str, look: Callable[[], T | None | bool], limit_s: float, every_s: float = POLL_S) -> T:
    """What a look finds, once it finds something true; what the product refuses meanwhile is looked at again.

    Raises:
        Hang: the limit passed.
    """
    ends, last = time.monotonic() + limit_s, "nothing"
    while True:
        try:
            if found := look():
                return found  # type: ignore[return-value]
        except StrataError as error:
            last = error.detail
        if time.monotonic() > ends:
            raise Hang(f"waited {limit_s:g} s for {what}; seen last: {last}")
        time.sleep(every_s)
