"""Clusters equal those of scipy and of plain merging; automatic thresholds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from shared.core.clustering import Floats, Gap, average_linkage, cosine_distances, groups_at
from tests.shared.algorithms.plain_dtpfl import agglomerate, distances


def rows(seed: int, n: int = 12) -> Floats:
    """Returns vectors around three directions."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(3, 20))[np.arange(n) % 3] + rng.normal(size=(n, 20))


@pytest.mark.parametrize("seed", range(5))
def test_groups_equal_those_of_scipy_and_of_plain_merging(seed: int) -> None:
    vectors = rows(seed)
    for threshold in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0):
        found = groups_at(average_linkage(cosine_distances(vectors)), threshold)
        labels = fcluster(linkage(pdist(vectors, "cosine"), "average"), threshold, "distance")
        assert found == sorted([int(i) for i in np.flatnonzero(labels == label)] for label in set(labels))
        assert found == agglomerate(distances(list(vectors)), threshold)


def test_bound_is_inclusive_and_by_the_mean_of_all_pairs() -> None:
    """Three vectors at right angles and two at 60 degrees: distances 1 and 0.5, worked out by hand."""
    vectors = np.array([[1, 0, 0], [0.5, np.sqrt(0.75), 0], [0, 0, 1]])
    apart = cosine_distances(vectors)
    assert apart == pytest.approx([0.5, 1, 1])
    merges = average_linkage(apart)
    assert groups_at(merges, 0.49) == [[0], [1], [2]]
    assert groups_at(merges, merges[0][2]) == [[0, 1], [2]]
    assert groups_at(merges.tolist(), 1.01) == [[0, 1, 2]]
    assert cosine_distances(np.array([[0.0, 0], [1, 1], [2, 2]])) == pytest.approx([1, 1, 0]), "0 is unlike all others"
    assert groups_at(average_linkage(cosine_distances(np.ones((1, 3)))), 0.5) == [[0]]


def test_a_wide_gap_is_cut_in_its_middle_and_without_one_the_cut_is_at_the_fifth_of_all_distances() -> None:
    assert Gap.of(np.array([0.5, 0.1, 0.02, 0.4])) == Gap(0.1, 0.4, 0.25)
    assert Gap.of(np.linspace(0.5, 0.6, 11)).threshold == pytest.approx(0.52)
    assert Gap.of(np.empty(0)) == Gap(0, 0, 0)
    assert Gap.of(np.array([0.3])).threshold == 0.3
