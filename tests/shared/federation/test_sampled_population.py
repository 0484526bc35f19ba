"""Devices that draw their own samples: a seat follows from its number alone, and none is made before it is needed."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest

from shared.core.errors import BadInput
from shared.core.exact_sum import fixed_point_exponent
from shared.federation.context import Context, EdgeView, NoParams
from shared.federation.population import Population, Seat
from shared.federation.population import sampled as sampled_module
from shared.federation.population.devices import Devices
from shared.federation.selection import select
from shared.spec.experiment import ExperimentSpec
from shared.training.partition import ClassPools
from tests.shared.federation.test_population import DATA, K, population_of

MILLION = 1_000_000


def sampled(n: int = 50, edges: int = 2, samples: int = 20, alpha: float = 0.5, **changes: Any) -> Population:
    partition = {"name": "sampled", "samples": samples, "alpha": alpha, **changes.pop("partition", {})}
    return population_of(num_devices=n, max_devices=n, num_edges=edges, partition=partition, **changes)


def content(seat: Seat) -> tuple[Any, ...]:
    return seat.role, seat.profile, seat.train.tolist(), seat.test.part, seat.test.indices.tolist()


def test_a_seat_follows_from_its_number_alone() -> None:
    mixture = {"profiles": [{"profile": "standard", "share": 0.5}, {"profile": "raspberry_pi", "share": 0.5}]}
    devices = {**mixture, "straggler_ratio": 0.3}
    few, many = sampled(10, devices=devices), sampled(5000, devices=devices)
    assert [content(seat) for seat in few.seats] == [content(many.seat(number)) for number in range(10)]
    assert [content(seat) for seat in few.seats] == [
        content(sampled(10, 3, devices=devices).seat(n)) for n in range(10)
    ]
    backwards = sampled(10, devices=devices)
    assert [content(backwards.seat(n)) for n in reversed(range(10))] == [content(s) for s in few.seats][::-1]
    assert len({seat.profile.name for seat in many.seats}) == 2
    assert {seat.profile.slowdown for seat in few.seats} == {1.0, 8.0}


def test_a_seat_has_different_samples_and_shares_some_with_others() -> None:
    found = sampled()
    assert all(len(set(seat.train.tolist())) == seat.n_train == 20 for seat in found.seats)
    assert all((np.diff(seat.train) > 0).all() for seat in found.seats)
    assert max(Counter(int(n) for seat in found.seats for n in seat.train).values()) > 1
    assert {seat.test.part for seat in found.seats} == {"test"}
    assert {len(seat.test) for seat in found.seats} == {found.seat(0).n_test} == {round(20 * 80 / 240)}
    assert (
        sampled(partition={"test_samples": 9}).seat(3).n_test
        == len(sampled(partition={"test_samples": 9}).seat(3).test)
        == 9
    )


def shares(found: Population) -> np.ndarray[Any, Any]:
    """The class shares of each seat, (n_seats, K)."""
    counts = np.stack([np.bincount(DATA.train_y[seat.train], minlength=K) for seat in found.seats])
    found_shares: np.ndarray[Any, Any] = counts / counts.sum(axis=1, keepdims=True)
    return found_shares


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_class_mixes_have_the_moments_of_their_distribution(alpha: float) -> None:
    """The shares of n samples drawn by a Dir(alpha) mix: Var = m(1 - m)(1/n + (1 - 1/n) / (K alpha + 1)), m = 1/K."""
    n = 10
    found = shares(sampled(2000, samples=n, alpha=alpha))
    expected = 1 / K * (1 - 1 / K) * (1 / n + (1 - 1 / n) / (K * alpha + 1))
    assert np.allclose(found.mean(axis=0), 1 / K, atol=0.03)
    assert np.allclose(found.var(axis=0), expected, rtol=0.15)


def test_a_class_with_too_few_samples_leaves_the_rest_to_others() -> None:
    pools = ClassPools(np.arange(10), np.array([0] * 2 + [1] * 8), 3)
    rng = np.random.default_rng(0)
    drawn = pools.draw(6, np.array([1.0, 0.0, 0.0]), rng)
    assert (set(drawn[:2].tolist()), len(set(drawn.tolist()))) == ({0, 1}, 6)
    assert pools.draw(10, np.array([0.5, 0.5, 0.0]), rng).tolist() == list(range(10))
    assert pools.mix(0.5, rng)[2] == 0
    with pytest.raises(BadInput, match="11 samples for each device, there are 10"):
        pools.draw(11, np.array([1.0, 0.0, 0.0]), rng)


def test_with_a_test_fraction_a_seats_own_samples_are_divided() -> None:
    found = sampled(test_fraction=0.25)
    for seat in found.seats:
        assert (
            (len(seat.train), len(seat.test), seat.test.part)
            == (seat.n_train, seat.n_test, "train")
            == (15, 5, "train")
        )
        assert not set(seat.train.tolist()) & set(seat.test.indices.tolist())
    assert {seat.n_train for seat in sampled(test_fraction={"name": "uniform", "low": 0.1, "high": 0.9}).seats} > {
        8,
        12,
    }


def test_a_held_out_seat_is_tested_on_all_of_its_samples() -> None:
    found = sampled(held_out_fraction=0.2)
    assert len(found.held_out) == 10 == found.n_devices - found.n_training
    for number in found.held_out:
        seat = found.seat(number)
        assert (seat.role, seat.n_train, len(seat.train), seat.n_test) == ("held_out", 0, 0, 20)
        assert (found.role(number), len(seat.test), seat.test.part) == ("held_out", 20, "train")


def test_a_million_devices_are_known_before_one_of_them_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("a seat has drawn samples")

    monkeypatch.setattr(ClassPools, "draw", refuse)
    found = sampled(MILLION, 4, held_out_fraction=0.1)
    assert (len(found.seats), found.n_training, found.total_samples) == (MILLION, 900_000, 20 * MILLION)
    assert (len(found.at(3)), found.at(3)[-1].number) == (MILLION // 4, MILLION - 1)
    assert found.seat(123_456).n_train in (0, 20)
    with pytest.raises(AssertionError, match="has drawn"):
        _ = found.seat(123_456).test


def test_seats_that_are_prepared_have_drawn_their_samples_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = sampled(MILLION), content(sampled(MILLION).seat(77))
    found.prepare([123_456, 77])
    monkeypatch.setattr(ClassPools, "draw", None)
    assert len(found.seat(123_456).train) == 20
    assert found.seat(77).train.tolist() == expected[2]


def test_random_draws_among_a_million_devices_without_making_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Devices, "seat", None)
    changes: dict[str, Any] = {"select": "random", "fraction_train": 0.0005}
    found = sampled(MILLION, 4, **changes)
    spec = ExperimentSpec(num_devices=MILLION, max_devices=MILLION, num_edges=4, **changes)
    ctx = Context(spec=spec, params=NoParams(), phase="train", round_no=1, n_clients=MILLION, edge=2)
    seats = found.at(2)
    first = select(ctx, seats, EdgeView())  # finds their home edges, once for all rounds
    tracemalloc.start()
    chosen = select(ctx.at(round_no=2), seats, EdgeView())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(chosen)) == len(set(first)) == 125
    assert {number % 4 for number in chosen} == {2}
    assert set(chosen) != set(first)
    assert peak_bytes < MILLION / 4  # a byte for each of the edge's devices


@pytest.mark.parametrize(
    "changes",
    [
        *({"seed": 1}, {"edges": 3}, {"n": 51}, {"samples": 21}, {"alpha": 0.6}, {"association": "latency"}),
        *({"held_out_fraction": 0.5}, {"test_fraction": 0.5}, {"devices": {"profile": {"compute_sps": 1}}}),
        *({"data": {"n_train": 200}}, {"data": {"n_test": 40}}),
    ],
    ids=str,
)
def test_the_digest_covers_recipe_and_data(changes: dict[str, Any]) -> None:
    assert sampled(**changes).digest != sampled().digest == sampled(lr=1.0, num_rounds=99).digest


def test_late_devices_draw_as_if_they_had_been_there() -> None:
    partition = {"name": "sampled"}
    few = population_of(num_devices=5, max_devices=9, num_edges=2, partition=partition)
    many = population_of(num_devices=9, max_devices=9, num_edges=2, partition=partition)
    assert [content(seat) for seat in few.seats] == [content(seat) for seat in many.seats]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"client": "edge"}, "partition sampled needs client: device"),
        ({"schedule": "equal"}, "partition sampled needs schedule: own_data"),
        ({"clock": "real"}, "partition sampled with clock: real needs round_deadline_s"),
        ({"partition": {"name": "sampled", "quantity_skew": 1.0}}, "determines the sizes itself"),
    ],
)
def test_what_needs_dealt_samples_is_refused(changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        ExperimentSpec(**{"partition": {"name": "sampled"}, **changes})


@pytest.mark.parametrize(
    ("partition", "field"), [({"samples": 241}, "partition.samples"), ({"test_samples": 81}, "partition.test_samples")]
)
def test_more_samples_than_there_are_images_are_refused(partition: dict[str, int], field: str) -> None:
    with pytest.raises(BadInput, match="for each device, there are") as caught:
        sampled(partition=partition)
    assert caught.value.field == field


def test_more_samples_than_exact_sums_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fixed_point_exponent(sampled_module.MOST_SAMPLES, 2.0**7) == 16
    monkeypatch.setattr(sampled_module, "MOST_SAMPLES", 59_999_999)
    with pytest.raises(BadInput, match="1000000 devices of 60 samples have 60000000: exact sums hold") as caught:
        sampled(MILLION, samples=60)
    assert caught.value.field == "partition.samples"


def test_a_dealt_partition_refuses_more_seats_than_samples() -> None:
    for client in ("device", "edge"):
        with pytest.raises(BadInput, match="241 "):
            population_of(num_devices=241, num_edges=2, partition="iid", client=client)


# ---- who is tested


@pytest.mark.parametrize(
    ("test_clients", "n", "expected"),
    [(None, 50, 50), (None, 1000, 1000), (None, 1001, 1000), (7, 50, 7), (70, 50, 50), ("all", 3000, 3000)],
)
def test_many_clients_are_tested_by_a_seeded_sample(test_clients: Any, n: int, expected: int) -> None:
    found = sampled(n, test_clients=test_clients)
    assert (len(found.test_clients), found.tests_all) == (expected, expected == n)
    assert found.test_clients == sampled(n, test_clients=test_clients).test_clients
    if expected < n:
        assert found.test_clients != sampled(n, test_clients=test_clients, seed=1).test_clients
        assert set(found.test_clients) <= set(range(n))
    at_edges = [part.owner for edge in found.edges for part in found.tests_at(edge, "device")]
    assert set(at_edges) == {f"device-{seat}" for seat in found.test_clients}
    assert len(at_edges) == expected


def test_the_test_set_union_is_that_of_the_tested_clients() -> None:
    found = sampled(30, test_clients=4, test_on=("union",))
    assert [part.owner for part in found.test_sets["union"]] == [f"device-{seat}" for seat in found.test_clients]
    assert sampled(30, test_clients=4).test_sets == {}
