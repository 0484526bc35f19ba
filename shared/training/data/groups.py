"""The groups of a data set's samples, such as writers, hospitals or the sets that it combines, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """Which sample is of which group.

    Attributes:
        train, test: the group's number of each training and each test sample, (n,).
        names: in the order of the numbers; a group beyond them is called by its number.
    """

    train: npt.NDArray[Any]
    test: npt.NDArray[Any]
    names: Sequence[str] = ()

    def name(self, number: int) -> str:
        """Returns the name of a group."""
        return self.names[number] if 0 <= number < len(self.names) else str(number)

    def numbers(self, part: Literal["train", "test"], indices: Ints) -> Ints:
        """Returns the group's number of each of these samples, (len(indices),)."""
        found: Ints = np.asarray((self.train if part == "train" else self.test)[indices], dtype=np.int64)
        return found

    def named(self, part: Literal["train", "test"], indices: Ints) -> tuple[str, ...]:
        """Returns the names of the groups of these samples, the one with most samples first."""
        numbers, counts = np.unique(self.numbers(part, indices), return_counts=True)
        return tuple(self.name(int(number)) for number in numbers[np.argsort(-counts, kind="stable")])
