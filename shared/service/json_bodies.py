"""JSON bodies that say one thing: UTF-8, and no key twice in an object."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request

from shared.core.parsing import check_unambiguous


def unambiguous() -> Any:
    """Returns a dependency of routes that take JSON. FastAPI alone reads any encoding, and of two equal keys the last.

    The dependency raises `WireError` for what is not JSON in UTF-8 without a byte order mark, and `BadInput` naming a
    key that comes twice.
    """

    async def check(request: Request) -> None:
        if request.headers.get("content-length", "0") != "0":
            # The request has kept the body, which FastAPI has parsed already.
            check_unambiguous(await request.body(), "body")

    return Depends(check)
