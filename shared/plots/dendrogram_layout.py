"""The positions of a dendrogram's lines."""

from __future__ import annotations

from typing import NamedTuple

from shared.plots.picture import Tree


class Joint(NamedTuple):
    """One merge as a line over four corners (x, y): up from the left, across, down to the right.

    `x` of leaf number n of the order is n. `group`: number of its group from left to right, None above the cut.
    """

    corners: tuple[tuple[float, float], ...]
    group: int | None


def bars_of(tree: Tree) -> tuple[tuple[int, ...], tuple[Joint, ...]]:
    """The leaves from left to right, and the joints: below the cut those of a group have its number."""
    n = len(tree.leaves)
    members: list[tuple[int, ...]] = [(leaf,) for leaf in range(n)]
    for left, right, _, _ in tree.merges:
        members.append(members[int(left)] + members[int(right)])
    order = members[-1] if tree.merges else tuple(range(n))
    x = {leaf: float(place) for place, leaf in enumerate(order)}
    heights = [0.0] * n
    tops: list[int] = []
    for number, (left, right, distance, _) in enumerate(tree.merges, start=n):
        heights.append(distance)
        x[number] = (x[int(left)] + x[int(right)]) / 2
        if distance <= tree.threshold:
            tops = [top for top in tops if top not in (int(left), int(right))] + [number]
    groups = {leaf: at for at, top in enumerate(sorted(tops, key=lambda top: x[top])) for leaf in members[top]}
    joints = []
    for number, (left, right, distance, _) in enumerate(tree.merges, start=n):
        ends = ((x[int(left)], heights[int(left)]), (x[int(right)], heights[int(right)]))
        corners = (ends[0], (ends[0][0], distance), (ends[1][0], distance), ends[1])
        joints.append(Joint(corners, groups[members[number][0]] if distance <= tree.threshold else None))
    return order, tuple(joints)
