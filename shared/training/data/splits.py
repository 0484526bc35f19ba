"""Test sets of data that have none of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def fifth_of_each(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns which samples are the test set: a seeded fifth, rounded, of the samples with each label.

    Args:
        labels: integers, (n,).
    """
    rng, chosen = np.random.default_rng(0), np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        own = rng.permutation(np.flatnonzero(labels == label))
        chosen[own[: round(len(own) / 5)]] = True
    return chosen


def drawn_tests(y: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns which samples are the test set of data without one: a seeded fifth, rounded, of each class."""
    labels = y if np.issubdtype(y.dtype, np.integer) else np.zeros(len(y), np.int64)
    chosen = fifth_of_each(labels)
    if not chosen.any():
        chosen[np.random.default_rng(0).integers(len(y))] = True
    return chosen
