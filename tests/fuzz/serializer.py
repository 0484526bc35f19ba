"""How `schemathesis` sends binary bodies; its configuration names this module."""

from __future__ import annotations

from typing import Any

import schemathesis

from shared.service.order_headers import MEDIA_TYPE


@schemathesis.serializer(MEDIA_TYPE)
def records(ctx: Any, value: Any) -> bytes:
    """Sends bytes as they are, any other value as text."""
    return value if isinstance(value, bytes) else str(value).encode()
