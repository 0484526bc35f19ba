"""Exact sums have the same bits in any order and any grouping."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from shared.core.errors import NotFinite, OutOfBound, StrataError, WireError
from shared.core.records import Record
from shared.core.tensor_records import ModelState, Tensor, TensorMap
from shared.core.update_annotations import MaskOf, Mean, PerClient
from shared.federation import aggregation
from shared.federation.aggregation import (
    Accumulator,
    FixedPoint,
    MeanSum,
    PartialSum,
    check_update,
    mean_of,
    names_clients,
)
from shared.wire import codec

FIXED_POINT = FixedPoint(total_weight=1000, buffer_names=frozenset({"running"}), buffer_bound=4095)


class Delta(Record):
    delta: Annotated[ModelState, Mean()]


class Everything(Record):
    """A field with each aggregation rule."""

    delta: Annotated[TensorMap, Mean(weight="samples")]
    plain: Annotated[Tensor, Mean(weight="one")]
    loss: Annotated[float, Mean(weight="one")]
    groups: Annotated[dict[str, TensorMap], Mean(by_group=True)] = Field(default_factory=dict)
    sparse: Annotated[TensorMap | None, Mean(per_position="mask")] = None
    mask: Annotated[TensorMap, MaskOf()] = Field(default_factory=dict)
    scores: Annotated[dict[str, Tensor], PerClient()] = Field(default_factory=dict)


def everything(seed: int, **changes: Any) -> Everything:
    rng = np.random.default_rng(seed)

    def drawn(n: int) -> Tensor:
        return torch.from_numpy(rng.uniform(-100, 100, n).astype(np.float32))

    values: dict[str, Any] = {
        "delta": {"w": drawn(5), "running": drawn(1) * 40},
        "plain": drawn(2),
        "loss": float(rng.uniform()),
        "groups": {"ab"[seed % 2]: {"v": drawn(2)}},
        "sparse": {"s": drawn(3)},
        "mask": {"s": torch.from_numpy(rng.integers(0, 2, 3).astype(np.float32))},
        "scores": {f"device-{seed}": drawn(1)},
    }
    return Everything(**{**values, **changes})


def bits(partial_sum: PartialSum) -> bytes:
    return bytes(codec.encode(partial_sum).join())


def partial_sum_of(
    kind: type[Record], items: Sequence[tuple[Record, int]], fixed_point: FixedPoint = FIXED_POINT
) -> PartialSum:
    accumulator = Accumulator(kind, fixed_point)
    for update, n in items:
        accumulator.add(update, n)
    return accumulator.result()


# ---- exactness


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 60)), min_size=1, max_size=8, unique_by=lambda i: i[0]))
def test_any_order_and_any_grouping_give_the_same_bits(drawn: list[tuple[int, int]]) -> None:
    items = [(everything(seed), n) for seed, n in drawn]
    straight = bits(partial_sum_of(Everything, items))
    rng = random.Random(repr(drawn))
    for _ in range(3):
        rng.shuffle(items)
        parts = [partial_sum_of(Everything, items[cut::3]) for cut in range(3)]  # three agents
        rng.shuffle(parts)
        edge, cloud = Accumulator(Everything, FIXED_POINT), Accumulator(Everything, FIXED_POINT)
        edge.merge(codec.decode(PartialSum, codec.encode(parts[0]).join(), stored=True))
        edge.merge(parts[1])
        cloud.merge(parts[2])
        cloud.merge(edge.result())
        assert bits(cloud.result()) == straight


def test_adding_partial_sums_does_not_change_them() -> None:
    parts = [partial_sum_of(Everything, [(everything(seed), 3)]) for seed in range(2)]
    before = [bits(part) for part in parts]
    accumulator = Accumulator(Everything, FIXED_POINT)
    for part in parts:
        accumulator.merge(part)
    accumulator.add(everything(2), 3)
    assert [bits(part) for part in parts] == before


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(-128, 128, width=32), st.integers(0, 100)), min_size=1, max_size=10))
def test_the_sum_is_that_of_whole_numbers_and_the_mean_the_nearest_float(terms: list[tuple[float, int]]) -> None:
    found = partial_sum_of(Delta, [(Delta(delta={"w": torch.tensor([x])}), n) for x, n in terms])
    g = FIXED_POINT.exponent("w")
    assert g == 53 - 10 - 7
    exact = sum(n * round(Fraction(x) * 2**g) for x, n in terms)  # Python rounds ties to even, too
    assert int(found.means["delta"].sums["w"].item()) == exact
    weight = sum(n for _, n in terms)
    mean = mean_of(found, Delta, FIXED_POINT)
    assert isinstance(mean, Delta)
    expected = np.float32(np.float64(Fraction(exact, 2**g)) / weight) if weight else 0
    assert mean.delta["w"].item() == expected


def test_the_largest_terms_with_the_full_weight_are_still_exact() -> None:
    fixed_point = FixedPoint(total_weight=60_000)
    found = partial_sum_of(Delta, [(Delta(delta={"w": torch.tensor([128.0, -128.0])}), 30_000)] * 2, fixed_point)
    assert found.means["delta"].sums["w"].tolist() == [60_000 * 2.0**37, -60_000 * 2.0**37]
    mean = mean_of(found, Delta, fixed_point)
    assert mean is not None
    assert mean.delta["w"].tolist() == [128, -128]  # type: ignore[attr-defined]


# ---- means


def test_means_are_weighted_by_samples_or_equally() -> None:
    a = everything(0, delta={"w": torch.tensor([1.0])}, plain=torch.tensor([1.0]), loss=1.0)
    b = everything(2, delta={"w": torch.tensor([5.0])}, plain=torch.tensor([5.0]), loss=2.0)
    mean = mean_of(partial_sum_of(Everything, [(a, 1), (b, 3)]), Everything, FIXED_POINT)
    assert isinstance(mean, Everything)
    assert mean.delta["w"].tolist() == [4]
    assert mean.plain.tolist() == [3]
    assert mean.loss == 1.5


def test_an_edges_mean_of_three_updates_has_three_times_the_weight_of_one() -> None:
    accumulator = Accumulator(Everything, FIXED_POINT)
    accumulator.add(everything(0, plain=torch.tensor([1.0])), 10, n_updates=3)
    accumulator.add(everything(2, plain=torch.tensor([5.0])), 10)
    mean = mean_of(accumulator.result(), Everything, FIXED_POINT)
    assert isinstance(mean, Everything)
    assert mean.plain.tolist() == [2]
    assert (accumulator.n_updates, accumulator.n_samples) == (4, 20)


def test_a_position_is_averaged_over_the_updates_that_hold_it() -> None:
    def masked(values: list[float], mask: list[float], seed: int) -> Everything:
        return everything(seed, sparse={"s": torch.tensor(values)}, mask={"s": torch.tensor(mask)})

    items = [(masked([1, 7, 9], [1, 1, 0], 0), 1), (masked([5, 99, 9], [1, 0, 0], 2), 3)]
    mean = mean_of(partial_sum_of(Everything, items), Everything, FIXED_POINT)
    assert isinstance(mean, Everything)
    assert mean.sparse is not None
    assert mean.sparse["s"].tolist() == [4, 7, 0]
    assert mean.mask["s"].tolist() == [1, 1, 0]


def test_groups_are_averaged_separately() -> None:
    def grouped(seed: int, **groups: float) -> Everything:
        return everything(seed, groups={name: {"v": torch.tensor([x])} for name, x in groups.items()})

    items = [(grouped(0, a=1.0, b=2.0), 1), (grouped(1, a=5.0), 3), (grouped(2, **{"c/d": 9.0}), 2)]
    mean = mean_of(partial_sum_of(Everything, items), Everything, FIXED_POINT)
    assert isinstance(mean, Everything)
    assert {name: part["v"].tolist() for name, part in mean.groups.items()} == {"a": [4], "b": [2], "c/d": [9]}


class Scalars(Record):
    """An update with groups of single numbers, and fields that may be absent."""

    by_class: Annotated[dict[str, float] | None, Mean(by_group=True)] = None
    maybe: Annotated[Tensor | None, Mean()] = None
    sparse: Annotated[TensorMap | None, Mean(per_position="mask")] = None
    mask: Annotated[TensorMap | None, MaskOf()] = None


def test_optional_fields_are_averaged_over_the_updates_that_have_them() -> None:
    items = [(Scalars(by_class={"0": 1.0}), 1), (Scalars(by_class={"0": 3.0}, maybe=torch.tensor(4.0)), 1)]
    mean = mean_of(partial_sum_of(Scalars, items), Scalars, FIXED_POINT)
    assert isinstance(mean, Scalars)
    assert mean.by_class == {"0": 2.0}
    assert mean.maybe is not None
    assert mean.maybe.item() == 4.0
    assert mean.sparse is None


class Mixed(Record):
    """An update with an optional mean and a value per client."""

    delta: Annotated[Tensor | None, Mean()] = None
    values: Annotated[dict[str, int], PerClient()] = Field(default_factory=dict)


def test_per_client_fields_keep_every_clients_value() -> None:
    mean = mean_of(partial_sum_of(Everything, [(everything(3), 1), (everything(1), 1)]), Everything, FIXED_POINT)
    assert isinstance(mean, Everything)
    assert list(mean.scores) == ["device-1", "device-3"]
    assert torch.equal(mean.scores["device-3"], everything(3).scores["device-3"])


def test_values_per_client_arrive_without_averaged_fields() -> None:
    """An edge without updates still sends the values of its clients, with weight 0."""
    silent, accumulator = Mixed(values={"device-3": 2}), Accumulator(Mixed, FIXED_POINT)
    accumulator.add(silent, n_samples=0, n_updates=0)
    assert mean_of(accumulator.result(), Mixed, FIXED_POINT) == silent
    accumulator.add(Mixed(delta=torch.tensor(4.0), values={"device-1": 0}), n_samples=5)
    mean = mean_of(accumulator.result(), Mixed, FIXED_POINT)
    assert isinstance(mean, Mixed)
    assert mean.delta is not None
    assert mean.delta.item() == 4.0
    assert mean.values == {"device-1": 0, "device-3": 2}
    assert (names_clients(silent), names_clients(Mixed())) == (True, False)
    assert mean_of(Accumulator(Mixed, FIXED_POINT).result(), Mixed, FIXED_POINT) is None


def test_a_stored_value_does_not_keep_its_body_in_memory() -> None:
    body = codec.encode(everything(3)).join()
    accumulator = Accumulator(Everything, FIXED_POINT)
    accumulator.add(codec.decode(Everything, body, stored=True), 1)
    kept = accumulator.result().each["scores"]["device-3"].clone()
    body[:] = bytes(len(body))
    assert torch.equal(accumulator.result().each["scores"]["device-3"], kept)


def test_no_updates_have_no_mean_and_no_samples_a_mean_of_zero() -> None:
    assert mean_of(Accumulator(Delta, FIXED_POINT).result(), Delta, FIXED_POINT) is None
    mean = mean_of(partial_sum_of(Delta, [(Delta(delta={"w": torch.tensor([5.0])}), 0)]), Delta, FIXED_POINT)
    assert isinstance(mean, Delta)
    assert mean.delta["w"].tolist() == [0]


def test_a_mean_that_is_not_of_the_models_shape_is_refused() -> None:
    found = partial_sum_of(Delta, [(Delta(delta={"w": torch.zeros(2)}), 1)])
    with pytest.raises(WireError, match="the model's is"):
        mean_of(found, Delta, FIXED_POINT, model={"w": torch.zeros(3)})


# ---- refused updates do not change the sum


def refusals() -> dict[str, tuple[Everything, int, type[StrataError], str]]:
    nan = torch.tensor([0.0, math.nan])
    return {
        "NaN": (everything(1, plain=nan), 1, NotFinite, "plain holds NaN"),
        "infinity": (everything(1, plain=torch.tensor([math.inf, 0])), 1, NotFinite, "plain"),
        "NaN in each": (everything(1, scores={"device-1": nan}), 1, NotFinite, "scores"),
        "beyond the bound": (
            everything(1, delta={"w": torch.tensor([128.1, 0, 0, 0, 0]), "running": torch.zeros(1)}),
            1,
            OutOfBound,
            "delta w holds 128.1, at most 128 by the spec's sum_bounds.parameters",
        ),
        "a number beyond float32": (everything(1, loss=1e39), 1, OutOfBound, r"loss holds 1e\+39"),
        "a buffer beyond its bound": (
            everything(1, delta={"w": torch.zeros(5), "running": torch.tensor([4097.0])}),
            1,
            OutOfBound,
            "delta running holds 4097, at most 4095",
        ),
        "too much weight": (everything(1), 1000, OutOfBound, "weights add up to 1001"),
        "negative weight": (everything(1), -1, OutOfBound, "-1 samples"),
        "another shape": (everything(1, plain=torch.zeros(3)), 1, WireError, r"plain is \(3,\), before it was \(2,\)"),
        "a tensor less": (everything(1, delta={"w": torch.zeros(5)}), 1, WireError, "hold 'running', others not"),
        "no mask": (everything(1, mask={}), 1, WireError, "sparse s has no mask of its shape"),
        "a mask of another shape": (everything(1, mask={"s": torch.ones(2)}), 1, WireError, "no mask of its shape"),
        "half a mask": (
            everything(1, mask={"s": torch.tensor([0.5, 1, 1])}),
            1,
            WireError,
            "other values than 0 and 1",
        ),
        "a mask of NaN": (everything(1, mask={"s": torch.full((3,), math.nan)}), 1, WireError, "other values than 0"),
        "the same client twice": (everything(1, scores=everything(0).scores), 1, WireError, "twice from device-0"),
    }


@pytest.mark.parametrize("case", refusals().keys())
def test_a_refused_update_does_not_change_the_sum(case: str) -> None:
    update, n, error, message = refusals()[case]
    accumulator = Accumulator(Everything, FIXED_POINT)
    accumulator.add(everything(0), 1)
    before = bits(accumulator.result())
    with pytest.raises(error, match=message):
        accumulator.add(update, n)
    assert bits(accumulator.result()) == before
    accumulator.add(everything(2), 1)  # and the sum can continue


def test_an_invalid_update_is_refused_at_its_sender() -> None:
    check_update(everything(0), FIXED_POINT)
    with pytest.raises(NotFinite, match="delta w"):
        check_update(Delta(delta={"w": torch.tensor([math.nan])}), FIXED_POINT)


def test_a_buffer_may_be_larger_than_a_parameter() -> None:
    check_update(Delta(delta={"running": torch.tensor([4095.0]), "w": torch.tensor([128.0])}), FIXED_POINT)
    assert FIXED_POINT.exponent("running") == FIXED_POINT.exponent("w") - 5


def forged(**changes: Any) -> PartialSum:
    """Returns the sum of one complete update, with changes."""
    return partial_sum_of(Everything, [(everything(1), 2)]).replace(**changes)


def part(key: str, **changes: Any) -> dict[str, MeanSum]:
    means = forged().means
    return {**means, key: means[key].replace(**changes)}


F64 = torch.float64
FORGERIES: dict[str, tuple[PartialSum, str]] = {
    "an unknown field": (forged(means={"other": forged().means["plain"]}), "averages no field 'other'"),
    "a group of what has none": (forged(means={"plain/a": forged().means["plain"]}), "no field 'plain/a'"),
    "no group of what has some": (forged(means={"groups": forged().means["plain"]}), "no field 'groups'"),
    "an unknown each": (forged(each={"other": {}}), "collects no field 'other'"),
    "float32": (forged(means=part("plain", sums={"": torch.zeros(2)})), "sums are float64"),
    "NaN": (forged(means=part("plain", sums={"": torch.full((2,), math.nan, dtype=F64)})), "holds NaN"),
    "half a step": (forged(means=part("plain", sums={"": torch.full((2,), 0.5, dtype=F64)})), "a fraction of a step"),
    "more than its weight": (forged(means=part("plain", sums={"": torch.full((2,), 2.0**44, dtype=F64)})), "at most"),
    "more than the total weight": (forged(n_updates=1001, means=part("plain", weight=1001)), "weights add up to 1002"),
    "more than its updates": (forged(means=part("plain", weight=3)), "plain: a weight of 3, in a sum of 1 updates"),
    "another shape": (forged(means=part("plain", sums={"": torch.zeros(3, dtype=F64)})), "before it was"),
    "a map for a number": (forged(means=part("loss", sums={"a": torch.zeros((), dtype=F64)})), "loss is one float"),
    "a vector for a number": (forged(means=part("loss", sums={"": torch.zeros(2, dtype=F64)})), "loss is one float"),
    "no weights by position": (forged(means=part("sparse", positions={})), "of other tensors"),
    "more weight by position": (
        forged(means=part("sparse", positions={"s": torch.full((3,), 3.0, dtype=F64)})),
        "at most 2",
    ),
    "negative weight by position": (
        forged(means=part("sparse", positions={"s": torch.full((3,), -1.0, dtype=F64)})),
        "are negative",
    ),
    "positions of another shape": (
        forged(means=part("sparse", positions={"s": torch.zeros(2, dtype=F64)})),
        r"weights by position \(2,\)",
    ),
    "each of another type": (forged(each={"scores": {"device-9": "high"}}), "scores.device-9"),
    "each with NaN": (forged(each={"scores": {"device-9": torch.tensor([math.nan])}}), "scores holds NaN"),
    "a client that came already": (forged(each={"scores": {"device-0": torch.zeros(1)}}), "twice from device-0"),
}


@pytest.mark.parametrize("case", FORGERIES.keys())
def test_a_forged_sum_is_refused_and_does_not_change_the_sum(case: str) -> None:
    other, message = FORGERIES[case]
    accumulator = Accumulator(Everything, FIXED_POINT)
    accumulator.add(everything(0), 1)
    before = bits(accumulator.result())
    with pytest.raises(StrataError, match=message):
        accumulator.merge(other)
    assert bits(accumulator.result()) == before
    accumulator.merge(forged())


def test_a_sum_that_is_not_of_the_runs_model_is_refused_even_if_it_comes_first() -> None:
    found = partial_sum_of(Delta, [(Delta(delta={"w": torch.zeros(2)}), 1)])
    accumulator = Accumulator(Delta, FIXED_POINT, model={"w": torch.zeros(3)})
    with pytest.raises(WireError, match="the model's is"):
        accumulator.merge(found)
    assert accumulator.n_updates == 0
    Accumulator(Delta, FIXED_POINT, model={"w": torch.zeros(2)}).merge(found)


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        forged(n_updates=-1)
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        MeanSum(weight=-1, sums={})


# ---- types of updates


class Undeclared(Record):
    delta: TensorMap


class NoMask(Record):
    delta: Annotated[TensorMap, Mean(per_position="count")]
    count: Annotated[TensorMap, Mean()]


class Both(Record):
    delta: Annotated[dict[str, TensorMap], Mean(per_position="mask", by_group=True)]
    mask: Annotated[TensorMap, MaskOf()]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Undeclared, "Undeclared.delta has no aggregation rule"),
        (NoMask, "count is not a MaskOf field"),
        (Both, "per_position and by_group do not go together"),
    ],
)
def test_a_type_that_cannot_be_summed_is_refused(kind: type[Record], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        aggregation.check_update_type(kind)


def test_only_updates_with_equal_weights_can_be_sent_as_a_mean() -> None:
    aggregation.check_update_type(Everything)
    assert aggregation.can_be_mean(Delta)
    assert not aggregation.can_be_mean(Everything)
    assert aggregation.rule_of(Everything, "mask") == MaskOf()
