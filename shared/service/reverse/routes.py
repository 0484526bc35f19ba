"""The endpoints at which nodes that dial out take their requests and leave the answers."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.core.errors import WireError
from shared.core.field_errors import first_fault
from shared.service.api.membership import process_of
from shared.service.auth import guarded
from shared.service.bodies import pieces
from shared.service.openapi import content, problems
from shared.service.peers import peer_in
from shared.service.reverse.desk import Answer, Desk, Waiting
from shared.service.reverse.records import ANSWER_HEADER, NONCE_HEADER, AnswerHead, Poll, PollAnswer

REQUESTS = "/requests/"
"""Begins the paths whose bodies are as large as those of the requests and answers that they carry."""
_BYTES = "application/octet-stream"


async def _desk_of(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


async def _process(nonce: Annotated[str, Header(alias=NONCE_HEADER, min_length=16, max_length=64)]) -> str:
    """The process that calls; nobody else knows the nonce with which it registered."""
    return process_of(nonce)


TheDesk = Annotated[Desk, Depends(_desk_of)]
TheProcess = Annotated[str, Depends(_process)]


class _Body(Response):
    """The body of a request, which is sent in its parts."""

    media_type = _BYTES

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(headers={"content-length": str(waiting.n_bytes)}, media_type=_BYTES)
        self._parts = tuple(waiting.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends head and parts."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in pieces(self._parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def reverse_routes(guard: str) -> APIRouter:
    """Returns the routes for nodes that dial out, which this guard lets in."""
    router = APIRouter(tags=["tiers"], dependencies=[guarded(guard)])

    @router.post("/polls", responses=problems(403, 409, 429))
    async def poll(body: Poll, request: Request, desk: TheDesk, process: TheProcess) -> PollAnswer:
        """Waits for requests for a node that dials out, which cannot be called."""
        disconnected = asyncio.ensure_future(request.receive())
        try:
            return await desk.poll(process, body.held, peer_in(request), disconnected)
        finally:
            disconnected.cancel()

    @router.get(
        "/requests/{request_id}",
        response_class=Response,
        responses=content(_BYTES, "The body of the request") | problems(403, 404),
    )
    async def body(request_id: str, request: Request, desk: TheDesk, process: TheProcess) -> Response:
        """The body of a request for the node."""
        return _Body(desk.find(process, request_id, peer_in(request)))

    @router.post("/requests/{request_id}", status_code=204, responses=problems(403, 404, 409))
    async def answer(request_id: str, request: Request, desk: TheDesk, process: TheProcess) -> None:
        """Takes the node's answer to a request, and hands it to whoever waits for it."""
        waiting = desk.find(process, request_id, peer_in(request))
        try:
            head = AnswerHead.model_validate_json(request.headers.get(ANSWER_HEADER, ""))
        except ValidationError as error:
            raise WireError(f"{ANSWER_HEADER}: {first_fault(error)[1]}", field=ANSWER_HEADER) from None
        await desk.answer(waiting, Answer(head, request.stream(), peer_in(request)))

    return router
