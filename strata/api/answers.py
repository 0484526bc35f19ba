"""What comes back from the cloud: models, events, and problems as errors."""

from __future__ import annotations

import json
from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from shared.core.errors import StrataError, WireError
from shared.core.records import Record
from shared.run_records.events import Event
from shared.service.problems import Problem

R = TypeVar("R", bound=Record)


class Refused(StrataError):
    """The cloud's answer was a problem; status, code, field and detail are the cloud's."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, field=problem.field)
        self.status, self.code = problem.status, problem.code


def path(*parts: str) -> str:
    """A path of quoted parts, so that no part reaches another resource."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def event(text: str) -> Event:
    """An event as its message carries it."""
    try:
        return Event.model_validate_json(text)
    except ValidationError as error:
        raise WireError(f"an event of an unknown form: {error.errors()[0]['msg']}") from None


def parse(kind: type[R], response: httpx.Response) -> R:
    """A response as the model that it should be."""
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise WireError(
            f"{response.request.url} answered with no {kind.__name__} (at {where or 'its start'}: {first['msg']}); "
            "is it a cloud of this version?"
        ) from None


def refused(response: httpx.Response) -> Refused:
    """The problem in an error response; a made-up one where a proxy answered."""
    try:
        return Refused(Problem.model_validate(json.loads(response.content)))
    except (ValueError, ValidationError):
        title = response.reason_phrase or "error"
        detail = f"{response.request.url} answered {response.status_code} {title}"
        return Refused(Problem(title=title, status=response.status_code, code="http", detail=detail))
