"""Errors that another process answered with, as exceptions here."""

from __future__ import annotations

import json

from shared.core.errors import (
    Busy,
    Garbled,
    Misdirected,
    PlacementUnknown,
    StrataError,
    Throttled,
    TooSlow,
    Unreachable,
)

TRANSIENT = (TooSlow, Busy, Misdirected, Throttled)
"""Refusals after which the request is repeated, as after a broken connection."""
KNOWN: dict[str, type[StrataError]] = {kind.code: kind for kind in (PlacementUnknown, Garbled, *TRANSIENT)}
"""Errors of the other side that are raised as their own class, by code; all others as `StrataError`."""


def remote_error(status: int, body: bytes | bytearray | memoryview, url: str) -> StrataError:
    """Returns the error in an answer of the other side, with its status, code and field."""
    try:
        problem = json.loads(bytes(body))
        detail, code, field = str(problem["detail"])[:2000], str(problem["code"])[:64], problem.get("field")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        detail, code, field = f"{url} answered with status {status}", "remote", None
    field = str(field)[:200] if field else None
    error = KNOWN.get(code, StrataError)(detail, field=field)
    # Other statuses, such as redirects, count as errors here: no tier answers with them.
    error.status, error.code = status if status >= 400 else Unreachable.status, code
    return error
