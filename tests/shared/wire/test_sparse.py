"""Of fields averaged per position only kept values travel, and their positions in few bits."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from shared.core.aggregation_rules import MaskOf, Mean
from shared.core.errors import WireError
from shared.core.records import Record
from shared.core.tensor_records import ModelState
from shared.federation.aggregation import Accumulator, FixedPoint, PartialSum
from shared.wire import codec
from shared.wire.sparse import mask_of, n_bytes, placed, places_of


class Masked(Record):
    delta: Annotated[ModelState, Mean(per_position="mask")]
    mask: Annotated[ModelState, MaskOf()]


@settings(max_examples=100, deadline=None)
@given(arrays(bool, array_shapes(min_dims=0, max_dims=4, max_side=6)))
def test_every_mask_survives_a_round_trip(drawn: np.ndarray) -> None:
    mask = torch.from_numpy(drawn.copy())
    assert torch.equal(mask_of(places_of(mask), drawn.shape), mask)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=6), st.lists(st.integers(0, 5), max_size=3))
def test_other_bytes_are_refused_or_are_what_was_packed(drawn: bytes, shape: list[int]) -> None:
    places = torch.from_numpy(np.frombuffer(drawn, dtype=np.uint8).copy())
    try:
        mask = mask_of(places, shape)
    except WireError:
        return
    assert torch.equal(places_of(mask), places)


def test_box_and_bits_by_hand() -> None:
    mask = torch.zeros(3, 4)
    mask[np.ix_([0, 2], [0, 1, 3])] = 1
    assert places_of(mask).tolist() == [0b0_101_1101]
    mask[2, 0] = 0
    assert places_of(mask).tolist() == [0b1_101_1101, 0b11101100]
    assert places_of(torch.ones(2, 3)).tolist() == [0b0_11_111_00]
    assert places_of(torch.zeros(2, 3)).tolist() == [0]


@pytest.mark.parametrize("shape", [[0, 2**28], [2**26, 4], [2**28], []])
def test_bytes_that_are_too_few_or_too_many_are_refused_before_memory_is_taken(
    shape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "zeros", lambda *args, **kwargs: pytest.fail("memory was taken"))
    monkeypatch.setattr(np, "unpackbits", lambda *args: pytest.fail("memory was taken"))
    with pytest.raises(WireError, match="2 bytes do not say where"):
        mask_of(torch.zeros(2, dtype=torch.uint8), shape)


def test_values_and_places_must_be_as_many() -> None:
    with pytest.raises(WireError, match=r"\(3,\) values for 2 places"):
        placed(torch.ones(3), torch.tensor([True, False, True]))


def half(n: int, seed: int = 0) -> Masked:
    """A layer of n by n of which every other row and column is kept."""
    rng = np.random.default_rng(seed)
    mask = torch.zeros(n, n)
    mask[::2, ::2] = 1
    values = torch.from_numpy(rng.standard_normal((n, n)).astype(np.float32)) * mask
    return Masked(delta={"w": values}, mask={"w": mask})


def test_half_as_wide_a_layer_travels_in_a_quarter_of_the_bytes() -> None:
    n = 256
    update = half(n)
    body = bytes(codec.encode(update).join())
    quarter = 4 * (n // 2) ** 2
    assert quarter + n // 4 < len(body) < quarter + n // 4 + 400  # header and bits of two dimensions
    assert codec.size(update) == len(body)
    assert n_bytes(update.mask["w"], 4) == quarter + n // 4 + 1
    back = codec.decode(Masked, body, model={"w": torch.zeros(n, n)})
    assert torch.equal(back.delta["w"], update.delta["w"])
    assert torch.equal(back.mask["w"], update.mask["w"])
    assert bytes(codec.encode(back).join()) == body


def test_sum_per_position_travels_where_it_has_weight() -> None:
    n, grid = 128, FixedPoint(total_weight=100)
    fold = Accumulator(Masked, grid)
    for seed in range(3):
        fold.add(half(n, seed), 10 + seed)
    body = bytes(codec.encode(fold.result()).join())
    assert len(body) < 16 * (n // 2) ** 2 + 800
    back = codec.decode(PartialSum, body, model={"w": torch.zeros(n, n)})
    for name in ("sums", "positions"):
        assert torch.equal(getattr(back.means["delta"], name)["w"], getattr(fold.result().means["delta"], name)["w"])
    assert back.means["delta"].positions["w"][0, 0] == 33
    assert back.means["delta"].positions["w"][0, 1] == 0


def test_mask_that_is_none_travels_whole_and_is_refused_by_whoever_reads_it() -> None:
    update = half(4)
    odd = update.replace(mask={"w": update.mask["w"] * 0.5})
    back = codec.decode(Masked, bytes(codec.encode(odd).join()))
    assert torch.equal(back.mask["w"], odd.mask["w"])


def test_shape_that_the_model_has_not_is_refused_before_memory_is_taken() -> None:
    body = bytes(codec.encode(half(8)).join()).replace(b"[8,8]", b"[9,9]")
    with pytest.raises(WireError, match=r"the run's model has no tensor of shape \(9, 9\)"):
        codec.decode(Masked, body, model={"w": torch.zeros(8, 8)})


def test_sizes_are_computed_without_gathering_kept_values(monkeypatch: pytest.MonkeyPatch) -> None:
    update = half(8)
    n = codec.encode(update).n_bytes
    monkeypatch.setattr("shared.wire.encoding.TensorIndex.kept", lambda *args: pytest.fail("elements were gathered"))
    assert codec.size(update) == n
