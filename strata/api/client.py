"""A client of the cloud's public REST API; its answers are the records of `shared.run_records`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import httpx2

from shared.core.errors import Busy, NotFound, StrataError, WireError
from shared.run_records.events import Event
from shared.run_records.plans import RunPlan
from shared.run_records.removals import Removals
from shared.run_records.rounds import RoundDetail, RoundPage
from shared.run_records.runs import RunInfo, RunPage, SeatPage
from shared.service.order_headers import MORE_HEADER
from shared.simulation.digital_twin import TwinList
from strata.api import answers
from strata.api.answers import R, Refused, parse, path, refused
from strata.api.outages import AWAY
from strata.api.sse import messages
from strata.api.topology_client import TopologyClient

_BACKOFF_S = 0.2
_BACKOFF_CAP_S = 2.0


class Client(TopologyClient):
    """A connection to one cloud, for everything that its public API offers.

    Args:
        url: address of the cloud, such as `http://host:port`.
        token: token for `Authorization: Bearer`; None means STRATA_API_TOKEN or the content of STRATA_API_TOKEN_FILE.
        timeout_s: longest wait for an answer.
        options: the others are those of `TopologyClient`.
    """

    # ---- runs

    def create_run(self, spec: Mapping[str, Any], key: str | None = None) -> RunInfo:
        """Start a run. A second call with the same key returns the same run."""
        key = key or uuid.uuid4().hex
        response = self._request("POST", "/runs", json={"spec": spec}, headers={"Idempotency-Key": key}, again=True)
        return parse(RunInfo, response)

    def plan(self, spec: Mapping[str, Any]) -> RunPlan:
        """What a run of a spec would be if it began now; nothing is started."""
        return parse(RunPlan, self._request("POST", "/plans", json={"spec": spec}))

    def runs(self, limit: int = 50, owner: str | None = None) -> tuple[RunInfo, ...]:
        """The newest runs first, of one owner if named, without those that the cloud cannot read."""
        return self.run_page(limit, owner).runs

    def run_page(self, limit: int = 50, owner: str | None = None) -> RunPage:
        """The newest runs first, of one owner if named, and those that the cloud cannot read."""
        return self._get(RunPage, "/runs", params={"limit": limit} | ({"owner": owner} if owner else {}))

    def run(self, run: str) -> RunInfo:
        """One run, by its id or by a name that one of the newest 500 has; `latest` is the newest.

        Raises:
            NotFound: there is none, or several have that name.
        """
        try:
            return self._get(RunInfo, path("runs", run))
        except NotFound:
            named = [info.run for info in self.runs(limit=500) if info.name == run]
            if len(named) > 1:
                newest = ", ".join(named[:3])
                raise NotFound(
                    f"{len(named)} runs are named {run!r}; give the id of one, the newest are {newest}"
                ) from None
            if not named:
                raise
            return self._get(RunInfo, path("runs", named[0]))

    def pause(self, run: str) -> RunInfo:
        """Pause the run after its current round."""
        return self._post(run, "pause")

    def resume(self, run: str, *, accept_changes: bool = False) -> RunInfo:
        """Resume a paused, stopped or failed run; `accept_changes` goes on with other data and packages than before."""
        return self._post(run, "resume", **({"params": {"accept_changes": True}} if accept_changes else {}))

    def stop(self, run: str) -> RunInfo:
        """Stop a run now; its committed rounds are kept."""
        return self._post(run, "stop")

    def change(self, run: str, *, max_devices: int | None = None, pinned: bool | None = None) -> RunInfo:
        """Raise the `max_devices` of a run that goes on with `partition: sampled`; pin a run, which is then kept."""
        body = {"max_devices": max_devices, "pinned": pinned}
        given = {name: value for name, value in body.items() if value is not None}
        return parse(RunInfo, self._request("PATCH", path("runs", run), json=given))

    def removals(self) -> Removals:
        """The ended runs that the cloud would remove now."""
        return self._get(Removals, "/removals")

    def remove_old(self) -> Removals:
        """Have the cloud remove them; returns those that it has removed."""
        return parse(Removals, self._request("POST", "/removals"))

    def delete(self, run: str, *, results: bool = False) -> None:
        """Remove a run that has ended, with its states and models; its results folder stays, unless `results`."""
        self._request("DELETE", path("runs", run), params={"results": True} if results else None)

    def rounds(self, run: str, skip: int = 0) -> RoundPage:
        """All committed rounds in order, without the first `skip`."""
        pages = self._pages(RoundPage, run, "rounds", str(skip))
        return RoundPage(rounds=tuple(row for page in pages for row in page.rounds))

    def _pages(self, kind: type[R], run: str, what: str, skip: str = "0") -> Iterator[R]:
        """The pages of a long list of a run."""
        while skip:
            answer = self._request("GET", path("runs", run, what), params={"skip": skip})
            yield parse(kind, answer)
            skip = answer.headers.get(MORE_HEADER, "")

    def round(self, run: str, round_no: int) -> RoundDetail:
        """One round with a record of each visit."""
        return self._get(RoundDetail, path("runs", run, "rounds", str(round_no)))

    def seats(self, run: str) -> SeatPage:
        """All seats of a run and the agents that host them, read page by page."""
        return SeatPage(seats=tuple(seat for page in self._pages(SeatPage, run, "seats") for seat in page.seats))

    def file_names(self, run: str) -> list[str]:
        """Names of the files in the run's results folder."""
        names = self._json(self._request("GET", path("runs", run, "files"))).get("files")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise WireError(f"{self.url} returned an invalid list of the files of run {run}")
        return names

    def download(self, run: str, *parts: str) -> Iterator[bytes]:
        """The bytes of `files/<name>` or `models/<name>` of a run, piece by piece; read it within `patiently`."""
        try:
            yield from self._connections.stream(_bytes, "GET", path("runs", run, *parts))
        except httpx2.HTTPError as error:
            raise self._broken(error) from error

    def twins(self, edge: str, run: str) -> TwinList:
        """The digital twins that an edge keeps of its workers in a run."""
        return self._get(TwinList, path("edges", edge, "twins"), params={"run": run})

    def agent_twins(self, agent: str, run: str) -> TwinList:
        """The digital twins of the seats that an agent hosts in a run."""
        return self._get(TwinList, path("agents", agent, "twin"), params={"run": run})

    # ---- events

    def events(self, run: str, *, after: str | None = None, idle_s: float = 5.0) -> Iterator[Event | None]:
        """The events of a run, from the first one or from after an id, without end: the reader decides when to stop.

        A broken connection is resumed after the last event; a cloud that has too many readers is asked again when it
        says. After a silence, a broken connection or such a refusal the iterator yields None, so that the reader can
        check the run itself.

        Raises:
            Unreachable: the cloud could not be reached again in time.
        """
        last, backoff_s = after, _BACKOFF_S
        while True:
            lost: StrataError | None = None
            wait_s = 0.0
            try:
                for event in self._stream(run, last, idle_s):
                    self._outages.answered()
                    backoff_s = _BACKOFF_S
                    last = event.id if event is not None else last
                    yield event
            except httpx2.ReadTimeout:
                pass  # the cloud was connected, but silent
            except Refused as error:
                if error.status not in AWAY:
                    raise
                wait_s, lost = float(error.retry_after_s or 0), None if error.code == Busy.code else error
            except httpx2.HTTPError as error:
                lost = self._broken(error)
            yield None
            if lost is not None:
                self._outages.bear(lost)
            time.sleep(max(backoff_s, wait_s))
            backoff_s = min(2 * backoff_s, _BACKOFF_CAP_S)

    def _stream(self, run: str, last: str | None, idle_s: float) -> Iterator[Event | None]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        timeout = httpx2.Timeout(self._connections.timeout.connect, read=idle_s)
        where = path("runs", run, "events")
        return self._connections.stream(_events, "GET", where, headers=headers, timeout=timeout)

    def _post(self, run: str, verb: str, **options: Any) -> RunInfo:
        return parse(RunInfo, self._request("POST", path("runs", run, verb), **options))


def _bytes(response: httpx2.Response) -> Generator[bytes, None, None]:
    _check(response)
    yield from response.iter_bytes()


def _events(response: httpx2.Response) -> Generator[Event | None, None, None]:
    _check(response)
    for message in messages(response.iter_lines()):
        yield None if message is None else answers.event(message.text)


def _check(response: httpx2.Response) -> None:
    if response.is_error:
        response.read()
        raise refused(response)
