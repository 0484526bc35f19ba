"""Groups of clients, as an algorithm reports them among the cloud's figures of a round.

`groups` lists the clients of each group, `threshold` is the distance at which the tree was cut. The round that
clustered also reports `users` and the `linkage` of their last layers, which give the groups at any other threshold.
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
    """The groups of clients since a round.

    Attributes:
        round_no: the round that formed them.
        threshold: the distance at which the tree was cut (TH).
        groups: clients by group.
    """

    round_no: int
    threshold: float
    groups: tuple[tuple[str, ...], ...]


def newest_grouping(rounds: Sequence[RoundInfo]) -> Grouping | None:
    """The newest groups; None without any."""
    for row in reversed(rounds):
        found = row.figures.get("cloud", {})
        if "groups" in found:
            return Grouping(row.round_no, found["threshold"], tuple(map(tuple, found["groups"])))
    return None


def newest_tree(rounds: Sequence[RoundInfo]) -> Mapping[str, Any] | None:
    """The figures of the last clustering, with `users`, `linkage` and `threshold`; None without any."""
    reported = [row.figures.get("cloud", {}) for row in rounds]
    return next((found for found in reversed(reported) if "linkage" in found), None)


def cut(tree: Mapping[str, Any], threshold: float) -> tuple[tuple[str, ...], ...]:
    """The groups at another threshold."""
    users = tree["users"]
    return tuple(tuple(users[i] for i in members) for members in groups_at(tree["linkage"], threshold))


def dendrogram(history: RunHistory) -> Sequence[Picture]:
    """The last clustering as a dendrogram: distances at which clients were joined, the cut, and each client's group."""
    tree = newest_tree(history.rounds)
    if tree is None or not tree["linkage"]:
        return ()
    group = {user: number for number, members in enumerate(cut(tree, tree["threshold"]), start=1) for user in members}
    panel = Tree(
        y=Axis(label="cosine distance", from_zero=True),
        leaves=tuple(f"{_in_words(user)} · group {group[user]}" for user in tree["users"]),
        merges=tuple(tuple(map(float, merge)) for merge in tree["linkage"]),
        threshold=tree["threshold"],
    )
    title = f"{history.info.name} ({history.info.algorithm}): groups of clients"
    return (Picture(name="groups", title=title, panels=(panel,)),)


def _in_words(client: str) -> str:
    """A client's key for people: `edge-0` is edge 0, whichever process serves it."""
    return client.replace("edge-", "edge ")
