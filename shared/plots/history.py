"""The records of a run from which its pictures are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo


@dataclass(frozen=True)
class VisitSummary:
    """One visit in training.

    Attributes:
        label: the algorithm's label for it.
        figures: the algorithm's own figures of the visit.
        reason: why it was refused, or failed.
    """

    round_no: int
    seat: int
    edge: str
    outcome: str
    label: str | None
    figures: Mapping[str, Any]
    reason: str | None = None


@dataclass(frozen=True)
class RunHistory:
    """A run so far.

    Attributes:
        info: the run.
        rounds: those committed, in order.
        visits: those of training rounds, in order.
    """

    info: RunInfo
    rounds: tuple[RoundInfo, ...]
    visits: tuple[VisitSummary, ...] = ()

    @property
    def trained(self) -> tuple[RoundInfo, ...]:
        """The rounds that trained."""
        return tuple(row for row in self.rounds if row.kind == "train")
