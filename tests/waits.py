"""Waits with a deadline and a name. A wait whose deadline passes is a failure of the product, not of the harness."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from shared.core.errors import StrataError

T = TypeVar("T")
HANG_S = 500.0
"""Seconds after which a wait fails: less than a test's own limit (`timeout` in pyproject.toml), so that the wait can
say what it waited for, and enough for a machine whose cores are shared by several suites. It finds hangs only."""
POLL_S = 0.1
PACED: dict[str, Any] = {"clock": "real", "devices": {"profile": {"delay_s": 0.3}}}
"""Fields of a spec whose devices rest during a visit: a run that lasts until a test stops it takes little of the
processor from what the test waits for."""


class Hang(AssertionError):
    """A condition was not met in time; the message names it and says what was seen last."""


def until(
    what: str,
    look: Callable[[], T | bool | None],
    limit_s: float = HANG_S,
    every_s: float = POLL_S,
    meanwhile: Callable[[], None] = lambda: None,
) -> T:
    """Returns the first true value of `look`. An error of the product counts as an attempt that failed.

    Args:
        what: names the wait.
        look: returns the value, or something false while there is none.
        limit_s: seconds after which the wait fails.
        every_s: seconds between two calls of `look`.
        meanwhile: is called before each call of `look`.

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
