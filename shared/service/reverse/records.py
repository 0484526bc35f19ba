"""What a node that dials out and the tier above exchange about requests, and how such a node is addressed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from shared.core.bounds import LARGEST_EDGES, Count
from shared.core.records import Record
from shared.service.api.membership import Name, Word, process_of

SCHEME = "up"
"""Of the address of a process that dials out: `up://` and the id of the process."""
NONCE_HEADER = "strata-nonce"
"""The nonce with which a process registered: nobody else knows it, and its hash is the id of the process."""
ANSWER_HEADER = "strata-answer"
"""The head of an answer (`AnswerHead`) to a request that was taken by a poll."""
MAX_HELD = 10_000
"""Most requests that a node has in work from one process above."""
MAX_TAKEN = 100
"""Most requests that one poll takes."""

RequestId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Header = tuple[Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=2**16)]]


def address_of(nonce: str) -> str:
    """Returns the address of the process that registers with a nonce and dials out."""
    return f"{SCHEME}://{process_of(nonce)}"


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Returns headers as records have them."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def as_bytes(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Returns headers as ASGI and HTTP have them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


class Poll(Record):
    """Node to the tier above: `held` are the requests from there that it has in work."""

    held: tuple[RequestId, ...] = Field(default=(), max_length=MAX_HELD)


class RequestHead(Record):
    """A request for the node; its body, if it has one, is fetched apart.

    Attributes:
        request: its id, which cannot be guessed.
        target: path and query.
        n_bytes: of its body.
    """

    request: RequestId
    method: Annotated[str, Field(max_length=10)]
    target: Annotated[str, Field(max_length=2000, pattern="^/")]
    headers: tuple[Header, ...] = Field(max_length=100)
    n_bytes: Count


class PollAnswer(Record):
    """The tier above to the node.

    Attributes:
        requests: new ones, oldest first.
        withdrawn: requests that the node holds and nobody waits for any more.
        edges: addresses of edges that have requests for the node and ask it to poll them, by name.
    """

    requests: tuple[RequestHead, ...] = Field(default=(), max_length=MAX_TAKEN)
    withdrawn: tuple[RequestId, ...] = Field(default=(), max_length=MAX_HELD)
    edges: dict[Name, Word] = Field(default_factory=dict, max_length=LARGEST_EDGES)


class AnswerHead(Record):
    """Status and headers of an answer."""

    status: int = Field(ge=100, le=599)
    headers: tuple[Header, ...] = Field(max_length=100)
