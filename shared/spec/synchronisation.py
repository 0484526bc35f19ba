"""The spec's `sync`: when a tier aggregates the answers that it waits for, and how it weights those that are old."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shared.core.bounds import LARGEST_DEVICES, LARGEST_EDGES
from shared.core.records import Record

Mode = Literal["synchronous", "semi_synchronous", "asynchronous"]
WEIGHT_STEPS = 2**16
"""A staleness weight is a whole number of steps of 1 / WEIGHT_STEPS, so that sums of weighted updates stay exact."""


class Staleness(Record):
    """The weight of an update by its staleness tau: how many versions the model is ahead of the one it was trained on.

    C. Xie, S. Koyejo, I. Gupta: Asynchronous Federated Optimization. 2019, section 5:

        constant     1
        polynomial   (tau + 1) ** -a
        hinge        1 if tau <= b, else 1 / (a * (tau - b) + 1)

    Attributes:
        name: the formula.
        a: how fast the weight falls.
        b: of `hinge`: staleness up to which an update has its whole weight.
    """

    name: Literal["constant", "polynomial", "hinge"] = "constant"
    a: Annotated[float, Field(gt=0, le=1000)] = 0.5
    b: Annotated[int, Field(ge=0, le=100_000)] = 4

    def steps(self, staleness: int) -> int:
        """The weight in steps of 1 / WEIGHT_STEPS, at least one; the plain number 1 if it is constant."""
        if self.name == "constant":
            return 1
        weight = math.pow(staleness + 1, -self.a)
        if self.name == "hinge":
            weight = 1.0 if staleness <= self.b else 1 / (self.a * (staleness - self.b) + 1)
        return max(round(weight * WEIGHT_STEPS), 1)

    @property
    def scale(self) -> int:
        """The steps of the weight 1."""
        return 1 if self.name == "constant" else WEIGHT_STEPS


class TierSync(Record):
    """How one tier waits for the answers of the tier below.

    Attributes:
        mode: `synchronous`: for all of a round; `semi_synchronous`: for the first, or until a deadline; `asynchronous`:
            a new version of the model comes of every `buffer` answers, and who has answered starts anew at once.
        buffer: asynchronous: answers of a version; `all`: as many as the tier has clients.
        staleness: weight of an answer by the versions that its model is old.
    """

    mode: Mode = "synchronous"
    buffer: Annotated[int, Field(ge=1, le=LARGEST_DEVICES)] | Literal["all"] = 1
    staleness: Staleness = Staleness()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, raw: Any) -> Any:
        """Expand `staleness: polynomial` to `staleness: {name: polynomial}`."""
        if isinstance(raw, Mapping) and isinstance(raw.get("staleness"), str):
            return {**raw, "staleness": {"name": raw["staleness"]}}
        return raw

    @property
    def asynchronous(self) -> bool:
        """Whether answers count as they come."""
        return self.mode == "asynchronous"


class DeviceSync(TierSync):
    """How edges wait for their devices; a deadline and the number of answers are fields of the spec's own.

    Attributes:
        concurrency: asynchronous: devices of an edge that train at a time; None means all.
    """

    concurrency: Annotated[int, Field(ge=1, le=LARGEST_DEVICES)] | None = None


class EdgeSync(TierSync):
    """How the cloud waits for edges.

    Attributes:
        wanted: semi-synchronous: this many answers suffice.
        deadline_s: semi-synchronous: simulated seconds after which a round ends.
    """

    wanted: Annotated[int, Field(ge=1, le=LARGEST_EDGES)] | None = None
    deadline_s: Annotated[float, Field(gt=0, le=1e9)] | None = None


class Sync(Record):
    """How the two upper tiers wait.

    Attributes:
        devices: how edges wait for their devices.
        edges: how the cloud waits for edges.
    """

    devices: DeviceSync = DeviceSync()
    edges: EdgeSync = EdgeSync()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, raw: Any) -> Any:
        """Expand `devices: asynchronous` to `devices: {mode: asynchronous}`."""
        if not isinstance(raw, Mapping):
            return raw
        short = {tier: {"mode": raw[tier]} for tier in ("devices", "edges") if isinstance(raw.get(tier), str)}
        return {**raw, **short}

    @property
    def round_word(self) -> str:
        """What a round is called where people read it: where a tier is asynchronous, it is a version of the model."""
        return "version" if self.devices.asynchronous or self.edges.asynchronous else "round"

    @property
    def tiers(self) -> dict[str, TierSync]:
        """Both tiers by the name of their field."""
        return {"devices": self.devices, "edges": self.edges}
