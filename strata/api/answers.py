"""Parsing the cloud's responses: records, events, and problem details as errors."""

from __future__ import annotations

import json
import re
from typing import TypeVar
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from shared.core.errors import (
    BadInput,
    Busy,
    Conflict,
    Forbidden,
    NotFinite,
    NotFound,
    NotReady,
    OutOfBound,
    StrataError,
    Throttled,
    TooLarge,
    TooMany,
    Unauthorised,
    UnknownName,
    WireError,
)
from shared.core.field_errors import first_fault, told
from shared.core.records import Record
from shared.run_records.events import Event
from shared.service.api.problem import Problem

R = TypeVar("R", bound=Record)


class Refused(StrataError):
    """The cloud answered with an error; status, code, field, detail and `Retry-After` are the cloud's.

    One whose code is that of a class in `RAISED` is of that class too, so that it can be caught as one found here.
    """

    def __init__(self, problem: Problem, retry_after: str = "") -> None:
        StrataError.__init__(self, problem.detail, field=problem.field)
        self.status, self.code = problem.status, problem.code
        self.retry_after_s = min(int(retry_after), 3600) if re.fullmatch("[0-9]{1,9}", retry_after) else None


RAISED = (
    *(BadInput, UnknownName, NotFinite, OutOfBound, TooLarge),
    *(NotFound, Conflict, Unauthorised, Forbidden, NotReady, Busy, TooMany, Throttled),
)
_KINDS: dict[str, type[Refused]] = {kind.code: type(kind.__name__, (Refused, kind), {}) for kind in RAISED}


def path(*parts: str) -> str:
    """A URL path of quoted parts, so that no part can reach another resource."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def event(text: str) -> Event:
    """The event in the text of a message."""
    try:
        return Event.model_validate_json(text)
    except ValidationError as error:
        raise WireError(f"the cloud sent an invalid event: {told(error)}") from None


def parse(kind: type[R], response: httpx2.Response) -> R:
    """The record of type `kind` in a response."""
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        where, why = first_fault(error)
        raise WireError(
            f"{response.request.url} did not return a valid {kind.__name__} "
            f"(at {where or 'its start'}: {why}); is the cloud of the same version?"
        ) from None


def refused(response: httpx2.Response, through: str = "") -> Refused:
    """The error in an error response; a generic one if a proxy answered instead of the cloud.

    Args:
        response: the response.
        through: a clause about the proxy that lies between; empty without one.
    """
    try:
        problem = Problem.model_validate(json.loads(response.content))
        return _KINDS.get(problem.code, Refused)(problem, response.headers.get("retry-after", ""))
    except (ValueError, ValidationError):
        title = response.reason_phrase or "error"
        detail = f"{response.request.url} answered {response.status_code} {title}{through}"
        return Refused(Problem(title=title, status=response.status_code, code="http", detail=detail))
