"""Partitioners assign every sample to one client, as their methods require."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from shared.core.apportionment import largest_remainder
from shared.core.errors import BadInput
from shared.training.partition import (
    ByDomainPartition,
    ByGroupPartition,
    ByWriterPartition,
    DealtPartition,
    DirichletPartition,
    EdgeSkewPartition,
    IidPartition,
    PartitionSpec,
    ShardsPartition,
    label_counts,
    partition,
)
from shared.training.partition.partitioners import _fit, _interleave, _log_dirichlet

Array = np.ndarray[Any, Any]
READ: TypeAdapter[Any] = TypeAdapter(PartitionSpec)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(n_classes: int, each: int) -> Array:
    """Returns labels 0, 1, ..., 0, 1, ...: `each` samples of every class."""
    return np.tile(np.arange(n_classes), each)


def counts_of(spec: DealtPartition, labels: Array, n: int, seed: int = 0, **more: Any) -> Array:
    n_classes = int(labels.max()) + 1
    parts = partition(spec, labels, n, rng(seed), n_classes=n_classes, **more)
    return label_counts(parts, labels, n_classes)


ALWAYS_POSSIBLE = st.one_of(
    st.builds(IidPartition, quantity_skew=st.none() | st.floats(0, 3)),
    st.builds(DirichletPartition, alpha=st.floats(1e-3, 1e3), min_samples=st.integers(1, 3)),
    st.builds(ShardsPartition, classes_per_device=st.integers(1, 2)),
    st.just(ByWriterPartition()),
    st.builds(ByGroupPartition, n_groups=st.just(1), gamma=st.floats(0, 1)),
    st.builds(EdgeSkewPartition, alpha=st.floats(1e-3, 1e3), quantity_skew=st.none() | st.floats(0, 3)),
)


@settings(max_examples=30)
@given(
    spec=ALWAYS_POSSIBLE,
    n=st.integers(1, 12),
    n_samples=st.integers(36, 150),
    n_classes=st.integers(2, 7),
    seed=st.integers(0, 2**32),
)
def test_each_sample_is_assigned_once(spec: DealtPartition, n: int, n_samples: int, n_classes: int, seed: int) -> None:
    labels = rng(seed).integers(0, n_classes, n_samples)
    edges, writers = rng(seed).integers(0, 3, n).tolist(), np.arange(n_samples) // 3
    more: dict[str, Any] = {"edges": edges, "writers": writers, "n_classes": n_classes}
    parts = partition(spec, labels, n, rng(seed), **more)
    again = partition(spec, labels, n, rng(seed), **more)
    assert sorted(np.concatenate(parts).tolist()) == list(range(n_samples))
    assert len(parts) == n
    assert all(len(part) and part.dtype == np.int64 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert [part.tolist() for part in parts] == [part.tolist() for part in again]


@pytest.mark.parametrize(
    "spec", [IidPartition(), DirichletPartition(), ShardsPartition(), ByGroupPartition(n_groups=2), EdgeSkewPartition()]
)
def test_another_seed_gives_another_partition_and_the_global_generator_is_not_changed(spec: DealtPartition) -> None:
    before = np.random.get_state(legacy=False)["state"]["key"].tolist()
    labels = balanced(4, 25)
    one, two = (partition(spec, labels, 4, rng(s), edges=[0, 0, 1, 1], n_classes=4) for s in (1, 2))
    assert [part.tolist() for part in one] != [part.tolist() for part in two]
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before


# ---- sizes


@pytest.mark.parametrize("skew", [None, 0.0])
def test_iid_sizes_differ_by_one_at_most(skew: float | None) -> None:
    parts = partition(IidPartition(quantity_skew=skew), balanced(2, 50), 7, rng(), n_classes=2)
    assert [len(part) for part in parts] == [15, 15, 14, 14, 14, 14, 14]


def test_quantity_skew_gives_log_normal_sizes() -> None:
    parts = partition(IidPartition(quantity_skew=1.0), balanced(2, 50_000), 100, rng(3), n_classes=2)
    weights = np.exp(rng(3).standard_normal(100))
    want = 1 + weights / weights.sum() * (100_000 - 100)
    assert np.abs(np.array([len(part) for part in parts]) - want).max() <= 1


# ---- the methods


def test_dirichlet_sizes_follow_the_draw() -> None:
    parts = partition(DirichletPartition(alpha=0.5, min_samples=1), np.zeros(100, int), 3, rng(5), n_classes=1)
    replay = rng(5)
    replay.permutation(100)
    shares = replay.dirichlet([0.5] * 3)
    assert np.abs(np.array([len(part) for part in parts]) - 100 * shares).max() < 1


def test_dirichlet_is_even_for_large_alpha_lopsided_for_small_and_refills_small_clients_from_the_largest() -> None:
    even, lopsided = (counts_of(DirichletPartition(alpha=alpha), balanced(10, 200), 10) for alpha in (1e6, 0.01))
    assert even.min() >= 19
    assert even.max() <= 21
    assert np.median(lopsided.max(axis=0)) > 150  # of a class, 200, most go to one client
    few = [DirichletPartition(alpha=0.001, min_samples=least) for least in (1, 9)]
    before, after = (counts_of(spec, balanced(2, 50), 8).sum(axis=1) for spec in few)
    assert before.min() < 9
    assert (after.min(), after.sum()) == (9, 100)
    assert after.max() < before.max()


def test_shards_give_the_exact_number_of_classes_and_similar_sizes() -> None:
    labels = rng(1).integers(0, 10, 6000)
    counts = counts_of(ShardsPartition(classes_per_device=2), labels, 100)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert counts.sum(axis=1).min() >= 55
    assert counts.sum(axis=1).max() <= 66
    assert len({tuple(row.nonzero()[0].tolist()) for row in counts}) > 25  # of 45 pairs of classes


def test_shards_respect_a_class_that_is_half_of_the_data_and_fewer_than_classes_are_cut_across_them() -> None:
    counts = counts_of(ShardsPartition(classes_per_device=2), np.repeat([0, 1, 2], [60, 30, 30]), 4)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert (counts[:, 0] == 15).all()  # 4 shards of 15, one for each
    assert sorted(counts[:, 1].tolist()) == sorted(counts[:, 2].tolist()) == [0, 0, 15, 15]
    few = counts_of(ShardsPartition(classes_per_device=2), balanced(10, 6), 3)
    assert few.sum(axis=1).tolist() == [20, 20, 20]
    assert (few.sum(axis=0) == 6).all()


def test_writers_stay_whole_and_balance() -> None:
    writers = np.repeat([11, 22, 33, 44, 55], [5, 3, 3, 2, 1])
    parts = partition(ByWriterPartition(), np.zeros(14, int), 2, rng(), writers=writers, n_classes=1)
    assert [len(part) for part in parts] == [7, 7]
    owners = [set(writers[part].tolist()) for part in parts]
    assert owners[0] & owners[1] == set()
    assert 11 in owners[0]
    assert 44 in owners[0]


@pytest.mark.parametrize(("gamma", "own", "other"), [(0.8, 42, 2), (1, 50, 0), (0, 10, 10)])
def test_groups_hold_the_share_gamma_of_their_classes(gamma: float, own: int, other: int) -> None:
    """Of two clients a group; group g owns classes 2g and 2g + 1."""
    counts = counts_of(ByGroupPartition(gamma=gamma), balanced(10, 100), 10)
    assert counts.tolist() == [[own if k // 2 == client // 2 else other for k in range(10)] for client in range(10)]


def test_devices_of_one_edge_are_alike_and_edges_differ_unless_alpha_is_large() -> None:
    edges = [0, 1, 2] * 4
    counts = counts_of(EdgeSkewPartition(alpha=0.2), balanced(10, 120), 12, edges=edges)
    assert (counts.sum(axis=1) == 100).all()
    of_edge = [counts[[i for i, edge in enumerate(edges) if edge == e]] for e in range(3)]
    assert all(np.ptp(rows, axis=0).max() <= 1 for rows in of_edge)
    means = np.array([rows.mean(axis=0) for rows in of_edge])
    assert np.abs(means[0] - means[1]).sum() > 50
    even = counts_of(EdgeSkewPartition(alpha=1e6), balanced(4, 60), 6, edges=[0, 0, 0, 5, 5, 5])
    assert (even.min() >= 9, even.max() <= 11) == (True, True)


def test_edge_skew_keeps_skewed_sizes_and_the_number_of_each_class() -> None:
    spec, labels = EdgeSkewPartition(alpha=0.3, quantity_skew=1.0), np.repeat(np.arange(5), [10, 400, 90, 300, 200])
    counts = counts_of(spec, labels, 8, seed=2, edges=[0, 0, 0, 0, 1, 1, 1, 1])
    plain = partition(IidPartition(quantity_skew=1.0), labels, 8, rng(2), n_classes=5)
    assert counts.sum(axis=0).tolist() == np.bincount(labels).tolist()
    assert sorted(counts.sum(axis=1)) == sorted(map(len, plain))
    assert counts.sum(axis=1).max() > 2 * counts.sum(axis=1).min()


def test_log_dirichlet_is_a_dirichlet_draw() -> None:
    generator = rng(4)
    draws = np.exp([_log_dirichlet(np.array([0.5, 0.0, 1.5]), generator) for _ in range(4000)])
    shares = draws / draws.sum(axis=1, keepdims=True)
    # Dir(a, b): mean a / (a + b) = 0.25, variance ab / ((a + b)^2 (a + b + 1)) = 0.0625
    assert shares[:, 0].mean() == pytest.approx(0.25, abs=0.02)
    assert shares[:, 0].var() == pytest.approx(0.0625, abs=0.006)
    assert (shares[:, 1] == 0).all()


@pytest.mark.parametrize("alpha", [0.001, 0.01, 0.1])
def test_edge_skew_remains_where_shares_underflow(alpha: float) -> None:
    distances = []
    for seed in range(5):
        spec = EdgeSkewPartition(alpha=alpha)
        counts = counts_of(spec, balanced(10, 200), 4, seed=seed, edges=[0, 1, 2, 3])
        distances += [np.abs(counts[i] - counts[j]).sum() / 1000 for i in range(4) for j in range(i)]
    assert np.mean(distances) > 0.8


# ---- refusals


@pytest.mark.parametrize(
    ("spec", "n", "message"),
    [
        (IidPartition(), 41, "40 samples cannot be divided among 41 clients"),
        (DirichletPartition(min_samples=5), 9, "40 samples are too few for 9 clients with min_samples 5"),
        (ShardsPartition(classes_per_device=3), 14, r"40 samples cannot be cut into 42 shards \(14 clients x 3\)"),
        (ShardsPartition(classes_per_device=5), 2, "classes_per_device 5 exceeds the 4 classes"),
        (ByWriterPartition(), 2, "needs a data set with writers"),
        (ByGroupPartition(n_groups=3), 2, "n_groups 3 exceeds the 2 clients; by_group groups classes"),
        (ByGroupPartition(n_groups=5), 9, "n_groups 5 exceeds the 4 classes; by_group groups classes"),
        (ByGroupPartition(n_groups=4, gamma=1), 40, None),
        (EdgeSkewPartition(), 2, "needs to know the edge of each client"),
    ],
)
def test_an_impossible_partition_is_refused_with_the_numbers(spec: DealtPartition, n: int, message: str | None) -> None:
    if message is None:  # one sample for each: still possible
        assert counts_of(spec, balanced(4, 10), n).sum(axis=1).tolist() == [1] * 40
        return
    with pytest.raises(BadInput, match=message) as caught:
        partition(spec, balanced(4, 10), n, rng(), n_classes=4)
    assert caught.value.field is not None
    assert caught.value.field.startswith("partition")


@pytest.mark.parametrize(
    ("spec", "labels", "n", "more", "message"),
    [
        (IidPartition(), balanced(4, 2), 2, {"n_classes": 3}, r"labels 0\.\.3 exceed 0\.\.2"),
        # Group 0 owns a single sample but has two clients.
        (ByGroupPartition(n_groups=2, gamma=1), np.repeat([0, 1], [1, 9]), 4, {}, "leaves 1 of 4 clients without a"),
        (ByWriterPartition(), np.zeros(4, int), 3, {"writers": np.array([1, 1, 2, 2])}, "2 writers are too few for 3"),
        (ByDomainPartition(), balanced(2, 9), 3, {}, "domains of this data are none"),
    ],
)
def test_data_that_do_not_fit_a_partition_are_refused(
    spec: DealtPartition, labels: Array, n: int, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        partition(spec, labels, n, rng(), **{"n_classes": 2, **more})


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        ({"name": "dirichlet", "alpha": 0}, ("dirichlet", "alpha"), "greater than or equal to 0.001"),
        ({"name": "dirichlet", "alpha": float("nan")}, ("dirichlet", "alpha"), "finite number"),
        ({"name": "shards", "classes_per_device": 0}, ("shards", "classes_per_device"), "greater than or equal"),
        ({"name": "by_group", "gamma": 1.1}, ("by_group", "gamma"), "less than or equal to 1"),
        ({"name": "iid", "alpha": 1}, ("iid", "alpha"), "Extra inputs"),
        ({"name": "shards", "quantity_skew": 1}, ("shards", "quantity_skew"), "goes with iid and edge_skew"),
    ],
)
def test_wrong_parameter_is_named(raw: dict[str, Any], path: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        READ.validate_python(raw)
    (error,) = caught.value.errors()
    assert error["loc"] == path
    assert message in error["msg"]


# ---- by_domain


def dealt_by_domain(n_clients: int, seed: int = 0, **fields: Any) -> list[Array]:
    """Partitions 30, 60 and 90 images of three domains, each with two classes in the proportion 2 : 1."""
    domains = np.repeat([0, 1, 2], [30, 60, 90])
    labels = (np.arange(180) % 3 == 0).astype(np.int64)
    more: dict[str, Any] = {"domains": domains, "domain_names": ("red", "green", "blue"), "n_classes": 2}
    return partition(ByDomainPartition(**fields), labels, n_clients, rng(seed), **more)


def domains_of(parts: list[Array]) -> list[list[int]]:
    return [np.bincount(np.repeat([0, 1, 2], [30, 60, 90])[part], minlength=3).tolist() for part in parts]


def test_by_domain_gives_each_client_one_domain_in_turn_and_as_many_as_the_poorest() -> None:
    assert domains_of(dealt_by_domain(3)) == [[30, 0, 0], [0, 30, 0], [0, 0, 30]]
    four = dealt_by_domain(4)  # the first domain has two clients
    assert domains_of(four) == [[15, 0, 0], [0, 15, 0], [0, 0, 15], [15, 0, 0]]
    assert not set(four[0]) & set(four[3])


def test_by_domain_keeps_the_spec_order_and_leaves_other_domains_out() -> None:
    some = dealt_by_domain(2, domains=("blue", "green"), per_client=24)
    assert domains_of(some) == [[0, 0, 24], [0, 24, 0]]
    every = dealt_by_domain(4, domains=("blue", "green"), per_client="all")
    assert domains_of(every) == [[0, 0, 45], [0, 30, 0]] * 2


def test_by_domain_gives_classes_in_the_domains_proportion() -> None:
    for part in dealt_by_domain(6, per_client=12):
        assert abs(int((part % 3 == 0).sum()) - 4) <= 1
    first, again, other = dealt_by_domain(3, 1), dealt_by_domain(3, 1), dealt_by_domain(3, 2)
    assert [part.tolist() for part in first] == [part.tolist() for part in again]
    assert [part.tolist() for part in first] != [part.tolist() for part in other]


@pytest.mark.parametrize(
    ("n_clients", "fields", "field", "message"),
    [
        (2, {}, "partition.domains", "2 clients are too few for 3 domains"),
        (3, {"domains": ("red", "pink")}, "partition.domains", "domains of this data are red, green, blue"),
        (3, {"per_client": 31}, "partition.per_client", "per_client 31: the domain red has only 30 samples"),
    ],
)
def test_by_domain_names_contradictions(n_clients: int, fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        dealt_by_domain(n_clients, **fields)
    assert refused.value.field == field


@settings(max_examples=30)
@given(n_rows=st.integers(1, 5), n_columns=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_fit_meets_both_margins_exactly(n_rows: int, n_columns: int, seed: int) -> None:
    draw = rng(seed)
    table = draw.integers(0, 40, (n_rows, n_columns))
    table[0, 0] += 1
    log_mixes = -1000 * draw.random((n_rows, n_columns))
    keep = table.sum(axis=1) > 0
    rows, columns = table.sum(axis=1)[keep], table.sum(axis=0)
    counts = _fit(log_mixes[keep], rows, columns)
    assert counts.min() >= 0
    assert counts.sum(axis=1).tolist() == rows.tolist()
    assert counts.sum(axis=0).tolist() == columns.tolist()


def test_parts_of_the_methods_by_hand() -> None:
    right = _fit(np.log([[0.5, 0.5], [0.25, 0.75]]), np.array([20, 40]), np.array([20, 40]))
    assert right.tolist() == [[10, 10], [10, 30]], "a table with the right margins stays as it is"
    assert _interleave(np.array([2, 2])).tolist() == [0, 1, 0, 1]
    assert _interleave(np.array([1, 3])).tolist() == [1, 0, 1, 1]
    assert largest_remainder(np.array([0.5, 0.3, 0.2]), 7).tolist() == [4, 2, 1]  # 3.5, 2.1, 1.4
    assert largest_remainder(np.ones(4), 6).tolist() == [2, 2, 1, 1], "ties go to the first"
