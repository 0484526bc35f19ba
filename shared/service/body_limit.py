"""A limit on bodies that holds before anything reads them; a tighter one for callers without a token.

Neither uvicorn nor Starlette limits a JSON body (Starlette's `max_part_size` is for forms), and FastAPI reads and
parses it before any dependency runs, the check of the token included.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Mapping

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.core.errors import StrataError, Throttled, TooLarge, Unauthorised, WireError
from shared.service.auth import bearer
from shared.service.peers import PEER
from shared.service.problems import problem_of
from shared.service.throttle import Throttle

JSON_BYTES = 2**24
"""Largest JSON body between tiers."""
ANONYMOUS_BYTES = 2**16
"""Largest body of a request without a token, which is refused anyway and until then must not cost memory."""

KNOWN = "strata.known"
"""Key of the ASGI scope: true if middleware in front has found the caller to be logged in."""


class BodyLimit:
    """Middleware that refuses requests with a body that is too long or has no Content-Length.

    Args:
        app: the application behind.
        tokens: all tokens that the app accepts; None among them means that some routes need none.
        limit: in bytes.
        limits: by path, where it is another one.
        apart: paths whose endpoints read their bodies themselves, each with its own limit; with a slash at the end,
            all below it.
        throttle: counts wrong tokens; that of the app's guards.
        user_with: returns the name of the user whose token it is, None if it is nobody's.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Collection[str | None],
        limit: int = JSON_BYTES,
        limits: Mapping[str, int] | None = None,
        apart: Collection[str] = (),
        throttle: Throttle | None = None,
        user_with: Callable[[str], str | None] = lambda token: None,
    ) -> None:
        self.user_with = user_with
        self.app, self.limit, self.limits, self.apart = app, limit, limits or {}, frozenset(apart)
        self.below = tuple(path for path in apart if path.endswith("/"))
        self.throttle = throttle or Throttle()
        self.tokens = [token.encode() for token in tokens if token]
        self.all_known = len(self.tokens) < len(tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        try:
            refused = self._refusal(scope) if scope["type"] == "http" and not self._is_apart(scope["path"]) else None
        except Throttled as error:
            refused = error
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await problem_of(refused)(scope, receive, send)

    def _is_apart(self, path: str) -> bool:
        return path in self.apart or path.startswith(self.below)

    def _refusal(self, scope: Scope) -> StrataError | None:
        headers = dict(scope["headers"])
        claimed = headers.get(b"content-length", b"0").decode("latin-1")
        if b"transfer-encoding" in headers or not claimed.isascii() or not claimed.isdigit():
            return WireError("a body needs a Content-Length")
        # Compared by length first: `int` refuses, and is slow on, very many digits.
        limit = self.limits.get(scope["path"], self.limit)
        if len(claimed) > 18 or int(claimed) > limit:
            return TooLarge(f"a body of {claimed[:18]} bytes, the limit is {limit}")
        if int(claimed) > ANONYMOUS_BYTES and not self._is_known(scope):
            return Unauthorised(f"a body of {claimed} bytes needs a token")
        return None

    def _is_known(self, scope: Scope) -> bool:
        if scope.get(KNOWN) is True or scope.get("state", {}).get(PEER) is not None:
            return True
        shown = bearer(Request(scope)).encode()
        if self.all_known or not shown:
            return self.all_known
        is_right = any(hmac.compare_digest(shown, token) for token in self.tokens)
        is_right = is_right or self.user_with(shown.decode()) is not None
        return self.throttle.admit(scope.get("client"), is_right=is_right)
