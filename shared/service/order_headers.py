"""Whom an order is for, and which order an answer belongs to, told beside them: what strayed is refused."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from shared.core.errors import Misdirected, WireError

PLACE_HEADER = "strata-place"
FOR_HEADER = "strata-for"
"""Whom an order is for: the name of an edge, the id of an agent."""
EDGE_URL_HEADER = "strata-edge-url"
"""Edge to agent: where it wants to hear that the agent is alive while it works."""


def order_key(what: str, run_id: str, *numbers: int) -> str:
    """The place of an order in its run, as a header's value: `visits/r1/3/0/1`."""
    return "/".join([what, quote(run_id, safe="", errors="surrogatepass"), *map(str, numbers)])


def check_recipient(headers: Mapping[str, str], own: str) -> None:
    """See that an order is for us.

    Raises:
        Misdirected: it is for somebody else.
    """
    wanted = headers.get(FOR_HEADER, own)
    if wanted != own:
        raise Misdirected(f"this is {own}, the order is for {wanted[:200]!r}")


def check_reply_key(headers: Mapping[str, str], wanted: str) -> None:
    """See that an answer belongs to the order.

    Raises:
        WireError: it belongs to another one, or does not say.
    """
    found = headers.get(PLACE_HEADER)
    if found != wanted:
        raise WireError(f"the answer belongs to {str(found)[:200]!r}, asked was {wanted!r}", field=PLACE_HEADER)


MEDIA_TYPE = "application/x-safetensors"
PROBLEM_TYPE = "application/problem+json"
DIGEST_HEADER = "strata-digest"
SOCKET_HEADER = "strata-socket-bytes"
TESTING_HEADER = "strata-testing-s"
"""Beside an answer: wall seconds in which models were tested for it. No wall time stands in a body."""
CHECKSUM_HEADER = "strata-crc32"
