"""Load: the share of a device's compute that is free at a simulated time, beside the device's other work.

The share at the beginning of a dispatch holds until its tasks end, unless the load changes `during_tasks`
(`shared.simulation.working_time`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from shared.core.records import Record
from shared.core.validation import check_known
from shared.simulation.distributions import Seeds, uniform01

Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=1e-3, le=1e12)]
MIN_FREE = 1e-3
"""Lower bound on the free share while a device works on a task."""
WALK_STEPS = 256
"""A random walk starts anew after this many steps, so that a late time costs no more than an early one."""


class NoLoad(Record):
    """All compute is free at all times."""

    name: Literal["none"] = "none"


class _Between(Record):
    """The free share lies between `low` and `high`; `during_tasks`: whether it also changes while a task runs."""

    low: Share = 0.2
    high: Share = 1.0
    during_tasks: Annotated[bool, Field(exclude_if=lambda value: not value)] = False

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class Sinus(_Between):
    """The free share is a sine of this period (a day by default), with a phase drawn for each device."""

    name: Literal["sinus"] = "sinus"
    period_s: Seconds = 86_400.0

    def turn(self, at_s: float, seeds: Seeds) -> float:
        """Return the number of periods until an instant, with the device's phase."""
        return at_s / self.period_s + uniform01(seeds("load"))


class Steps(_Between):
    """The free share is drawn uniformly every `every_s` seconds."""

    name: Literal["steps"] = "steps"
    every_s: Seconds = 60.0


class RandomWalk(_Between):
    """Every `every_s` seconds the free share moves uniformly by at most `step`, reflected at `low` and `high`."""

    name: Literal["random_walk"] = "random_walk"
    every_s: Seconds = 60.0
    step: Annotated[float, Field(gt=0, le=1)] = 0.1


def _kind(raw: Any) -> str:
    return str(raw.get("name") if isinstance(raw, Mapping) else getattr(raw, "name", None))


def _spelt_out(raw: Any) -> Any:
    """Expand the short form: `load: sinus` is `{name: sinus}`."""
    raw = {"name": raw} if isinstance(raw, str) else raw
    if isinstance(raw, Mapping):
        check_known("load", raw.get("name"), ("none", "sinus", "steps", "random_walk"))
    return raw


Load = Annotated[
    Annotated[NoLoad, Tag("none")]
    | Annotated[Sinus, Tag("sinus")]
    | Annotated[Steps, Tag("steps")]
    | Annotated[RandomWalk, Tag("random_walk")],
    Discriminator(_kind),
    BeforeValidator(_spelt_out),
]


def free_share(load: Load, at_s: float, seeds: Seeds) -> float:
    """Return the share of a device's compute that is free at a simulated time, 0 to 1.

    Args:
        load: the load in the device's profile.
        at_s: simulated seconds since the run began.
        seeds: the device's random streams in this run.
    """
    if isinstance(load, Sinus):
        return load.low + (load.high - load.low) * (1 + math.sin(2 * math.pi * (load.turn(at_s, seeds) % 1))) / 2
    if isinstance(load, Steps):
        return _step(load, int(at_s // load.every_s), seeds)
    if isinstance(load, RandomWalk):
        return _walked(load, at_s, seeds)
    return 1.0


def pieces(load: Steps | RandomWalk, begin_s: float, seeds: Seeds) -> Iterator[tuple[float, float]]:
    """Yield the seconds and the free share of each piece of a load that is constant in between, without end."""
    first = int(begin_s // load.every_s)
    shares = (_step(load, n, seeds) for n in count(first)) if isinstance(load, Steps) else _walk(load, first, seeds)
    for n, share in zip(count(first), shares, strict=True):
        yield max((n + 1) * load.every_s - max(n * load.every_s, begin_s), 0.0), share


def _step(load: Steps, n: int, seeds: Seeds) -> float:
    return load.low + (load.high - load.low) * uniform01(seeds(f"load {n}"))


def _walked(load: RandomWalk, at_s: float, seeds: Seeds) -> float:
    """Return the walk's value; with a uniform start and reflection at both ends it stays uniform."""
    return next(_walk(load, int(at_s // load.every_s), seeds))


def _walk(load: RandomWalk, first: int, seeds: Seeds) -> Iterator[float]:
    """Yield the walk's values from a piece on."""
    width = load.high - load.low
    for stretch in count(first // WALK_STEPS):
        rng = np.random.default_rng(seeds(f"load {stretch}"))
        start = rng.uniform(0, width)
        moves = rng.uniform(-load.step, load.step, size=WALK_STEPS)
        for n in range(max(first - stretch * WALK_STEPS, 0), WALK_STEPS):
            folded = (start + float(moves[:n].sum())) % (2 * width) if width else 0.0
            yield load.low + (folded if folded <= width else 2 * width - folded)
