"""HEAD and OPTIONS, which load balancers, monitors and browsers send, for every resource.

A HEAD request is answered as GET would be, without the body (RFC 9110, 9.3.2); OPTIONS with the methods that a resource
has (9.3.7). Neither allows a page of another site anything: no answer has a CORS header.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _Answered(Exception):
    """The head of an answer has been sent; what would follow is not wanted, and may never end."""


class SafeMethods:
    """Middleware that answers HEAD and OPTIONS.

    Args:
        app: the application behind.
        router: has its routes.
    """

    def __init__(self, app: ASGIApp, router: Router) -> None:
        self.app, self.router = app, router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of these methods, and pass all others on."""
        if scope["type"] == "http" and scope["method"] in ("HEAD", "OPTIONS"):
            methods = self._methods(scope)
            if scope["method"] == "OPTIONS" and methods:
                return await Response(status_code=204, headers={"allow": ", ".join(sorted(methods))})(
                    scope, receive, send
                )
            if scope["method"] == "HEAD" and "GET" in methods:
                return await self._head(scope, receive, send)
        await self.app(scope, receive, send)

    def _methods(self, scope: Scope) -> set[str]:
        """The methods of the resource at a path; empty if there is none, or if it is served by another application."""
        found: set[str] = set()
        for route in self.router.routes:
            if route.matches(scope)[0] is not Match.NONE:
                found |= set(getattr(route, "methods", None) or ())
        return found and found | {"OPTIONS", "HEAD" if "GET" in found else "OPTIONS"}

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise _Answered
            await send(message)

        try:
            await self.app({**scope, "method": "GET"}, receive, send_head)
        except _Answered:
            await send({"type": "http.response.body", "body": b""})
