"""The one rule by which the clients of a cloud wait for one that does not answer, as while it is restarted."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable

from shared.core.errors import BadInput, StrataError, Unreachable
from shared.runtime.logs import plain

log = logging.getLogger(__name__)
WAIT_S = 120.0
"""How long a cloud is waited for, unless STRATA_RECONNECT_S says otherwise."""
AWAY = frozenset({502, 503, 504})
"""Statuses of a cloud that starts or waits for its store, and of a proxy in front of one that is away."""
STARTING = 503
_ANOTHER = "standing_by"
"""Code of a cloud that says at the first request that another one has taken its place: a wrong address."""
_BROKEN_S = 1.5
"""How long a first connection that breaks is tried again: something listens there."""
_SAY_S = 1.0
"""A shorter outage is not worth a word."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0


class NotConnected(Unreachable):
    """No connection was made, so that nothing was sent (502)."""


class Outages:
    """Waits for a cloud that does not answer, says so, and gives up after a time.

    A cloud that has never answered is not waited for, since its address may be wrong, unless it says that it starts.

    Args:
        url: address of the cloud.
        wait_s: longest wait of one outage; None means STRATA_RECONNECT_S, else `WAIT_S`.
        check: is called before each wait; it raises if the cloud will not come back.
        clock: monotonic seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        url: str,
        wait_s: float | None = None,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url, self.wait_s = url, _configured_s() if wait_s is None else wait_s
        self._check, self._clock, self._sleep = check, clock, sleep
        self._known = self._said = False
        self._since: float | None = None
        self._pause_s = _PAUSE_S

    def answered(self) -> None:
        """Note that the cloud has answered."""
        if self._said:
            log.warning("the cloud at %s answers again", self.url)
        self._known, self._said, self._since, self._pause_s = True, False, None, _PAUSE_S

    def bear(self, error: StrataError) -> None:
        """Wait for a moment after a request to which the cloud gave no answer, so that it can be repeated.

        Raises:
            StrataError: this error, if the cloud is not waited for or has been for long enough.
        """
        now, limit_s = self._clock(), self._limit_s(error)
        self._since = now if self._since is None else self._since
        left_s = self._since + limit_s - now
        if left_s <= 0:
            self._said, self._since = False, None
            raise error
        self._check()
        if now - self._since >= _SAY_S and not self._said:
            self._said = True
            why = plain(error.detail)
            log.warning("the cloud at %s does not answer (%s); waiting up to %g s", self.url, why, limit_s)
        self._sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _limit_s(self, error: StrataError) -> float:
        """How long an error is worth a wait."""
        if self._known or (error.status == STARTING and error.code != _ANOTHER):
            return self.wait_s
        return min(_BROKEN_S, self.wait_s) if type(error) is Unreachable else 0.0


def _configured_s() -> float:
    """Seconds of STRATA_RECONNECT_S.

    Raises:
        BadInput: it is no number of seconds.
    """
    name = "STRATA_RECONNECT_S"
    text = os.environ.get(name) or str(WAIT_S)
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise BadInput(f"{name}: {text!r:.40} is not a number of seconds", field=name)
    return found
