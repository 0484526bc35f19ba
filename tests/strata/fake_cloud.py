"""A fake cloud behind real HTTP: it serves the models of `shared.run_records.runs` and does not train."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from shared.federation.spec_parser import parse_run_spec
from shared.run_records.events import Event
from shared.run_records.removals import Removal, Removals
from shared.run_records.rounds import RoundDetail, RoundInfo, RoundPage
from shared.run_records.runs import RunChange, RunInfo
from shared.service.api.algorithms import AlgorithmInfo
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo
from shared.service.api.users import NewToken, TokenAnswer, UserInfo, UserPage
from shared.service.order_headers import MORE_HEADER
from shared.simulation.digital_twin import TwinList
from tests.strata.samples import a_round, a_run, a_twin, some_seats

Content = bytes | Callable[[str], bytes]
"""The content of a file, or a function of its run that returns it."""

FILES: dict[str, Content] = {
    "spec.yaml": b"name: small\n",
    "rounds.csv": b"round_no\n1\n",
    "plots/accuracy.png": b"\x89PNG picture",
    "run.json": b"{}",
}


class FakeCloud:
    """The answers of the cloud and the requests that it got.

    A run has `n_rounds` rounds; each step of `script` sends one event and changes the run to the state that the event
    names. With `waits_for_reads` a step is taken when the run has been read since the one before.
    """

    def __init__(self) -> None:
        self.token: str | None = None
        self.n_rounds = 3
        self.ends_as = "completed"
        self.holds = False
        self.waits_for_reads, self.n_reads = False, 0
        self.accepted = False
        self.breaks_after: int | None = None
        self.busy_times = 0
        self.away_times = 0
        """Requests that a proxy answers in its place once a stream of events has begun."""
        self.stream_starts: list[str | None] = []
        self.runs: dict[str, RunInfo] = {"r1": a_run()}
        self.seen: list[tuple[str, str]] = []
        self.keys: list[str | None] = []
        self.run_of_key: dict[str, str] = {}
        self.specs: list[dict[str, Any]] = []
        self.files = dict(FILES)
        self.models: dict[str, bytes] = {}
        self.missing: tuple[str, ...] = ()
        self.users: dict[str, UserInfo] = {}
        self.results_removed: list[str] = []
        self.removals: list[Removal] = []
        self.idle_edges: tuple[str, ...] = ()
        self.rounds: list[RoundDetail] = [a_round(number) for number in (1, 2, 3)]
        self.app = _app(self)

    def find(self, run: str) -> RunInfo:
        return self.runs[list(self.runs)[-1] if run == "latest" else run]

    def change(self, run: str, **changes: Any) -> RunInfo:
        self.runs[run] = self.runs[run].replace(**changes)
        return self.runs[run]

    def script(self) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Returns (kind of event, its data, changes of the run) in order."""
        steps: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("run.status", {}, {"status": "running"})]
        for number in range(1, self.n_rounds + 1):
            scores = {"global": {"n": 10, "accuracy": number / 10, "loss": 1.0 / number}}
            steps += [
                ("round.started", {"round_no": number}, {}),
                ("contribution.lost", {"seat": 0, "reason": "dropped", "detail": "it dropped out"}, {}),
                ("round.committed", {}, {"rounds": number, "bytes_up": 200 * number}),
                ("round.evaluated", {"round_no": number, "evaluation": scores}, {}),
            ]
        end = {"status": self.ends_as, "accuracy": 0.93, "loss": 0.3}
        end |= {"reason": "no device left"} if self.ends_as == "failed" else {}
        return [*steps, ("run.status", {"status": self.ends_as}, end)]


def _app(cloud: FakeCloud) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Response:
        cloud.seen.append((request.method, request.url.path))
        if cloud.token and request.headers.get("authorization") != f"Bearer {cloud.token}":
            return _problem(401, "unauthorised", "the API token is missing or wrong")
        if cloud.away_times and cloud.stream_starts:
            cloud.away_times -= 1
            return Response("<html>Bad Gateway</html>", 502)
        parts = request.url.path.split("/")
        if parts[1] == "runs" and len(parts) > 2 and parts[2] not in {*cloud.runs, "latest"}:
            return _problem(404, "not_found", f"no run {parts[2]}")
        answer: Response = await call_next(request)
        return answer

    _runs(app, cloud)
    _serve_nodes(app, cloud)
    _serve_users(app, cloud)
    return app


def _serve_users(app: FastAPI, cloud: FakeCloud) -> None:
    @app.get("/removals")
    async def removals() -> Removals:
        return Removals(runs=tuple(cloud.removals))

    @app.post("/removals")
    async def remove_old() -> Removals:
        cloud.removals, gone = [], cloud.removals
        return Removals(runs=tuple(gone))

    @app.get("/tokens")
    async def users() -> UserPage:
        return UserPage(users=tuple(cloud.users.values()))

    @app.post("/tokens", status_code=201)
    async def add(body: NewToken) -> TokenAnswer:
        cloud.users[body.name] = UserInfo(**body.model_dump(), created_at="2026-11-30T00:00", n_runs=1, n_bytes=2000)
        return TokenAnswer(name=body.name, token="strata_secret")  # noqa: S106

    @app.delete("/tokens/{name}", status_code=204)
    async def remove(name: str) -> None:
        del cloud.users[name]


def _runs(app: FastAPI, cloud: FakeCloud) -> None:
    @app.post("/runs")
    async def create(request: Request) -> Response:
        body = await request.json()
        key = request.headers.get("idempotency-key")
        cloud.keys.append(key)
        cloud.specs.append(body["spec"])
        if body["spec"].get("lr") == 99:
            return _problem(422, "bad_input", "lr: too large", field="lr")
        run = cloud.run_of_key.setdefault(str(key), f"r{len(cloud.runs) + 1}")
        if run not in cloud.runs:
            fresh: dict[str, Any] = {
                "rounds": 0,
                "accuracy": None,
                "loss": None,
                "bytes_up": 0,
                "num_rounds": cloud.n_rounds,
            }
            asked = parse_run_spec(body["spec"])
            fresh |= {"spec": asked.experiment, "tracking": asked.tracking}
            cloud.runs[run] = a_run(run=run, status="pending", **fresh)
        return JSONResponse(cloud.runs[run].model_dump(mode="json"), 201)

    @app.get("/runs")
    async def runs(limit: int, owner: str | None = None) -> Any:
        newest = [info for info in reversed(cloud.runs.values()) if owner in (None, info.owner_name)][:limit]
        return {"runs": [info.model_dump(mode="json") for info in newest]}

    @app.get("/runs/{run}")
    async def run(run: str) -> Any:
        cloud.n_reads += 1
        return cloud.find(run).model_dump(mode="json")

    @app.delete("/runs/{run}", status_code=204)
    async def delete(run: str, results: bool = False) -> None:
        """Removes nothing; that it was asked stands in `seen`, and in `results_removed` if for results too."""
        cloud.results_removed += [run] * results

    @app.patch("/runs/{run}")
    async def change(run: str, body: RunChange) -> Any:
        return cloud.change(run, pinned=bool(body.pinned)).model_dump(mode="json")

    @app.post("/runs/{run}/{verb}")
    async def change_run(run: str, verb: str, accept_changes: bool = False) -> Any:
        cloud.accepted = cloud.accepted or accept_changes
        status = {"pause": "pausing", "resume": "running", "stop": "stopped"}[verb]
        return cloud.change(run, status=status, reason=None).model_dump(mode="json")

    @app.get("/runs/{run}/rounds")
    async def rounds(run: str, response: Response, skip: int = 0) -> Any:
        infos = [RoundInfo.model_validate(row.model_dump(exclude={"seats"})) for row in cloud.rounds]
        page, more = RoundPage.of(infos, skip)
        if more is not None:
            response.headers[MORE_HEADER] = str(more)
        return page.model_dump(mode="json")

    @app.get("/runs/{run}/rounds/{number}")
    async def one_round(run: str, number: int) -> Any:
        return cloud.rounds[number - 1].model_dump(mode="json")

    @app.get("/runs/{run}/seats")
    async def seats(run: str) -> Any:
        return {"seats": [seat.model_dump(mode="json") for seat in some_seats()]}

    @app.get("/runs/{run}/events")
    async def events(run: str, request: Request) -> Response:
        if cloud.busy_times:
            cloud.busy_times -= 1
            refused = _problem(503, "busy", "too many clients")
            refused.headers["retry-after"] = "0"
            return refused
        after = request.headers.get("last-event-id")
        cloud.stream_starts.append(after)
        return StreamingResponse(_stream(cloud, run, int(after or 0)), media_type="text/event-stream")

    @app.get("/runs/{run}/models/{name}")
    async def model(run: str, name: str) -> Response:
        if not cloud.runs[run].resolved:
            return _problem(409, "conflict", "it has not started yet")
        if cloud.runs[run].rounds == 0:
            return _problem(404, "not_found", "no committed round yet")
        return Response(cloud.models.get(name, b"tensors of " + name.encode()))

    @app.get("/runs/{run}/files")
    async def files(run: str) -> Any:
        return {"files": sorted(cloud.files)}

    @app.get("/runs/{run}/files/{name:path}")
    async def file(run: str, name: str) -> Response:
        content = cloud.files[name]
        return Response(content if isinstance(content, bytes) else content(run))


async def _stream(cloud: FakeCloud, run: str, after: int) -> AsyncIterator[str]:
    n_reads = cloud.n_reads
    yield ": hello\n\n"
    for number, (kind, data, changes) in enumerate(cloud.script(), start=1):
        if number <= after:
            continue
        if cloud.holds and number == 4:
            return
        if cloud.breaks_after == number - 1:
            cloud.breaks_after = None
            yield f"id: {number}\nevent: {kind}\ndata: half of a mess"
            raise ConnectionError("the network broke, as the test wished")
        while cloud.waits_for_reads and cloud.n_reads == n_reads:  # noqa: ASYNC110 - a request sets no event
            await asyncio.sleep(0.001)
        n_reads = cloud.n_reads
        cloud.change(run, **changes)
        event = Event(id=str(number), kind=kind, at="2026-01-02T03:04:05Z", data=data)
        yield f"id: {number}\nevent: {kind}\ndata: {event.model_dump_json()}\n\n"


def _serve_nodes(app: FastAPI, cloud: FakeCloud) -> None:
    edge = EdgeInfo(edge="edge-1", url="http://127.0.0.1:1", state="alive", last_seen_s=0.5, n_agents=1)
    agent = AgentInfo(
        agent="a-1", name="agent-1", state="alive", last_seen_s=0.5, devices=5, profile="standard", seats=(0, 1)
    )

    @app.get("/topology")
    async def topology() -> Any:
        return TopologyInfo(n_devices=5, n_agents=1, edges=(edge,), agents=(agent,)).model_dump(mode="json")

    @app.get("/edges/{name}/twins")
    @app.get("/agents/{name}/twin")
    async def twins(name: str, run: str) -> Any:
        if name in cloud.idle_edges:
            return _problem(404, "not_found", f"edge {name} keeps no twins of run {run}")
        return TwinList(twins=(a_twin(),)).model_dump(mode="json")

    @app.get("/edges")
    async def edges() -> Any:
        found = [edge, *(edge.replace(edge=name) for name in cloud.idle_edges)]
        return {"edges": [each.model_dump(mode="json") for each in found]}

    @app.get("/agents")
    async def agents() -> Any:
        return {"agents": [agent.model_dump(mode="json")]}

    @app.get("/algorithms")
    async def algorithms() -> Any:
        only = AlgorithmInfo(name="remote_avg", paper="A: Paper. 2026", params={"properties": {"mu": {"default": 1}}})
        return {"algorithms": [only.model_dump(mode="json")]}

    @app.get("/readyz")
    async def readyz() -> Response:
        status = "not_ready" if cloud.missing else "ok"
        body = {"status": status, "tier": "cloud", "version": "1", "missing": list(cloud.missing)}
        return JSONResponse(body, 503 if cloud.missing else 200)


def _problem(status: int, code: str, detail: str, field: str | None = None) -> JSONResponse:
    body = {"title": code, "status": status, "code": code, "detail": detail, "field": field}
    return JSONResponse(body, status, media_type="application/problem+json")


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serves an app on a free loopback port in a thread; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listener.close()
