"""The groups of clients' samples by name, and test sets by group."""

from __future__ import annotations

import numpy as np

from shared.federation.population.population import Population
from shared.federation.population.seats import EdgeSeat, Seat
from shared.federation.test_sets import Samples, TestPart, TestSet
from shared.run_records.groups import MOST_TESTED
from shared.training.data.dataset import Dataset


def groups_of(data: Dataset, client: Seat | EdgeSeat) -> tuple[str, ...]:
    """The names of the groups of a client's training samples, or of its test samples where it trains on none."""
    if data.groups is None:
        return ()
    if len(client.train):
        return data.groups.named("train", client.train)
    return data.groups.named(client.test.part, client.test.indices)


def tests_by_group(data: Dataset, population: Population) -> dict[str, TestSet]:
    """The global test set by the names of its groups, in parts by their owners.

    Empty for data without groups, with more than `MOST_TESTED`, or whose global test set has a single one.
    """
    if data.groups is None:
        return {}
    test = population.test
    of = data.groups.numbers(test.part, test.indices)
    numbers = np.unique(of)
    if not 2 <= len(numbers) <= MOST_TESTED:
        return {}
    owned = [part for part in population.test_sets.get("union", ()) if part.samples.part == test.part]
    owner = np.full(len(test), -1, np.int64)
    for number, part in enumerate(owned):
        owner[np.isin(test.indices, part.samples.indices)] = number
    names = [None, *(part.owner for part in owned)]
    return {
        data.groups.name(int(group)): tuple(
            TestPart(names[number + 1], Samples(test.part, test.indices[(of == group) & (owner == number)]))
            for number in np.unique(owner[of == group]).tolist()
        )
        for group in numbers
    }
