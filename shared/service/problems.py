"""Errors as `application/problem+json` (RFC 9457), whichever layer raised them."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from shared.core.errors import StrataError
from shared.core.field_errors import cause
from shared.service.api.problem import Problem
from shared.service.order_headers import PROBLEM_TYPE
from shared.service.response_headers import data_headers

log = logging.getLogger("strata")
DETAIL_CHARS = 2000
"""Longest detail of a problem."""


def problem(status: int, code: str, detail: str, field: str | None = None) -> JSONResponse:
    """Returns an error response; a detail that quotes a long request is cut."""
    body = Problem(title=code.replace("_", " "), status=status, code=code, detail=detail[:DETAIL_CHARS], field=field)
    return JSONResponse(body.model_dump(mode="json"), status, data_headers(), PROBLEM_TYPE)


def _allowed(request: Request) -> list[str]:
    """Returns the methods of a path over all routes: Starlette names those of the first route only."""
    found = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
    return sorted({method for route in found for method in getattr(route, "methods", None) or ()})


def problem_of(error: StrataError) -> JSONResponse:
    """Returns a `StrataError` as a response."""
    answer = problem(error.status, error.code, error.detail, error.field)
    if error.retry_after_s is not None:
        answer.headers["retry-after"] = str(error.retry_after_s)
    return answer


def install_problems(app: FastAPI) -> None:
    """Registers handlers that turn every error of an app into problem+json."""

    async def strata(request: Request, error: Exception) -> Response:
        assert isinstance(error, StrataError)  # noqa: S101 - registered for this class only
        return problem_of(error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class only
        first = error.errors()[0]
        loc = () if first["type"] == "json_invalid" else first["loc"]  # its loc is a position in the text
        path = ".".join(str(part) for part in (loc[1:] if loc[:1] == ("body",) else loc))[:200]
        why = cause(first)
        return problem(422, "bad_input", f"{path}: {why}" if path else why, path or None)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class only
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
        answer = problem(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}")
        if error.status_code == 405:
            answer.headers["allow"] = ", ".join(_allowed(request))
        return answer

    async def gone(request: Request, error: Exception) -> Response:
        log.info("%s %s: the client broke off", request.method, request.url.path)
        return problem(400, "broken_off", "the body broke off")  # the client has gone; the answer ends the request

    async def unforeseen(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "internal", f"{type(error).__name__} in {request.method} {request.url.path}; see the log")

    app.add_exception_handler(StrataError, strata)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unforeseen)
