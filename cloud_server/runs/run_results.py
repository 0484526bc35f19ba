"""What is written of a run besides its rounds as they are committed: what its folder lacks, and its end."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from cloud_server.runs.results_writer import ResultsFolder, RoundDone
from cloud_server.runs.run_state import CloudServices, RunState
from cloud_server.runs.starts import kept_models
from shared.core.errors import StrataError
from shared.core.user_code import described
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo
from shared.storage.key_value import StoreUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResults:
    """The results of one run.

    Attributes:
        services: of the cloud.
        folder: its results folder.
    """

    services: CloudServices
    folder: ResultsFolder

    async def round_done(self, info: RunInfo, state: RunState, row: RoundInfo, *, due: bool = False) -> None:
        """Have a committed round written; `due` as long as its evaluation is pending."""
        await self.folder.round_done(RoundDone(info, state.experiment, state.placement, row, due))

    async def catch_up(self, info: RunInfo, state: RunState, due: Collection[int] = ()) -> None:
        """Write the committed rounds that the folder lacks, all of them if files were removed from it.

        Args:
            info: the run.
            state: its last checkpoint.
            due: the rounds whose evaluation is pending.
        """
        repository = self.services.repository
        written = max(await self.folder.last(info.run), 1)  # the last one perhaps in part
        for row in await repository.rounds(info.run):  # an evaluation may have come after its round was written
            if row.round_no < written:
                await self.round_done(info, state, row, due=row.round_no in due)
        async for detail in repository.details(info.run, range(written, state.checkpoint.round_no + 1)):
            await self.round_done(info, state, detail, due=detail.round_no in due)

    async def write(self, info: RunInfo, state: RunState | None) -> None:
        """Bring the folder up to date with what has been committed; without a state only the record is written.

        Raises:
            ResultsIncomplete: a file cannot be written.
        """
        if state is None:
            await self.folder.begun(info)
            return
        await self.folder.settle()
        if await self.folder.last(info.run) < state.checkpoint.round_no:
            await self.catch_up(info.replace(status="running"), state)
        rounds = await self.services.repository.rounds(info.run)
        models = await kept_models(self.services, info, state)
        await self.folder.ended(info, state.experiment, state.placement, rounds, models)
        for _ in range(2):  # the first call keeps files written since the last one, as their transaction may follow
            await self.services.repository.delete_unreferenced_files()

    async def write_failure(self, info: RunInfo, state: RunState | None) -> RunInfo:
        """Write what can be of a run that failed; returns it with what could not be written as a further reason."""
        try:
            await self.write(info, state)
            return info
        except StoreUnavailable:
            raise
        except StrataError as error:
            why = error.detail
        except Exception as error:
            log.exception("results of run %s", info.run)
            why = described(error)
        reason = info.reason or ""
        said = why.partition(":")[0] in reason  # perhaps of another file
        info = info.replace(reason=(reason if said else f"{reason}; {why}")[:2000])
        with suppress(StrataError):  # a small file may have room where a model has none
            await self.folder.begun(info)
        return info
