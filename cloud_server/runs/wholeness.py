"""Whether Redis still holds all of a run. A run that has lost a part of itself ends, and says what is gone."""

from __future__ import annotations

from collections.abc import Collection

from cloud_server.runs.checkpoint import StateUnreadable
from shared.run_records.runs import RunInfo
from shared.storage import redis_keys

WHY = "was it emptied in part, or does it remove keys when its memory is full (maxmemory-policy)?"


def needed(run_id: str, n_rounds: int) -> dict[str, str]:
    """The keys that a run has after so many rounds, beside its state, and what each holds."""
    keys = {
        redis_keys.cloud_run(run_id): "the document",
        redis_keys.cloud_runs(run_id): "the entry in the index",
        redis_keys.cloud_placement(run_id): "the assignment of devices to agents",
        redis_keys.cloud_events(run_id): "the log of events",
    }
    return keys | ({redis_keys.cloud_rounds(run_id): "the log of rounds"} if n_rounds else {})


def gone(run_id: str, what: str) -> StateUnreadable:
    """The error of a run that has lost a part of itself."""
    return StateUnreadable(f"{what} of run {run_id} is gone from Redis: {WHY} Start a new run of its spec")


def check_whole(info: RunInfo, *, has_state: bool, rounds: Collection[int]) -> None:
    """Checks what is stored of a run against its document.

    Args:
        info: the document.
        has_state: whether there is a checkpoint.
        rounds: the numbers of the rounds in the log.

    Raises:
        StateUnreadable: the checkpoint or a round is gone.
    """
    if info.rounds and not has_state:
        have = f"run {info.run} has trained {info.rounds} rounds, but Redis holds no checkpoint of it"
        raise StateUnreadable(f"{have} (was it emptied?): start a new run of its spec")
    lost = next((number for number in range(1, info.rounds + 1) if number not in rounds), None)
    if lost is not None:
        raise gone(info.run, f"round {lost} of {info.rounds}")
