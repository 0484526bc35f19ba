"""The OpenAPI documents of the tiers: every answer is declared, and every error is problem+json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Path
from fastapi.openapi.utils import get_openapi

from shared.service.api.problem import Problem
from shared.service.order_headers import MEDIA_TYPE, PROBLEM_TYPE

OPEN = ("/healthz", "/readyz")
"""Paths that need no token."""
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
EVENT: dict[str, Any] = {
    "schema": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
        "required": ["id", "event", "data"],
    }
}
"""One server-sent event of a stream."""
MEANING = {
    400: "The body was cut off, has no length, or is not a valid record of the expected type",
    401: "The token is missing or wrong",
    403: "The caller is outside the allowed networks, or a claim of it could not be verified",
    404: "Not found",
    405: "This path has no such method",
    408: "The request arrived too slowly",
    409: "Not in a state that allows this, or the tiers speak different protocols",
    413: "The body is too large",
    421: "The request is for another recipient",
    422: "A field is wrong; `field` names it",
    428: "The edge must first be told which agents host its devices",
    429: "More than a limit allows, or too many wrong tokens; the message names the limit, or how long to wait",
    431: "The head of the request is too large",
    502: "Another tier did not answer",
    503: "Not ready: something required is missing, or there are too many connections",
    504: "A deadline passed; the message says for whom the tier waited",
    507: "The results of a user hold as many bytes as they may",
}
ANYWHERE = (400, 405, 408, 413, 422, 431, 503)
"""Errors that every route may answer."""
GUARDED = (401, 403, 429)
"""Errors that every route but the open ones may answer besides."""

RunId = Annotated[str, Path(min_length=1, max_length=64, description="id of a run; the cloud also knows `latest`")]
Answers = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Answers:
    """Returns the errors that a route answers besides those of every route, for its `responses`."""
    return {status: {"description": MEANING[status]} for status in statuses}


def content(media_type: str, description: str, schema: dict[str, Any] = BINARY) -> Answers:
    """Returns the description of a successful answer that is not JSON, for a route's `responses`."""
    return {200: {"description": description, "content": {media_type: schema}}}


def record_body(description: str) -> dict[str, Any]:
    """Returns the description of an encoded record as a route's body, for its `openapi_extra`."""
    return {"requestBody": {"description": description, "required": True, "content": {MEDIA_TYPE: BINARY}}}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Returns the function that makes the document, for `app.openapi`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    _finish(operation, is_open=path in OPEN)
            schemas = document["components"]["schemas"]
            schemas["Problem"] = Problem.model_json_schema()
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            app.openapi_schema = document
        return app.openapi_schema

    return openapi


def _finish(operation: dict[str, Any], *, is_open: bool) -> None:
    answers = operation["responses"]
    answers.pop("422", None)  # FastAPI's description of its own error format
    error = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status in (*ANYWHERE, *(() if is_open else GUARDED)):
        answers.setdefault(str(status), {"description": MEANING[status]})
    for status, answer in answers.items():
        if int(status) >= 400:
            answer["content"] = {**answer.get("content", {}), **error}
    operation["responses"] = dict(sorted(answers.items()))
    if not is_open:
        # In development mode no token is needed.
        operation["security"] = [{"token": []}, {}]
