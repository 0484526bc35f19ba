"""What browsers are told of every answer: load nothing from other sites, and never show it within another page.

The policy holds where escaping was forgotten: markup that breaks out fetches nothing from a stranger, and no page of a
stranger can frame ours and guide a user's clicks.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_EVERYWHERE = "frame-ancestors 'none'; base-uri 'none'"
DATA_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; {_EVERYWHERE}"
"""For answers that are data. A report in a results folder has its style and its pictures in it, and no script."""
PAGE_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; form-action 'self'; " + _EVERYWHERE
)
"""For the dashboard. NiceGUI writes scripts and styles into its pages, and compiles Vue templates with `eval`."""
OTHERS = {"x-content-type-options": "nosniff", "referrer-policy": "same-origin"}
"""Headers beside the policy: the declared type of an answer is its type, and other sites learn no address of ours."""


def data_headers() -> dict[str, str]:
    """Returns the headers of an answer that is data."""
    return {"content-security-policy": DATA_POLICY, **OTHERS}


class ResponseHeaders:
    """Middleware that adds the headers to every answer that does not set them itself.

    Args:
        app: the application behind.
        pages: policies of paths by their beginnings, such as `/ui`; all other paths answer with data.
    """

    def __init__(self, app: ASGIApp, pages: Mapping[str, str] | None = None) -> None:
        self.app, self.pages = app, dict(pages or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        wanted = {**data_headers(), "content-security-policy": self._policy(scope["path"])}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in wanted.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def _policy(self, path: str) -> str:
        inside = (policy for start, policy in self.pages.items() if path == start or path.startswith(f"{start}/"))
        return next(inside, DATA_POLICY)
