"""The endpoints of runs. JSON; tensors as safetensors; errors as problem+json."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import FileResponse, StreamingResponse
from safetensors.torch import save
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloud_server.dependencies import OWNER_WRITES, Requests, TheCloud
from cloud_server.runs.event_feed import EventClient
from shared.core.bounds import LARGEST_SEATS
from shared.core.clocks import is_off, told_clock
from shared.core.errors import NotFound
from shared.core.number_sets import NumberSet
from shared.federation.registry import all_algorithms
from shared.results.folder import file_names
from shared.run_records.plans import RunPlan
from shared.run_records.removals import Removals
from shared.run_records.rounds import RoundDetail, RoundPage
from shared.run_records.runs import SEATS_A_PAGE, FilePage, MoreRounds, NewRun, RunChange, RunInfo, RunPage, SeatPage
from shared.service.api.algorithms import AlgorithmInfo, AlgorithmList
from shared.service.api.health import Health
from shared.service.app import health
from shared.service.auth import ONLY_ADMIN, bearer, guarded, user_of
from shared.service.json_bodies import unambiguous
from shared.service.openapi import EVENT, RunId, content, problems
from shared.service.order_headers import MEDIA_TYPE, MORE_HEADER
from shared.storage.key_value.store import unavailable

open_router = APIRouter(tags=["health"])
router = APIRouter(dependencies=[guarded("API"), OWNER_WRITES, unambiguous()])
NO_RUN = problems(404)
NOT_NOW = problems(404, 409)
OVER_LIMIT = problems(429, 507)
Name = Annotated[str, Path(max_length=300)]
RoundNo = Annotated[int, Path(ge=0, le=10**9)]
MAX_KEY_CHARS = 200
"""Longest `Idempotency-Key`."""
MAX_WARNINGS = 20
"""Most warnings that `GET /readyz` returns."""
MAX_RUNS_LISTED = 1000
"""Most runs that `GET /runs` returns."""


@open_router.get("/healthz")
async def healthz() -> Health:
    """Alive."""
    return health("cloud")


@open_router.get("/readyz", responses={503: {"model": Health}})
async def readyz(cloud: TheCloud, response: Response) -> Health:
    """Whether this cloud owns a Redis that answers, and an edge and an agent are alive; `missing` names what is not."""
    watch, why = cloud.store_watch, await unavailable(cloud.store)
    left_out = f" (left out: {text})" if (text := cloud.registry.left_out()) else ""
    found = {
        f"Redis: {why}": why is None,
        f"the ownership of Redis: {cloud.ownership.standing_by()}": cloud.ownership.held.is_set(),
        f"a Redis that takes writes: {cloud.ownership.refusal}": cloud.ownership.refusal is None,
        f"a Redis that keeps what is stored: it {watch.refusal}": watch.refusal is None,
        f"an edge{left_out}": cloud.registry.live_edges(),
        f"a device{left_out}": cloud.registry.live_agents(),
    }
    missing = tuple(name for name, present in found.items() if not present)
    response.status_code = 503 if missing else 200
    warnings = [f"Redis {text}" for text in watch.warnings]
    warnings += [
        told_clock(f"{kind} {name}", ahead_s) for kind, name, ahead_s in cloud.registry.clocks() if is_off(ahead_s)
    ]
    warnings += cloud.registry.call_back.recent() + cloud.registry.others.words()
    warnings += cloud.identities.wrong_clocks() if cloud.identities else []
    return health("cloud", missing, tuple(dict.fromkeys(warnings))[:MAX_WARNINGS])


# ---- runs


@router.post("/runs", status_code=201, tags=["runs"], responses=problems(409, 429, 507))
async def create_run(
    body: NewRun, requests: Requests, idempotency_key: Annotated[str | None, Header(max_length=MAX_KEY_CHARS)] = None
) -> RunInfo:
    """Create a run of a spec; it starts when no other run trains. The same key returns the same run."""
    return await requests.create(body.spec, idempotency_key)


@router.post("/plans", tags=["runs"], responses=problems(429))
async def plan(body: NewRun, request: Request, cloud: TheCloud) -> RunPlan:
    """What a run of a spec would be with the present agents: how data and model are read, times, and idle fields."""
    return await cloud.runs.planner.plan(body.spec, user_of(request))


@router.get("/runs", tags=["runs"])
async def list_runs(
    cloud: TheCloud,
    limit: Annotated[int, Query(ge=1, le=MAX_RUNS_LISTED)] = 50,
    owner: Annotated[str | None, Query(max_length=64, description="A user, or `admin`.")] = None,
) -> RunPage:
    """The newest runs, of one owner if named; `unreadable` are those whose documents this version cannot read."""
    return await cloud.runs.page(limit, owner)


@router.get("/runs/{run_id}", tags=["runs"], responses=NOT_NOW)
async def get_run(run_id: RunId, cloud: TheCloud) -> RunInfo:
    """The status and the totals of a run; `latest` is the newest one that can be read."""
    return await cloud.runs.info(run_id)


@router.delete("/runs/{run_id}", status_code=204, tags=["runs"], responses=NOT_NOW)
async def delete_run(run_id: RunId, requests: Requests, results: bool = False) -> None:
    """Delete a run that has ended or cannot be read; other tiers follow at their next heartbeats.

    Its results folder stays, unless `results`; that also removes the folder of a run that was deleted before.
    """
    await requests.delete(run_id, results=results)


@router.patch("/runs/{run_id}", tags=["runs"], responses=NOT_NOW)
async def change_run(run_id: RunId, body: RunChange, requests: Requests) -> RunInfo:
    """Raise the `max_devices` of a run that goes on with `partition: sampled`; pin a run, which is then kept."""
    return await requests.change(run_id, body)


@router.post("/runs/{run_id}/rounds", tags=["runs"], responses=NOT_NOW | OVER_LIMIT)
async def more_rounds(run_id: RunId, body: MoreRounds, requests: Requests) -> RunInfo:
    """Add rounds to the end of a run, which then has at most 100,000; `stop` may end them early."""
    return await requests.add_rounds(run_id, body.num_rounds, body.accept_changes, body.stop)


@router.post("/runs/{run_id}/pause", tags=["runs"], responses=NOT_NOW)
async def pause(run_id: RunId, requests: Requests) -> RunInfo:
    """Pause after the present round."""
    return await requests.pause(run_id)


@router.post("/runs/{run_id}/resume", tags=["runs"], responses=NOT_NOW | OVER_LIMIT)
async def resume(run_id: RunId, requests: Requests, accept_changes: bool = False) -> RunInfo:
    """Continue from the last committed round; `accept_changes` goes on with other data and packages than before."""
    return await requests.resume(run_id, accept_changes)


@router.post("/runs/{run_id}/stop", tags=["runs"], responses=NOT_NOW)
async def stop(run_id: RunId, requests: Requests) -> RunInfo:
    """Stop now; the present round is discarded."""
    return await requests.stop_run(run_id)


@router.get("/runs/{run_id}/rounds", tags=["runs"], responses=NO_RUN)
async def list_rounds(
    run_id: RunId, cloud: TheCloud, response: Response, skip: Annotated[int, Query(ge=0, le=10**9)] = 0
) -> RoundPage:
    """The committed rounds after the first `skip`.

    Of many rounds, the header `strata-more` says how many the next page skips.
    """
    info = await cloud.repository.info(run_id)
    page, more = RoundPage.of(await cloud.repository.rounds(info.run), skip)
    if more is not None:
        response.headers[MORE_HEADER] = str(more)
    return page


@router.get("/runs/{run_id}/rounds/{round_no}", tags=["runs"], responses=NO_RUN)
async def get_round(run_id: RunId, round_no: RoundNo, cloud: TheCloud) -> RoundDetail:
    """One round, with a row for each task."""
    info = await cloud.repository.info(run_id)
    return await cloud.repository.round(info.run, round_no)


@router.get("/runs/{run_id}/seats", tags=["runs"], responses=NOT_NOW)
async def list_seats(
    run_id: RunId, cloud: TheCloud, response: Response, skip: Annotated[int, Query(ge=0, lt=LARGEST_SEATS)] = 0
) -> SeatPage:
    """The devices of a run after the first `skip`, with their data and the agents that host them.

    Of many devices, the header `strata-more` says how many the next page skips.
    """
    found = await cloud.runs.seats(run_id, NumberSet(range(skip, skip + SEATS_A_PAGE + 1)))
    if len(found) > SEATS_A_PAGE:
        response.headers[MORE_HEADER] = str(skip + SEATS_A_PAGE)
    return SeatPage(seats=found[:SEATS_A_PAGE])


@router.get(
    "/runs/{run_id}/models/{name}",
    tags=["runs"],
    response_class=Response,
    responses=content(MEDIA_TYPE, "A safetensors file") | NOT_NOW,
)
async def get_model(run_id: RunId, name: Name, cloud: TheCloud) -> Response:
    """A model of the last committed round as safetensors."""
    model = await cloud.runs.model(run_id, name)
    body = await cloud.threads[0].run(lambda: save({key: tensor.contiguous() for key, tensor in model.items()}))
    return Response(body, media_type=MEDIA_TYPE)


@router.get("/runs/{run_id}/files", tags=["runs"], responses=NO_RUN)
async def list_files(run_id: RunId, cloud: TheCloud) -> FilePage:
    """The names in the run's results folder."""
    info = await cloud.repository.info(run_id)
    return FilePage(files=tuple(file_names(cloud.results.folder(info.run))))


@router.get(
    "/runs/{run_id}/files/{name:path}",
    tags=["runs"],
    response_class=FileResponse,
    responses=content("*/*", "The file") | NO_RUN,
)
async def get_file(run_id: RunId, name: Name, cloud: TheCloud) -> FileResponse:
    """One file of the results folder."""
    info = await cloud.repository.info(run_id)
    folder = cloud.results.folder(info.run)
    if name not in file_names(folder):
        raise NotFound(f"run {info.run} has no file {name!r}")
    return FileResponse(folder / name)


@router.get("/removals", tags=["runs"])
async def removals(cloud: TheCloud) -> Removals:
    """The ended runs that would be removed now, the first first; see `CLOUD_KEEP_DAYS` and `CLOUD_KEEP_BYTES`."""
    return await cloud.retention.preview()


@router.post("/removals", tags=["runs"], dependencies=[ONLY_ADMIN])
async def remove(cloud: TheCloud) -> Removals:
    """Remove them now, with their results folders; the cloud does so every hour."""
    return await cloud.retention.remove()


# ---- events


@router.get(
    "/runs/{run_id}/events",
    tags=["runs"],
    response_class=StreamingResponse,
    responses=content("text/event-stream", "Events; `data` is an `Event`", EVENT) | problems(404, 503),
)
async def events(
    run_id: RunId,
    request: Request,
    cloud: TheCloud,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,19}(-[0-9]{1,19})?$")] = None,
) -> StreamingResponse:
    """The events of a run as server-sent events; after a broken connection, `Last-Event-ID` continues the stream."""
    info = await cloud.repository.info(run_id)
    user, token = user_of(request), bearer(request)
    client = cloud.events.open(info.run, last_event_id or "0")
    return EventResponse(client, lambda: user is None or cloud.users.tokens.name(token) == user)


class EventResponse(StreamingResponse):
    """The stream of a client, which ends with the response, also with one that never began.

    Args:
        client: of the events.
        may_read: whether its caller may read on; asked before each send.
    """

    def __init__(self, client: EventClient, may_read: Callable[[], bool]) -> None:
        async def sent() -> AsyncIterator[bytes]:
            async for chunk in client.stream:
                if not may_read():
                    return
                yield chunk

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(sent(), media_type="text/event-stream", headers=headers)
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._client.close()


# ---- algorithms


@router.get("/algorithms", tags=["algorithms"])
async def algorithms() -> AlgorithmList:
    """The algorithms with the JSON schemas of their parameters."""
    return AlgorithmList(
        algorithms=tuple(
            AlgorithmInfo(name=a.name, paper=a.paper, params=a.params.model_json_schema())
            for a in all_algorithms().values()
        )
    )
