"""The lives of runs: one trains at a time, the others are pending; a restarted cloud goes on where it stood."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import UTC, datetime
from typing import Any

from cloud_server.archive import Happening, now
from cloud_server.course import Course, Tools
from cloud_server.folder import seat_infos
from cloud_server.seating import Table
from shared import wire
from shared.api import FINAL, RunInfo, SeatInfo
from shared.errors import Conflict, NotFound, StrataError
from shared.lab import Lab
from shared.records import TensorMap
from shared.spec import ExperimentSpec, canonical, check_names, parse_spec

log = logging.getLogger(__name__)
UNFINISHED = ("starting", "running", "pausing", "stopping")
WAITING = "waiting: another run trains"


class Runner:
    """Takes runs in the order of their creation."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.course: Course | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up what an earlier cloud process left, then train what is pending."""
        for run_id in await self.tools.archive.run_ids():
            info = await self.tools.archive.info(run_id)
            if info.status in UNFINISHED:
                after = {"pausing": "paused", "stopping": "stopped"}.get(info.status, "pending")
                await self._save(info.but(status=after, reason="the cloud was restarted"))
        self._task = asyncio.create_task(self._forever())

    async def stop(self) -> None:
        """Let go; a run in the middle of a round resumes from its last committed one when the cloud is back."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.tools.judge.drop()

    # ---- what people ask for

    async def create(self, raw: dict[str, Any], key: str | None) -> RunInfo:
        """A new run of a spec.

        Raises:
            BadInput: the spec is wrong; names field and cause.
            Conflict: the idempotency key was used with another spec.
        """
        spec = parse_spec(raw)
        check_names(spec)
        info = RunInfo(
            run=new_run_id(),
            name=spec.name,
            algorithm=spec.algorithm.name,
            status="pending",
            created_at=now(),
            num_rounds=total_rounds(spec),
            reason=WAITING if self.course else None,
            spec=spec,
        )
        run_id = await self.tools.archive.create(info, key, wire.digest_of(canonical(spec).encode()))
        self._wake.set()
        return await self.tools.archive.info(run_id)

    async def pause(self, run_id: str) -> RunInfo:
        """Pause after the present round."""
        info = await self.tools.archive.info(run_id)
        if self._is_active(info) and self.course:
            return await self._wish("pause")
        if info.status == "pending":
            return await self._save(info.but(status="paused", reason=None))
        raise Conflict(f"run {info.run} is {info.status}: only a pending or running one can be paused")

    async def stop_run(self, run_id: str) -> RunInfo:
        """Stop now; what the present round did so far is dropped."""
        info = await self.tools.archive.info(run_id)
        if self._is_active(info) and self.course:
            return await self._wish("stop")
        if info.status in ("pending", "paused"):
            return await self._save(info.but(status="stopped", reason=None))
        raise Conflict(f"run {info.run} is {info.status}: it has ended already")

    async def resume(self, run_id: str) -> RunInfo:
        """Go on from the last committed round."""
        info = await self.tools.archive.info(run_id)
        if info.status not in ("paused", "stopped", "failed"):
            raise Conflict(
                f"run {info.run} is {info.status}: only a paused, stopped or failed one can be resumed"
            )
        return await self._pend(info)

    async def more(self, run_id: str, num_rounds: int) -> RunInfo:
        """Train so many rounds more."""
        info = await self.tools.archive.info(run_id)
        if self._is_active(info) and self.course:
            self.course.info = self.course.info.but(num_rounds=self.course.info.num_rounds + num_rounds)
            return await self._save(self.course.info)
        info = info.but(num_rounds=info.num_rounds + num_rounds)
        return await self._pend(info) if info.status in FINAL else await self._save(info)

    async def _wish(self, wish: Any) -> RunInfo:
        course = self.course
        if course is None:
            raise Conflict("no run trains")
        course.ask(wish)
        course.info = course.info.but(status="pausing" if wish == "pause" else "stopping", reason=None)
        return await self._save(course.info)

    async def _pend(self, info: RunInfo) -> RunInfo:
        info = await self._save(info.but(status="pending", reason=WAITING if self.course else None))
        self._wake.set()
        return info

    async def _save(self, info: RunInfo) -> RunInfo:
        await self.tools.archive.save(
            info, Happening("run.status", {"status": info.status, "reason": info.reason})
        )
        return info

    def _is_active(self, info: RunInfo) -> bool:
        return self.course is not None and self.course.info.run == info.run and info.status not in FINAL

    # ---- what people look at

    async def seats(self, run_id: str) -> tuple[SeatInfo, ...]:
        """The seats of a run.

        Raises:
            Conflict: the run has not started, so its numbers are not known yet.
        """
        info = await self.tools.archive.info(run_id)
        lab = await self._lab_of(info)
        table = Table(
            lab.members,
            self.tools.registry,
            await self.tools.archive.binding(info.run),
            info.spec.timeouts.reseat_after_s,
        )
        kept = await self.tools.archive.committed(info.run, lab)
        retired = kept[0].retired if kept else {}
        return await self.tools.worker.run(seat_infos, lab, table, retired)

    async def model(self, run_id: str, name: str) -> TensorMap:
        """A model of the last committed state.

        Raises:
            NotFound: no model of that name; lists those there are.
        """
        info = await self.tools.archive.info(run_id)
        lab = await self._lab_of(info)
        kept = await self.tools.archive.committed(info.run, lab)
        if kept is None:
            raise NotFound(f"run {info.run} has no committed round yet")
        ctx = lab.ctx(
            phase=lab.phase_of(max(kept[0].round_no, 1)).name, round_no=kept[0].round_no, n_clients=1
        )
        models = lab.algorithm.cloud.models(ctx, kept[0].state)
        if name not in models:
            raise NotFound(
                f"run {info.run} has no model {name!r}; it has {', '.join(sorted(models)) or 'none'}"
            )
        return models[name]

    async def _lab_of(self, info: RunInfo) -> Lab:
        if not info.resolved:
            raise Conflict(f"run {info.run} is {info.status}: it has not started yet")
        return await self.tools.worker.run(self.tools.labs.of, info.spec)

    # ---- training

    async def _forever(self) -> None:
        while True:
            info = await self._next_pending()
            if info is None:
                self._wake.clear()
                await asyncio.gather(_first(self._wake.wait(), 5.0))
                continue
            self.course = Course(self.tools, info)
            try:
                await self._train(self.course)
            finally:
                self.course = None

    async def _next_pending(self) -> RunInfo | None:
        for run_id in reversed(await self.tools.archive.run_ids()):
            info = await self.tools.archive.info(run_id)
            if info.status == "pending":
                return info
        return None

    async def _train(self, course: Course) -> None:
        """A course whose failure is a status with its reason."""
        try:
            await course.run()
        except StrataError as error:
            log.warning("run %s failed: %s", course.info.run, error.detail)
            await self._failed(course, error.detail)
        except Exception as error:
            log.exception("run %s failed", course.info.run)
            await self._failed(course, f"internal error: {type(error).__name__}: {error}")

    async def _failed(self, course: Course, reason: str) -> None:
        await self.tools.judge.drop()
        await self._save(course.info.but(status="failed", reason=reason[:2000]))


async def _first(waited: Any, limit_s: float) -> None:
    try:
        await asyncio.wait_for(waited, limit_s)
    except TimeoutError:
        return


def new_run_id() -> str:
    """An id of fixed length that sorts by time: `r20261121-134502-1f3a`."""
    return f"r{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def total_rounds(spec: ExperimentSpec) -> int:
    """Rounds of all phases of the spec's algorithm."""
    from shared.algorithms import load_algorithm

    algorithm = load_algorithm(spec.algorithm.name)
    return sum(
        phase.num_rounds for phase in algorithm.phases(spec, algorithm.parse_params(spec.algorithm.params))
    )
