"""What is done to whom, and when: drawn from a seed, apart from doing it."""

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
"""In the first cycle, and in every third after it."""


@dataclass(frozen=True)
class Action:
    """A fault to be done.

    Attributes:
        after_s: seconds since the one before it.
        victim: a node's name, empty where the kind says who.
        share: in [0, 1): how long it lasts, between the bounds of its kind.
    """

    kind: str
    after_s: float
    victim: str
    share: float


def victims_of(kind: str, nodes: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Who may be hit.

    Args:
        kind: of the fault.
        nodes: names by role: `agent` and `edge` that may be killed, `proxied`, `disk`, `clock`.
    """
    role = {"net": "proxied", "disk": "disk", "clock": "clock", "agent": "agent", "edge": "edge"}.get(
        kind.split("_")[0]
    )
    return nodes[role] if role else ("",)


def actions(seed: int, nodes: Mapping[str, Sequence[str]], mean_gap_s: float) -> Iterator[Action]:
    """Faults without end: cycles in which each kind comes, in random order."""
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
