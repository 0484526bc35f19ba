"""Learning rates of devices by round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from shared.core.records import Record
from shared.spec.fields import Count

Warmup = Annotated[int, Field(ge=0, le=100_000)]
"""Rounds in which the rate grows linearly; round `warmup` + 1 is the first with the whole rate."""


class Constant(Record):
    """The same rate in all rounds after the warm-up.

    Attributes:
        warmup: rounds in which the rate grows linearly.
    """

    name: Literal["constant"]
    warmup: Warmup = 0


class Step(Record):
    """The rate is multiplied by `factor` after each `every` rounds.

    Attributes:
        every: number of rounds between two steps.
        factor: by which the rate is multiplied.
        warmup: rounds in which the rate grows linearly.
    """

    name: Literal["step"]
    every: Count
    factor: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup: Warmup = 0


class Cosine(Record):
    """The rate falls along half a cosine to the share `end` of itself.

    Attributes:
        end: share of the rate at which the cosine ends.
        warmup: rounds in which the rate grows linearly.
        rounds: the round with which it would end there; later ones keep the rate of the last before it. None means the
            round after the spec's `num_rounds`.
    """

    name: Literal["cosine"]
    end: Annotated[float, Field(ge=0, le=1)] = 0.0
    rounds: Count | None = None
    warmup: Warmup = 0


LrSchedule = Constant | Step | Cosine


def rate_and_schedule(raw: Mapping[str, Any], default: float) -> dict[str, Any]:
    """Returns the fields `lr` and `lr_schedule` where a raw spec has both in a mapping `lr`; else nothing."""
    lr = raw.get("lr")
    if not isinstance(lr, Mapping):
        return {}
    if raw.get("lr_schedule") is not None:
        raise ValueError("lr is a number where there is an lr_schedule")
    return {"lr": lr.get("lr", default), "lr_schedule": {key: value for key, value in lr.items() if key != "lr"}}


def check_rates(schedule: LrSchedule | None, num_rounds: int) -> None:
    """Check that a schedule fits the number of rounds.

    Raises:
        ValueError: the message begins with the field's name.
    """
    if isinstance(schedule, Cosine) and schedule.warmup >= (schedule.rounds or num_rounds):
        raise ValueError("lr_schedule: warmup is not below the rounds of the cosine")


def factor_at(schedule: LrSchedule, round_no: int, num_rounds: int) -> float:
    """Returns by what the spec's rate is multiplied in a round.

    Args:
        schedule: of the spec.
        round_no: the round, from 1.
        num_rounds: of the spec.
    """
    if round_no <= schedule.warmup:
        return round_no / (schedule.warmup + 1)
    done = round_no - 1 - schedule.warmup
    if isinstance(schedule, Step):
        return schedule.factor ** (done // schedule.every)
    if isinstance(schedule, Constant):
        return 1.0
    length = max((schedule.rounds or num_rounds) - schedule.warmup, 1)
    return schedule.end + (1 - schedule.end) * (1 + math.cos(math.pi * min(done, length - 1) / length)) / 2
