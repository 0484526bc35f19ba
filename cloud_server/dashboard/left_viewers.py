"""Requests whose browser has gone before the answer."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class LeftViewers:
    """Ends a request without an error if its browser has gone: Starlette's middleware, which NiceGUI uses, raises one.

    A page that is left while it loads would otherwise put a traceback for each of its files into the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or connection."""
        has_left = False

        async def noting() -> Message:
            nonlocal has_left
            message = await receive()
            has_left |= message["type"] == "http.disconnect"
            return message

        try:
            await self.app(scope, noting, send)
        except RuntimeError as error:
            if not has_left or str(error) != "No response returned.":
                raise
