"""The plan of a soak's faults: kinds, targets and times, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.soak.proxy import KINDS as NETWORK

EVERY_CYCLE = (
    "agent_kill_soon",
    "agent_kill_late",
    "agent_freeze_short",
    "agent_freeze_long",
    "edge_kill_soon",
    "edge_kill_late",
    "edge_freeze_short",
    "edge_freeze_long",
    "cloud_kill",
    "cloud_kill",
    "redis_kill",
    "disk_full",
    "clock_jump",
    *(f"net_{kind}" for kind in NETWORK),
)
SELDOM = ("agent_gone", "redis_away", "all_at_once")
"""These faults occur in the first cycle and in every third one after it."""


@dataclass(frozen=True)
class Action:
    """A planned fault.

    Attributes:
        after_s: seconds after the previous fault.
        victim: the target's name, empty if the kind determines the target.
        share: in [0, 1): determines the duration between the bounds of the kind.
    """

    kind: str
    after_s: float
    victim: str
    share: float


def victims_of(kind: str, nodes: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Returns the possible targets of a kind of fault.

    Args:
        kind: the kind of fault.
        nodes: names by role: `agent` and `edge` (may be killed), `proxied`, `disk`, `clock`.
    """
    role = {"net": "proxied", "disk": "disk", "clock": "clock", "agent": "agent", "edge": "edge"}.get(
        kind.split("_")[0]
    )
    return nodes[role] if role else ("",)


def actions(seed: int, nodes: Mapping[str, Sequence[str]], mean_gap_s: float) -> Iterator[Action]:
    """Yields faults without end, in cycles; each cycle has every kind in random order."""
    rng = random.Random(seed)
    cycle = 0
    while True:
        bag = [*EVERY_CYCLE, *(SELDOM if cycle % 3 == 0 else ())]
        rng.shuffle(bag)
        for kind in bag:
            gap, share, pick = rng.uniform(0.2, 2 * mean_gap_s - 0.2), rng.random(), rng.random()
            names = victims_of(kind, nodes)
            if names:
                yield Action(kind, gap, names[int(pick * len(names))], share)
        cycle += 1
