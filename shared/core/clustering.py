"""Agglomerative clustering by cosine distance and average linkage, and the distance at which to cut the tree.

scipy is imported when it is used: agents and edges load every algorithm, and none of them clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Groups = list[list[int]]
USUAL_QUANTILE = 0.2
"""The quantile of all distances at which to cut where they have no clear gap."""


def cosine_distances(vectors: Floats) -> Floats:
    """Returns 1 - cos of each pair of rows, in scipy's condensed order: (n * (n - 1) / 2,).

    A row of zeros has no direction; its distance to every other row is 1.
    """
    from scipy.spatial.distance import pdist

    with np.errstate(invalid="ignore"):
        found: Floats = pdist(vectors, metric="cosine") if len(vectors) > 1 else np.empty(0)
    return np.clip(np.nan_to_num(found, nan=1.0), 0.0, 2.0)


def average_linkage(distances: Floats) -> Floats:
    """Returns the merges, nearest first: two clusters, their distance, and their number of members; (n - 1, 4)."""
    from scipy.cluster.hierarchy import linkage

    merges: Floats = linkage(distances, method="average") if len(distances) else np.empty((0, 4))
    return merges


def groups_at(merges: Sequence[Sequence[float]] | Floats, threshold: float) -> Groups:
    """Returns the groups that merge at most at this distance: ascending members, groups in order of their first."""
    if not len(merges):
        return [[0]]
    from scipy.cluster.hierarchy import fcluster

    labels = fcluster(np.asarray(merges, np.float64), t=threshold, criterion="distance").tolist()
    members: dict[Any, list[int]] = {}
    for number, label in enumerate(labels):
        members.setdefault(label, []).append(number)
    return list(members.values())


@dataclass(frozen=True)
class Gap:
    """The largest gap between neighbours of the sorted distances, and where to cut.

    Attributes:
        lower, upper: the distances at its ends.
        threshold: the middle of the gap if it is clear (`upper` at least twice `lower`), else the 20 % quantile of all
            distances.
    """

    lower: float
    upper: float
    threshold: float

    @classmethod
    def of(cls, distances: Floats) -> Gap:
        """Returns the gap of these distances; all zeros if there are none."""
        if not len(distances):
            return cls(0.0, 0.0, 0.0)
        ordered = np.sort(distances)
        if len(ordered) == 1:
            return cls(float(ordered[0]), float(ordered[0]), float(ordered[0]))
        widest = int(np.diff(ordered).argmax())
        lower, upper = float(ordered[widest]), float(ordered[widest + 1])
        clear = upper >= 2 * lower and upper > lower
        return cls(lower, upper, (lower + upper) / 2 if clear else float(np.quantile(ordered, USUAL_QUANTILE)))
