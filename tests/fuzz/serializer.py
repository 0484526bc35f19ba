"""Told to `schemathesis` by its configuration: how a body of bytes is sent."""

from __future__ import annotations

from typing import Any

import schemathesis

from shared.service.order_headers import MEDIA_TYPE


@schemathesis.serializer(MEDIA_TYPE)
def records(ctx: Any, value: Any) -> bytes:
    """Bytes as they are, anything else as its text."""
    return value if isinstance(value, bytes) else str(value).encode()
