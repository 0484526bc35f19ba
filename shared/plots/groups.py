"""Groups of clients as an algorithm tells of them in the cloud's figures of a round: `groups`, and what they rest on.

`groups` lists the clients of each group, `threshold` says at which distance it was cut. The round that clustered also
tells `users` and the `linkage` of their last layers: from it follow the groups at any other threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.core.clustering import groups_at
from shared.plots.history import RunHistory
from shared.plots.picture import Axis, Picture, Tree
from shared.run_records.rounds import RoundInfo


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


def dendrogram(told: RunHistory) -> Sequence[Picture]:
    """The last clustering: who was joined at which distance, where that was cut, and the group of each client."""
    tree = newest_tree(told.rounds)
    if tree is None or not tree["linkage"]:
        return ()
    group = {user: number for number, members in enumerate(cut(tree, tree["threshold"]), start=1) for user in members}
    panel = Tree(
        y=Axis(label="cosine distance", from_zero=True),
        leaves=tuple(f"{user} · group {group[user]}" for user in tree["users"]),
        merges=tuple(tuple(map(float, merge)) for merge in tree["linkage"]),
        threshold=tree["threshold"],
    )
    title = f"{told.info.name} ({told.info.algorithm}): groups of clients"
    return (Picture(name="groups", title=title, panels=(panel,)),)
