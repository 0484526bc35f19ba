"""Parts of an experiment's description that several of its fields share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from shared.core.records import Record

Count = Annotated[int, Field(ge=1, le=100_000)]


class LocalSpec(Record):
    """An algorithm whose local objective devices minimise."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    params: dict[str, Any] = Field(default_factory=dict, max_length=1000)


class AlgorithmSpec(Record):
    """Which algorithm, with which of its own parameters; `local`: another one's objective for its devices."""

    name: str = Field(default="fedavg", pattern=r"^[a-z][a-z0-9_]{0,63}$")
    params: dict[str, Any] = Field(default_factory=dict, max_length=1000)
    local: LocalSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, raw: Any) -> Any:
        """`local: fedser` stands for `{name: fedser}`."""
        if isinstance(raw, Mapping) and isinstance(raw.get("local"), str):
            return {**raw, "local": {"name": raw["local"]}}
        return raw

    def __str__(self) -> str:
        return self.name if self.local is None else f"{self.name}, local {self.local.name}"


class Timeouts(Record):
    """Wall-clock limits, in seconds. They decide when a wait is given up, never a result that arrives in time."""

    visit_s: float = Field(default=300.0, gt=0, le=86_400)
    ready_s: float = Field(default=120.0, gt=0, le=86_400)
    reseat_after_s: float = Field(default=60.0, ge=0, le=86_400)


class Loss(Record):
    """Contributions that are left out of a round, as if their visits had failed: what faults did to another run.

    Attributes:
        round_no: the round, from 1.
        seats: whose visits are not made.
        edge_round, wave: only in this one; None = in all.
    """

    round_no: Count
    seats: Annotated[tuple[Annotated[int, Field(ge=0, lt=100_000)], ...], Field(max_length=100_000)]
    edge_round: Annotated[int, Field(ge=0, lt=10**6)] | None = None
    wave: Annotated[int, Field(ge=0, lt=1000)] | None = None
