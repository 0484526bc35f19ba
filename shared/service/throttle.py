"""A throttle for wrong tokens: after some of them an address must wait, and others are not kept from coming in.

An address may show so many wrong tokens at once and gets one more try each `60 / per_minute` seconds. While all
addresses together exceed their common number, each has one try only. A right token that comes while its address must
wait is refused too, or the throttle would answer every guess; except over a connection that has shown the right token
before, so that a guesser on the machine of an honest node or user does not shut them out.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from shared.core.errors import Throttled

Client = tuple[str, int] | None
"""Address and port of a caller's socket, as in the ASGI scope."""
MAX_ADDRESSES = 10_000
"""Addresses that are remembered; the one whose last wrong token is oldest is forgotten first."""
MAX_CONNECTIONS = 10_000
"""Connections with the right token that are remembered."""
TRUSTED_S = 60.0
"""Seconds without a right token after which a connection counts as a new one: its port may be another's by then."""


@dataclass
class _Bucket:
    """Tries that are left, as of `at`; they grow by `per_minute` up to that number."""

    per_minute: float
    left: float
    at: float

    def tries(self, now: float) -> float:
        return min(self.left + (now - self.at) * self.per_minute / 60, self.per_minute)

    def take(self, now: float) -> None:
        self.left, self.at = max(self.tries(now) - 1, 0.0), now

    def wait_s(self, now: float, wanted: float) -> float:
        """Seconds until so many tries are left."""
        return max(wanted - self.tries(now), 0.0) * 60 / self.per_minute


class Throttle:
    """Counts wrong tokens by address and in all.

    Args:
        per_minute: wrong tokens of an address in a minute.
        in_all: wrong tokens of all addresses together in a minute.
        clock: monotonic seconds.
    """

    def __init__(self, per_minute: int = 60, in_all: int = 600, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute, self.clock = per_minute, clock
        self._all = _Bucket(in_all, in_all, clock())
        self._addresses: OrderedDict[str, _Bucket] = OrderedDict()
        self._connections: OrderedDict[tuple[str, int], float] = OrderedDict()

    def admit(self, client: Client, *, is_right: bool) -> bool:
        """Whether a caller comes in, which is whether its token is right. Call this once for each token shown.

        Raises:
            Throttled: the caller must wait, and does not learn whether its token is right.
        """
        now = self.clock()
        if is_right and client is not None and now - self._connections.get(client, -math.inf) <= TRUSTED_S:
            self._trust(client, now)
            return True
        address = _network_of(client)
        bucket = self._addresses.get(address) or _Bucket(self.per_minute, self.per_minute, now)
        wanted = 1.0 if self._all.tries(now) >= 1 else float(self.per_minute)
        wait_s = bucket.wait_s(now, wanted)
        if wait_s > 1e-6:
            raise Throttled(
                f"too many wrong tokens from this address; try again in {math.ceil(wait_s)} s",
                retry_after_s=math.ceil(wait_s),
            )
        if is_right:
            self._trust(client, now)
            return True
        bucket.take(now)
        self._all.take(now)
        self._addresses[address] = bucket
        self._addresses.move_to_end(address)
        while len(self._addresses) > MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        return False

    def _trust(self, client: Client, now: float) -> None:
        if client is None:
            return
        self._connections[client] = now
        self._connections.move_to_end(client)
        while len(self._connections) > MAX_CONNECTIONS:
            self._connections.popitem(last=False)


def _network_of(client: Client) -> str:
    """The address by which a caller is counted: of IPv6 the /64 network, of which one caller has all addresses."""
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return client[0] if client else ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
