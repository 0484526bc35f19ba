"""What the cloud tells an edge of a run beside its orders: who hosts the seats that visit it."""

from __future__ import annotations

from pydantic import Field

from shared.core.records import Record
from shared.federation.placements import EdgePlacement
from shared.identity.assignments import SignedAssignment


class KeptPlacement(Record):
    """The placement of one edge of a run.

    Attributes:
        loads: how many seats of the run each of its agents hosts in all.
        assignments: by agent, the cloud's word that this edge may order its seats; empty without certificates.
    """

    placement: EdgePlacement
    loads: dict[str, int]
    assignments: dict[str, SignedAssignment] = Field(default_factory=dict)
