"""The body of an error response."""

from __future__ import annotations

from shared.core.records import Record


class Problem(Record):
    """RFC 9457 problem details; `field` is the path of the field at fault."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
