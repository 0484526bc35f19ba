"""What is recorded of one visit: a client task of one seat in one round."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from shared.core.records import Record


class FailureInfo(Record):
    """A contribution that was lost, and why: `reason` is one of a fixed set, `detail` says it in words.

    Where a whole edge was lost, `seats` are those whose contributions went with it.
    """

    seat: int | None = None
    edge: str | None = None
    seats: tuple[int, ...] = ()
    reason: str
    detail: str


class SeatRow(Record):
    """What one seat did in one round.

    `outcome`: `used`, `used_late`, `refused`, `failed`, `evaluated`, `collected`, `idle`. `label` is the
    algorithm's word for it. Seconds are simulated ones: `simulated_s` is the sum of receiving, working, waiting
    for the edge's decision on its report, and sending.
    `begin_s`: when its wave began, in simulated seconds after the round did.
    `report_bytes`: of `up_bytes`, what travelled before the edge admitted or refused the update. An update that came
    late has a row of its own in the round that uses it (`used_late`). `work_share`: of the work that the algorithm
    asked for, what the seat was given (`partial_work`). `profile` is the one that the seat had in this round.
    `moved_bytes`: of `down_bytes`, samples that the seat does not hold. `predicted_s`: what its twin expected.
    `measured_s`: with `clock: real`, wall seconds from the edge's orders until their answers. `own_on`: accuracies of
    the seat's own model on the test sets of `test_on`.
    """

    seat: int
    edge: str
    edge_round: int = 0
    wave: int = 0
    agent: str | None = None
    profile: str | None = None
    outcome: str
    reason: str | None = None
    label: str | None = None
    n_samples: int = 0
    work_share: float = 1.0
    train_loss: float | None = None
    received_accuracy: float | None = None
    received_loss: float | None = None
    own_accuracy: float | None = None
    own_loss: float | None = None
    own_on: dict[str, float] = Field(default_factory=dict)
    n_test: int = 0
    down_bytes: int = 0
    up_bytes: int = 0
    report_bytes: int = 0
    moved_bytes: int = 0
    begin_s: float = 0.0
    down_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    up_s: float = 0.0
    simulated_s: float = 0.0
    predicted_s: float | None = None
    measured_s: float | None = None
    energy_j: float = 0.0
    fresh_state: bool = False
    figures: dict[str, Any] = Field(default_factory=dict)
