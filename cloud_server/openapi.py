"""The OpenAPI document as it is: errors are problem+json everywhere, and most endpoints want the API token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from shared.api import Problem
from shared.transport import PROBLEM_TYPE

OPEN = ("/healthz", "/readyz")
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


def content(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    """A successful answer that is no JSON, for a route's `responses`."""
    return {200: {"description": description, "content": {media_type: BINARY}}}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The maker of the document, for `app.openapi`."""

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
    answers.pop("422", None)
    error = {"schema": {"$ref": "#/components/schemas/Problem"}}
    answers["default"] = {"description": "What went wrong, and at which field", "content": {PROBLEM_TYPE: error}}
    if not is_open:
        # Without a token set (development mode) the allowed networks may ask without one.
        operation["security"] = [{"token": []}, {}]
