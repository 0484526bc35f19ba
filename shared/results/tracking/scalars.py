"""The figures of a run by round, its parameters and its tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from shared.core.errors import NotFound
from shared.results.folder import read_rounds, read_run
from shared.results.spec_differences import flat, text
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo

_LINKS = ("device_bytes_up", "device_bytes_down", "edge_bytes_up", "edge_bytes_down")


@dataclass(frozen=True)
class Step:
    """The figures of one round.

    Attributes:
        round_no: number of the round.
        kind: `train`, or `evaluate` after the last round.
        at_s: when the round ended, in seconds since 1970: the creation of the run plus its wall seconds so far.
        figures: by name, as `accuracy/global`.
    """

    round_no: int
    kind: str
    at_s: float
    figures: dict[str, float]


@dataclass(frozen=True)
class Tracked:
    """A run as it is sent to trackers.

    Attributes:
        begun_s, ended_s: in seconds since 1970; the end as far as known.
        params: the spec's fields by dotted key; empty until the spec is resolved, since MLflow keeps them fixed.
        tags: id, algorithm, status and digests.
    """

    info: RunInfo
    steps: tuple[Step, ...]
    begun_s: float
    ended_s: float
    params: dict[str, str]
    tags: dict[str, str]


def read_tracked(folder: Path) -> Tracked:
    """A results folder as it is sent to trackers.

    Raises:
        NotFound: the folder holds no run, or a file cannot be read.
    """
    try:
        return tracked_of(read_run(folder), read_rounds(folder))
    except ValueError as error:
        raise NotFound(f"{folder / 'run.json'}: created_at: {error}") from None


def tracked_of(info: RunInfo, rounds: Sequence[RoundInfo]) -> Tracked:
    """A run and its rounds as they are sent to trackers.

    Raises:
        ValueError: `created_at` is not a time.
    """
    begun_s = datetime.fromisoformat(info.created_at).timestamp()
    steps = tuple(_steps(rounds, begun_s))
    params = {key: text(value) for key, value in flat(info.spec).items()} if info.resolved else {}
    tags = {
        "strata.run": info.run,
        "strata.algorithm": info.algorithm,
        "strata.status": info.status,
        "strata.spec_sha256": info.spec.digest(),
        "strata.model_sha256": info.model_sha256 or "",
    }
    ended_s = steps[-1].at_s if steps else begun_s
    return Tracked(info, steps, begun_s, ended_s, params, {name: tag for name, tag in tags.items() if tag})


def _steps(rounds: Sequence[RoundInfo], begun_s: float) -> Iterator[Step]:
    wall_s = simulated_s = 0.0
    reasons = sorted({failure.reason for row in rounds for failure in row.failures})
    for row in rounds:
        wall_s += row.wall_s
        figures = _accuracies(row)
        if row.kind == "train":
            simulated_s += row.simulated_s
            figures |= _costs(row) | {"time/simulated_s": simulated_s}
            lost = Counter(failure.reason for failure in row.failures)
            figures |= {f"failures/{reason}": float(lost[reason]) for reason in reasons}
        yield Step(row.round_no, row.kind, begun_s + wall_s, figures)


def _path(label: str) -> str:
    """A metric's label as trackers accept it: `top_k(k=3)` is `top_k k-3`."""
    return re.sub(r"[^\w .-]+", " ", label.replace("=", "-")).strip()


def _accuracies(row: RoundInfo) -> dict[str, float]:
    """Metrics and losses of the global model, of training and of clients; the final evaluation has its own names."""
    after = "" if row.kind == "train" else "final_"
    found: dict[str, float | None] = {f"{after}loss/train": row.train_loss}
    for name, score in (row.evaluation or {}).items():
        found |= {f"{after}accuracy/{name}": score.accuracy, f"{after}loss/{name}": score.loss}
        found |= {f"{after}{_path(label)}/{name}": value for label, value in score.metrics.items()}
    of_clients = {f"clients_{which}": spread for which, spread in row.clients.items()}
    for label, spreads in row.client_metrics.items():
        of_clients |= {f"clients_{which} {_path(label)}": spread for which, spread in spreads.items()}
    for name, spread in of_clients.items():
        for part in ("mean", "min", "max", "worst_decile", "variance"):
            found[f"{after}{name}/{part}"] = getattr(spread, part)
    return {name: value for name, value in found.items() if value is not None}


def _costs(row: RoundInfo) -> dict[str, float]:
    return {
        **{f"bytes/{name}": float(getattr(row, name)) for name in _LINKS},
        "time/round_s": row.simulated_s,
        "energy_j": row.energy_j,
        "visits": float(row.n_visits),
        "used": float(row.n_used),
    }
