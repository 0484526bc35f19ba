"""Test samples: those of the data set dealt to clients, and named test sets made of clients' test samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shared.core.apportionment import largest_remainder
from shared.core.errors import BadInput
from shared.federation.labels import Labels
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.partition import ByDomainPartition, label_counts

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Samples of one array of the data set: positions in its training or its test images."""

    part: Literal["train", "test"]
    indices: Indices

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class TestPart:
    """Test samples of one owner: `owner` is a client's id, None for samples that no client has."""

    owner: str | None
    samples: Samples


TestSet = tuple[TestPart, ...]
ClientSamples = tuple[str, Indices, Samples]
"""A client's id, its training images, its test samples."""


def test_sets(
    spec: ExperimentSpec, data: Dataset, clients: Sequence[ClientSamples], test: Indices
) -> dict[str, TestSet]:
    """The named test sets of a run; see `Population`.

    Raises:
        BadInput: as `check_test_on`.
    """
    check_test_on(spec, data.domains)
    parts = [TestPart(name, tests) for name, _, tests in clients if len(tests)]
    found = {"union": tuple(parts)}
    having, unseen = domains_of_clients(spec, data), list[TestPart]()
    domain_of = {
        name: data.train_domain[train[0]] for name, train, _ in clients if having and data.train_domain is not None
    }
    for number, domain in enumerate(data.domains):
        if number in having:
            found[domain] = tuple(part for part in parts if domain_of[part.owner or ""] == number)
            continue
        unowned = TestPart(None, Samples("test", test[is_of(data, test, (number,))]))
        found[domain] = (unowned,)
        unseen += [unowned] if having else []
    found |= {"unseen": tuple(unseen)} if unseen else {}
    return found


def check_test_on(spec: ExperimentSpec, domains: Sequence[str]) -> None:
    """Checks that each test set of the spec's `test_on` exists for data of these domains and the spec's partition.

    Raises:
        BadInput: a test set does not exist; lists those that do.
    """
    having = spec.partition.domains if isinstance(spec.partition, ByDomainPartition) else None
    there = {"union", *domains} | ({"unseen"} if set(domains) - set(having or domains) else set())
    for name in spec.test_on:
        if name not in there:
            raise BadInput(f"test_on {name}: the test sets here are {', '.join(sorted(there))}", field="test_on")


def domains_of_clients(spec: ExperimentSpec, data: Dataset) -> tuple[int, ...]:
    """Numbers of the domains that clients have, if each client has one domain; empty if domains are mixed."""
    if not isinstance(spec.partition, ByDomainPartition):
        return ()
    return tuple(data.domains.index(name) for name in spec.partition.domains or data.domains)


def is_of(data: Dataset, test: Indices, domains: Sequence[int]) -> npt.NDArray[np.bool_]:
    """A mask of the test images of these domains; all images if no domain is given."""
    if not domains or data.test_domain is None:
        return np.ones(len(test), np.bool_)
    return np.isin(np.asarray(data.test_domain)[test], domains)


def deal_tests(labels: Labels, parts: list[Indices], test: Indices, rng: np.random.Generator) -> list[Indices]:
    """Deals the test samples of each label in proportion to the clients' training samples of it.

    Numbers are rounded by largest remainder.
    """
    counts = label_counts(parts, labels.train, labels.n)  # (n_clients, n_labels)
    there = np.asarray(labels.test)[test]
    shares: list[list[Indices]] = [[] for _ in parts]
    for label in range(labels.n):
        order = rng.permutation(test[there == label])
        if not counts[:, label].sum():
            continue
        sizes = largest_remainder(counts[:, label], len(order))
        for client, share in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
            shares[client].append(share)
    return [np.sort(np.concatenate([np.empty(0, np.int64), *share])) for share in shares]


def deal_tests_by_writer(data: Dataset, parts: list[Indices], test: Indices) -> list[Indices] | None:
    """Deals the test samples of each writer (or other group) to the client that has the writer's training samples.

    Those of other writers get no owner.

    Returns:
        None if no test sample is of a client's writer, as where the test set has been written by others.
    """
    if data.train_group is None or data.test_group is None:
        return None
    trained, tested = np.asarray(data.train_group), np.asarray(data.test_group)[test]
    dealt = [np.sort(test[np.isin(tested, trained[part])]) for part in parts]
    return dealt if any(len(own) for own in dealt) else None


def deal_tests_by_domain(
    data: Dataset, labels: Labels, parts: list[Indices], test: Indices, rng: np.random.Generator
) -> list[Indices]:
    """Deals the test images of each domain to the clients that have it; those of other domains get no owner."""
    trained, tested = np.asarray(data.train_domain), np.asarray(data.test_domain)
    of = [int(trained[part[0]]) for part in parts]
    dealt = [np.empty(0, np.int64)] * len(parts)
    for domain in sorted(set(of)):
        clients = [client for client, own in enumerate(of) if own == domain]
        own = deal_tests(labels, [parts[client] for client in clients], test[tested[test] == domain], rng)
        for client, share in zip(clients, own, strict=True):
            dealt[client] = share
    return dealt
