"""The kinds of rounds: of a cloud that waits for all edges, and of one that does not (`sync.edges`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, cast

from cloud_server.runs.checkpoint import Checkpoint
from cloud_server.runs.loose_checkpoint import LooseCheckpoint
from cloud_server.runs.loose_round import LooseRound
from cloud_server.runs.round import CloudRound
from cloud_server.runs.round_map import round_map
from cloud_server.runs.run_state import CloudServices, RunState
from shared.run_records.runs import RunInfo

Attempt = CloudRound | LooseRound
"""An attempt at a round, before it runs."""


def new_round(
    services: CloudServices,
    info: RunInfo,
    state: RunState,
    kind: Literal["train", "evaluate"],
    attempt: int,
    keep: Callable[[Checkpoint[Any]], Awaitable[None]],
) -> Attempt:
    """An attempt at the next round of a run, or at the evaluation after its last one.

    Args:
        services: of the cloud.
        info: the run's document.
        state: of the run.
        kind: of the round; all seats evaluate together, whichever edges were in flight.
        attempt: counts from 1.
        keep: stores a checkpoint within the round.
    """
    experiment, checkpoint, manager = state.experiment, state.checkpoint, state.placement
    found, write = round_map(info.run, experiment, manager), partial(services.repository.write_state, info.run)
    if kind == "train" and experiment.spec.sync.edges.mode != "synchronous":
        return LooseRound(
            info.run,
            experiment,
            cast("LooseCheckpoint[Any]", checkpoint),
            manager,
            found,
            services.edges,
            services.thread,
            state.flights,
            write,
            keep,
            attempt,
        )
    return CloudRound(
        info.run,
        checkpoint.round_no + (kind == "train"),
        kind,
        experiment,
        checkpoint,
        manager,
        found,
        services.edges,
        services.thread,
        write,
        attempt=attempt,
        clock_s=info.simulated_s,
    )
