"""The population of a run: seats, edges, samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.core.apportionment import largest_remainder
from shared.core.errors import BadInput
from shared.federation.population import Latencies, Population, counts_of, population
from shared.federation.spec_parser import parse_spec
from shared.simulation import DeviceSpec, ProfileSpec
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.description import Classes, Sample

K = 4


def dataset(n_train: int = 240, n_test: int = 80, digest: str = "data") -> Dataset:
    """Returns a data set with labels in turn, so that every class has a quarter; the images are never read."""
    return Dataset(
        name="digits",
        train_x=np.zeros((n_train, 2, 2), np.uint8),
        train_y=np.arange(n_train, dtype=np.int64) % K,
        test_x=np.zeros((n_test, 2, 2), np.uint8),
        test_y=np.arange(n_test, dtype=np.int64) % K,
        train_group=None,
        test_group=None,
        target=Classes(K),
        sample=Sample((1, 2, 2), images=True),
        digest=digest,
    )


DATA = dataset()


def population_of(images: Dataset = DATA, /, **changes: Any) -> Population:
    spec: dict[str, Any] = {"num_devices": 6, "num_edges": 2, "partition": "dirichlet", **changes}
    return population(ExperimentSpec(**spec).resolved(n_devices=6, n_edges=2), images)


def samples_of(found: Population) -> list[tuple[list[int], str, list[int]]]:
    return [(seat.train.tolist(), seat.test.part, seat.test.indices.tolist()) for seat in found.seats]


def every_one(parts: list[Any]) -> list[int]:
    return sorted(int(index) for part in parts for index in part)


# ---- reproducibility


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"num_edges": 3},
        {"max_devices": 7},
        {"partition": "iid"},
        {"association": "latency"},
        {"held_out_fraction": 0.5},
        {"test_fraction": 0.5},
        {"client": "edge"},
        {"devices": {"profile": {"compute_sps": 1}}},
        {"data": {"n_train": 200}},
        {"data": {"n_test": 40}},
    ],
    ids=str,
)
def test_the_digest_changes_with(changes: dict[str, Any]) -> None:
    assert population_of(**changes).digest != population_of().digest


def test_the_digest_changes_with_images_and_with_the_global_test_set() -> None:
    assert population_of(dataset(digest="other")).digest != population_of().digest
    # No seat holds test images here.
    assert population_of(test_fraction=0.2, data={"n_test": 40}).digest != population_of(test_fraction=0.2).digest


@pytest.mark.parametrize("changes", [{"lr": 1.0}, {"num_rounds": 99}, {"name": "other"}, {"batch_size": 1}], ids=str)
def test_the_digest_does_not_change_with(changes: dict[str, Any]) -> None:
    assert population_of(**changes).digest == population_of().digest


@pytest.mark.parametrize("changes", [{}, {"association": "latency"}, {"test_fraction": 0.2}], ids=str)
def test_a_seats_data_do_not_change_when_others_join(changes: dict[str, Any]) -> None:
    """All seats of `max_devices` are drawn beforehand, however many are hosted at the start."""
    few = population_of(num_devices=3, max_devices=8, **changes)
    many = population_of(num_devices=8, max_devices=8, **changes)
    assert len(few.seats) == 8
    assert few.digest == many.digest
    assert samples_of(few) == samples_of(many)


def test_a_seat_that_joins_late_is_never_held_out() -> None:
    found = population_of(num_devices=4, max_devices=8, held_out_fraction=0.5)
    assert {seat.number for seat in found.seats if seat.role == "held_out"} <= set(range(4))


# ---- training samples


@pytest.mark.parametrize(
    "partition", ["iid", "dirichlet", "shards", {"name": "by_group", "n_groups": 2}, "edge_skew"], ids=str
)
def test_every_sample_has_one_seat(partition: Any) -> None:
    found = population_of(partition=partition)
    assert every_one([seat.train for seat in found.seats]) == list(range(240))
    assert all(len(seat.train) for seat in found.seats)
    assert found.total_samples == 240
    assert counts_of(found.seats, found.labels).sum(axis=0).tolist() == [60] * K


def test_a_part_of_the_data_has_the_classes_in_proportion() -> None:
    found = population_of(data={"n_train": 40, "n_test": 8})
    chosen = every_one([seat.train for seat in found.seats])
    assert len(set(chosen)) == 40
    assert np.bincount(DATA.train_y[chosen]).tolist() == [10] * K
    assert np.bincount(DATA.test_y[found.test.indices]).tolist() == [2] * K


def test_more_samples_than_the_data_set_has_are_refused() -> None:
    with pytest.raises(BadInput, match="241 samples requested, there are 240") as caught:
        population_of(data={"n_train": 241})
    assert caught.value.field == "data.n_train"


def test_a_spec_with_open_numbers_has_no_population_yet() -> None:
    with pytest.raises(BadInput, match="known once"):
        population(ExperimentSpec(), DATA)


def test_more_edges_than_seats_is_refused() -> None:
    with pytest.raises(BadInput, match="7 edges for 6 devices"):
        population_of(num_edges=7)


# ---- home edges


def test_balanced_seats_take_edges_in_turn() -> None:
    found = population_of(num_edges=3)
    assert [seat.home_edge for seat in found.seats] == [0, 1, 2, 0, 1, 2]
    assert [seat.number for seat in found.at(1)] == [1, 4]


def test_by_latency_a_seats_home_edge_is_the_nearest() -> None:
    spec = ExperimentSpec(num_devices=50, max_devices=50, num_edges=4, association="latency")
    times = Latencies(spec).rows(0, 50)
    assert times.shape == (50, 4)
    assert times.min() >= 0.001
    assert times.max() <= 0.1
    assert [seat.home_edge for seat in population(spec, DATA).seats] == times.argmin(axis=1).tolist()
    assert len({seat.home_edge for seat in population(spec, DATA).seats}) == 4


def test_seats_have_the_listed_latencies_and_the_first_nearest_edge_as_home() -> None:
    listed = ((0.3, 0.1, 0.2), (0.2, 0.2, 0.2), (0.0, 5.0, 0.0), (0.9, 0.8, 0.7))
    devices = DeviceSpec(profile=ProfileSpec(latency_s=1), edge_latency_s=listed)
    spec = ExperimentSpec(num_devices=3, max_devices=4, num_edges=3, association="latency", devices=devices)
    assert Latencies(spec).rows(0, 4).tolist() == [list(row) for row in listed]
    seats = population(spec, DATA).seats
    assert [seat.home_edge for seat in seats] == [1, 0, 0, 2]
    assert [seat.latency_s for seat in seats] == [tuple(1 + far for far in row) for row in listed]
    balanced = population(spec.replace(association="balanced"), DATA).seats
    assert [seat.home_edge for seat in balanced] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([[0.1, 0.2], [0.1]], "device 1 has 1 latencies instead of 2"),
        ([[0.1], [0.1]], "device 0 has 1 latencies instead of 2"),
        ([[0.1, 0.2]], "has 1 row instead of 2"),
        ([[0.1, 0.2], [0.1, -1]], "edge_latency_s.1.1: must be at least 0"),
        ([[0.1, 0.2], [0.1, float("nan")]], "edge_latency_s.1.1: must be a finite number"),
        ([0.1, 0.2], "edge_latency_s.0: must be a list"),
    ],
    ids=str,
)
def test_listed_latencies_are_one_for_each_seat_and_edge(listed: Any, message: str) -> None:
    with pytest.raises(BadInput) as found:
        parse_spec({"num_devices": 2, "num_edges": 2, "devices": {"edge_latency_s": listed}})
    assert message in found.value.detail


def test_listed_latencies_are_checked_again_once_the_numbers_are_known() -> None:
    spec = parse_spec({"devices": {"edge_latency_s": [[0.1, 0.2], [0.1, 0.3]]}})
    assert population(spec.resolved(n_devices=2, n_edges=2), DATA).seats[1].latency_s[1] > 0.3
    with pytest.raises(BadInput, match="has 2 rows instead of 3") as found:
        spec.resolved(n_devices=3, n_edges=2)
    assert found.value.field == "devices.edge_latency_s"


# ---- test samples


def test_test_images_are_partitioned_like_the_training_images() -> None:
    found = population_of(partition={"name": "shards", "classes_per_device": 2})
    assert every_one([seat.test.indices for seat in found.seats]) == list(range(80))
    for seat in found.seats:
        assert seat.test.part == "test"
        share = np.bincount(DATA.train_y[seat.train], minlength=K) * 80 / 240
        dealt = np.bincount(DATA.test_y[seat.test.indices], minlength=K)
        assert np.abs(share - dealt).max() < 1


def test_a_fraction_of_the_own_part_is_the_test_set() -> None:
    found = population_of(partition="iid", test_fraction=0.25)
    for seat in found.seats:
        assert (len(seat.train), seat.test.part, len(seat.test)) == (30, "train", 10)
    parts = [part for seat in found.seats for part in (seat.train, seat.test.indices)]
    assert every_one(parts) == list(range(240))


@pytest.mark.parametrize("client", ["device", "edge"])
def test_clients_take_fractions_of_a_list_in_turn(client: str) -> None:
    found = population_of(client=client, partition="iid", test_fraction=[0.7, 0.4])
    owners: Any = found.seats if client == "device" else found.edges
    for owner in owners:
        whole = len(owner.train) + len(owner.test)
        assert len(owner.test) == round((0.7, 0.4)[owner.number % 2] * whole)


def test_fractions_are_drawn_for_each_client_from_its_own_stream() -> None:
    uniform = {"name": "uniform", "low": 0.3, "high": 1.0}
    sizes = [len(seat.test) for seat in population_of(partition="iid", test_fraction=uniform).seats]
    assert all(12 <= n < 40 for n in sizes)
    assert len(set(sizes)) > 2
    others = population_of(partition="iid", test_fraction={**uniform, "low": 0.31}).seats
    assert max(abs(n - len(seat.test)) for n, seat in zip(sizes, others, strict=True)) <= 1


def test_an_edges_test_set_is_that_of_its_seats() -> None:
    found = population_of()
    for edge in found.edges:
        own = [seat.test.indices for seat in found.at(edge.number)]
        assert edge.test.indices.tolist() == every_one(own)
        assert len(edge.train) == 0


def test_the_global_test_set_is_whole() -> None:
    assert population_of().test.part == "test"
    assert population_of().test.indices.tolist() == list(range(80))


# ---- held out


@pytest.mark.parametrize(("fraction", "n"), [(0.0, 0), (0.01, 0), (0.34, 2), (0.5, 3), (0.99, 5)])
def test_held_out_seats_only_evaluate_on_all_their_samples(fraction: float, n: int) -> None:
    found = population_of(held_out_fraction=fraction)
    held = [seat for seat in found.seats if seat.role == "held_out"]
    assert len(held) == n  # at least one seat trains
    for seat in held:
        assert len(seat.train) == 0
        assert seat.test.part == "train"
        assert len(seat.test) > 0
    rest = [seat.test.indices if seat in held else seat.train for seat in found.seats]
    assert every_one(rest) == list(range(240))


def test_held_out_seats_are_not_in_their_edges_test_set() -> None:
    found = population_of(held_out_fraction=0.5)
    for edge in found.edges:
        own = [seat.test.indices for seat in found.at(edge.number) if seat.role == "train"]
        assert edge.test.part == "test"
        assert edge.test.indices.tolist() == every_one(own)


# ---- the edge is the client


def test_edges_own_the_parts_and_their_devices_share_them() -> None:
    found = population_of(client="edge", max_devices=7)
    assert every_one([edge.train for edge in found.edges]) == list(range(240))
    assert every_one([edge.test.indices for edge in found.edges]) == list(range(80))
    devices = [seat for seat in found.seats if seat.role == "train"]
    for edge in found.edges:
        shares = [seat.train for seat in devices if seat.home_edge == edge.number]
        assert every_one(shares) == edge.train.tolist()
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(len(seat.test) == 0 for seat in found.seats)
    assert found.total_samples == 240


def test_an_edges_worker_has_a_seat_after_the_devices_and_no_samples() -> None:
    found = population_of(client="edge", edge_link={"worker_sps": 77})
    workers = [seat for seat in found.seats if seat.role == "worker"]
    assert [(seat.number, seat.home_edge, len(seat.train), seat.profile.compute_sps) for seat in workers] == [
        (6, 0, 0, 77),
        (7, 1, 0, 77),
    ]
    assert [seat.role for seat in population_of(client="edge", edge_worker=False).seats] == ["train"] * 6
    assert counts_of(found.seats, found.labels)[6:].sum() == 0


def test_held_out_seats_and_edge_clients_cannot_be_combined() -> None:
    with pytest.raises(BadInput, match="held-out devices need client: device"):
        population_of(client="edge", held_out_fraction=0.5)


def test_seats_are_numbered_from_zero_and_found_by_number() -> None:
    for found in (population_of(), population_of(client="edge"), population_of(held_out_fraction=0.5)):
        assert [seat.number for seat in found.seats] == list(range(len(found.seats)))


def test_the_digest_covers_every_change_of_the_population() -> None:
    """Swapping a sample between training and test set changes the digest."""
    assert (
        population_of(client="edge", test_fraction=0.25).digest
        != population_of(client="edge", test_fraction=0.26).digest
    )


def test_writers_are_kept_together() -> None:
    written = replace(DATA, train_group=np.arange(240, dtype=np.int64) // 10)
    found = population_of(written, partition="by_writer", data={"n_train": 120})
    owners = [{int(index) // 10 for index in seat.train} for seat in found.seats]
    assert sum(map(len, owners)) == len(set().union(*owners))


def test_a_client_is_tested_on_its_own_writers() -> None:
    """Test samples of writers that no client has get no owner."""
    n = len(DATA.test_y)
    writers = np.arange(n, dtype=np.int64) * 30 // n
    written = replace(DATA, train_group=np.arange(240, dtype=np.int64) // 10, test_group=writers)
    found = population_of(written, partition="by_writer")
    for seat in found.seats:
        assert {int(writers[i]) for i in seat.test.indices} == {int(i) // 10 for i in seat.train}
    assert sorted(i for seat in found.seats for i in seat.test.indices) == np.flatnonzero(writers < 24).tolist()


def test_a_test_set_of_other_writers_is_dealt_by_class() -> None:
    """As without writers."""
    written = replace(DATA, train_group=np.arange(240, dtype=np.int64) // 10)
    others = replace(written, test_group=np.full(len(DATA.test_y), 99, np.int64))
    found = [population_of(data, partition="by_writer") for data in (written, others)]
    own = [[seat.test.indices.tolist() for seat in population.seats] for population in found]
    assert own[0] == own[1]
    assert sum(map(len, own[0])) == len(DATA.test_y)


# ---- largest remainder


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=30), st.integers(0, 10_000))
def test_proportional_whole_numbers_have_the_required_sum(weights: list[int], total: int) -> None:
    found = largest_remainder(np.array(weights), total)
    assert found.sum() == total
    assert (found >= 0).all()
    if sum(weights):
        exact = np.array(weights) * total / sum(weights)
        assert np.abs(found - exact).max() < 1


def test_the_largest_remainder_wins_and_ties_go_to_the_first() -> None:
    assert largest_remainder(np.array([1, 1, 2]), 5).tolist() == [1, 1, 3]
    assert largest_remainder(np.array([1, 1, 1]), 4).tolist() == [2, 1, 1]
    assert largest_remainder(np.array([0, 0]), 3).tolist() == [3, 0]


# ---- domains and test sets


def of_domains(n_clients: int = 2, /, **changes: Any) -> Population:
    """Returns a population on three domains of 80 training and 40, 20 and 20 test images."""
    images = replace(
        DATA,
        train_domain=np.repeat(np.arange(3), 80),
        test_domain=np.repeat(np.arange(3), [40, 20, 20]),
        domains=("red", "green", "blue"),
    )
    part = {"name": "by_domain", "domains": ["blue", "red"]}
    return population_of(images, num_devices=n_clients, num_edges=1, partition=part, **changes)


def parts_of(found: Population, name: str) -> list[tuple[str | None, int]]:
    return [(part.owner, len(part.samples)) for part in found.test_sets[name]]


def test_a_client_is_tested_on_its_own_domain_and_domains_of_no_client_are_unseen() -> None:
    found = of_domains(3)
    # of blue's five test images of each class the first client has three
    assert parts_of(found, "union") == [("device-0", 12), ("device-1", 40), ("device-2", 8)]
    assert parts_of(found, "blue") == [("device-0", 12), ("device-2", 8)]
    assert parts_of(found, "red") == [("device-1", 40)]
    assert parts_of(found, "green") == parts_of(found, "unseen") == [(None, 20)]
    assert found.seats[1].test.indices.tolist() == list(range(40))
    assert every_one([part.samples.indices for part in found.test_sets["union"]]) == found.test.indices.tolist()


def test_union_is_the_test_sets_of_all_clients() -> None:
    cut = of_domains(test_fraction=0.25)
    assert {part.samples.part for part in cut.test_sets["union"]} == {"train"}
    assert parts_of(cut, "union") == [("device-0", 20), ("device-1", 20)]
    edges = population_of(client="edge", test_fraction=0.5)
    assert [part.owner for part in edges.test_sets["union"]] == ["edge-0", "edge-1"]
    assert "unseen" not in population_of().test_sets
    held_out = population_of(held_out_fraction=0.5)
    assert len(held_out.test_sets["union"]) == 3


def test_unknown_test_sets_are_refused_with_a_list_of_the_known() -> None:
    with pytest.raises(
        BadInput, match="test_on pink: the test sets here are blue, green, red, union, unseen"
    ) as refused:
        of_domains(test_on=["union", "pink"])
    assert refused.value.field == "test_on"
