"""The version of what tiers say to each other: every request and answer between them names it.

Tiers of two versions refuse each other by it, before they could misread a record. The number grows with each change
after which an older tier would refuse, or understand differently, what a newer one sends: fields of records between
tiers, paths, headers, the encoding of tensors. A tier that names none is of a version before this number was sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import httpx2
from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.core.errors import OtherProtocol
from shared.core.versions import VERSION
from shared.service.auth import Guard

PROTOCOL = 1
"""The version of the protocol between tiers."""
PROTOCOL_HEADER = "strata-protocol"
"""Of every request and answer between tiers: the sender's protocol, a blank, the sender's version of StrataFL."""
SAID = {PROTOCOL_HEADER: f"{PROTOCOL} {VERSION}"}
"""The header as this process sends it."""
Refused = Callable[[Request, OtherProtocol], Awaitable[None]]
"""Is told of a request that was refused for its protocol."""
_SHOWN = 40
"""Characters of what another tier says that a message quotes."""


def check_protocol(headers: Mapping[str, str], other: str, own: str) -> None:
    """Refuses what a tier of another protocol has sent.

    Args:
        headers: of its request or answer.
        other: who has sent it, in words.
        own: who this process is, in words.

    Raises:
        OtherProtocol: it names another protocol or none; names both, and which of the two to upgrade.
    """
    said = headers.get(PROTOCOL_HEADER, "")
    number = said.partition(" ")[0]
    if number == str(PROTOCOL):
        return
    is_newer = number.isascii() and number.isdigit() and len(number) < _SHOWN and int(number) > PROTOCOL
    spoken = f"protocol {said[:_SHOWN]!r}" if said else "no protocol, so it is older"
    older = own if is_newer else other
    own_says = f"{own} speaks protocol {PROTOCOL} (StrataFL {VERSION})"
    raise OtherProtocol(
        f"{own_says}, {other} says {spoken}: upgrade {older}; all tiers need one version, see docs/operations.md"
    )


# ---- of requests that come in


async def unnoted(request: Request, error: OtherProtocol) -> None:
    """Notes nothing of a refused request."""


def of_same_protocol(guard: Guard, own: str, refused: Refused) -> Guard:
    """Returns a guard that lets in callers of this protocol only, of those whom another guard lets in.

    Args:
        guard: the other one.
        own: who this process is, in words.
        refused: is told of requests of other protocols.
    """

    async def check(request: Request) -> None:
        await guard(request)
        try:
            check_protocol(request.headers, "its caller", own)
        except OtherProtocol as error:
            await refused(request, error)
            raise

    return check


class SaysProtocol:
    """Middleware that adds the header to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the header."""

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SAID)
            await send(message)

        await self.app(scope, receive, send_with_header if scope["type"] == "http" else send)


# ---- of requests that go out


async def say_protocol(request: httpx2.Request) -> None:
    """Adds the header to a request; a hook of a client."""
    request.headers.update(SAID)


async def check_answer(response: httpx2.Response) -> None:
    """Refuses the answer of a tier of another protocol; a hook of a client.

    Raises:
        OtherProtocol: see `check_protocol`.
    """
    check_answered(response)


def check_answered(response: httpx2.Response) -> None:
    """Refuses the answer of a tier of another protocol.

    An error or a redirect that names none may be a proxy's, and is taken as what it is.

    Raises:
        OtherProtocol: see `check_protocol`.
    """
    if response.is_success or PROTOCOL_HEADER in response.headers:
        url = response.request.url
        check_protocol(response.headers, f"the tier at {url.scheme}://{url.netloc.decode()}", "this tier")
