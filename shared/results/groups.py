"""Groups of clients as an algorithm tells of them in the cloud's figures of a round: `groups`, and what they rest on.

`groups` lists the clients of each group, `threshold` says at which distance it was cut. The round that clustered also
tells `users` and the `linkage` of their last layers: from it follow the groups at any other threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.api import RoundInfo
from shared.clusters import groups_at


@dataclass(frozen=True)
class Grouping:
    """Who is with whom.

    Attributes:
        round_no: since when.
        threshold: TH.
        groups: clients by group.
    """

    round_no: int
    threshold: float
    groups: tuple[tuple[str, ...], ...]


def newest_grouping(rounds: Sequence[RoundInfo]) -> Grouping | None:
    """The groups as they are now, None without any."""
    for row in reversed(rounds):
        found = row.figures.get("cloud", {})
        if "groups" in found:
            return Grouping(row.round_no, found["threshold"], tuple(map(tuple, found["groups"])))
    return None


def newest_tree(rounds: Sequence[RoundInfo]) -> Mapping[str, Any] | None:
    """The figures of the last clustering, with `users`, `linkage` and `threshold`; None without any."""
    told = [row.figures.get("cloud", {}) for row in rounds]
    return next((found for found in reversed(told) if "linkage" in found), None)


def cut(tree: Mapping[str, Any], threshold: float) -> tuple[tuple[str, ...], ...]:
    """The groups at another threshold."""
    users = tree["users"]
    return tuple(tuple(users[i] for i in members) for members in groups_at(tree["linkage"], threshold))
