"""Headers between tiers: media types, checks of a body, and which order a request or an answer belongs to.

An order names its recipient, and an answer its order, so that misrouted messages are refused: when containers restart,
an address may pass to another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from shared.core.errors import Misdirected, WireError

MORE_HEADER = "strata-more"
"""Of a page of a list: how many items the next page skips; absent from the last page."""
MEDIA_TYPE = "application/x-safetensors"
PROBLEM_TYPE = "application/problem+json"
CHECKSUM_HEADER = "strata-crc32"
"""CRC-32 of the body of a request or an answer; detects damage at a quarter of the cost of sha256."""
SOCKET_HEADER = "strata-socket-bytes"
"""Edge to cloud: bytes of the bodies that the edge exchanged with its agents for this answer."""
TESTING_HEADER = "strata-testing-s"
"""Wall seconds in which models were evaluated for this answer. A header, since no wall time stands in a body."""
ORDER_KEY_HEADER = "strata-place"
"""The order that an answer belongs to: its `order_key`."""
FOR_HEADER = "strata-for"
"""The recipient of an order: the name of an edge, the id of an agent."""
ASSIGNMENT_HEADER = "strata-assignment"
"""Edge to agent: the cloud's signed word that the edge may order these seats, where nodes show certificates."""
EDGE_NAME_HEADER = "strata-edge"
"""Edge to agent: the name of the edge whose order it is."""
EDGE_URL_HEADER = "strata-edge-url"
"""Edge to agent: the address to which the agent sends heartbeats while it works."""


def order_key(what: str, run_id: str, *numbers: int) -> str:
    """Returns the key of an order in its run, as a header's value: `visits/r1/3/0/1`."""
    return "/".join([what, quote(run_id, safe="", errors="surrogatepass"), *map(str, numbers)])


def check_recipient(headers: Mapping[str, str], own: str) -> None:
    """Refuses an order for another recipient than this process.

    Raises:
        Misdirected: it names another one.
    """
    recipient = headers.get(FOR_HEADER, own)
    if recipient != own:
        raise Misdirected(f"this is {own}, the request is for {recipient[:200]!r}")


def check_reply_key(headers: Mapping[str, str], expected: str) -> None:
    """Refuses an answer to another order.

    Raises:
        WireError: it names another order or none.
    """
    found = headers.get(ORDER_KEY_HEADER)
    if found != expected:
        raise WireError(f"the answer belongs to {str(found)[:200]!r}, expected {expected!r}", field=ORDER_KEY_HEADER)
