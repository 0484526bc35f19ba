"""Fields averaged per position: only kept values are sent, with their positions in a compact form."""

from __future__ import annotations

from typing import Annotated
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from shared.core.errors import WireError
from shared.core.records import Record
from shared.core.tensor_records import ModelState
from shared.core.update_annotations import MaskOf, Mean
from shared.federation.aggregation import Accumulator, FixedPoint, PartialSum
from shared.wire import codec
from shared.wire.sparse import mask_of, n_bytes, placed, positions_of


class Masked(Record):
    delta: Annotated[ModelState, Mean(per_position="mask")]
    mask: Annotated[ModelState, MaskOf()]


@settings(max_examples=50)
@given(arrays(bool, array_shapes(min_dims=0, max_dims=4, max_side=6)))
def test_every_mask_survives_a_round_trip(drawn: np.ndarray) -> None:
    mask = torch.from_numpy(drawn.copy())
    assert torch.equal(mask_of(positions_of(mask), drawn.shape), mask)


@settings(max_examples=100)
@given(st.binary(max_size=6), st.lists(st.integers(0, 5), max_size=3))
def test_random_bytes_are_refused_or_round_trip(drawn: bytes, shape: list[int]) -> None:
    places = torch.from_numpy(np.frombuffer(drawn, dtype=np.uint8).copy())
    try:
        mask = mask_of(places, shape)
    except WireError:
        return
    assert torch.equal(positions_of(mask), places)


def test_box_and_bits_by_hand() -> None:
    mask = torch.zeros(3, 4)
    mask[np.ix_([0, 2], [0, 1, 3])] = 1
    assert positions_of(mask).tolist() == [0b0_101_1101]
    mask[2, 0] = 0
    assert positions_of(mask).tolist() == [0b1_101_1101, 0b11101100]
    assert positions_of(torch.ones(2, 3)).tolist() == [0b0_11_111_00]
    assert positions_of(torch.zeros(2, 3)).tolist() == [0]


@pytest.mark.parametrize("shape", [[0, 2**28], [2**26, 4], [2**28], []])
def test_bytes_that_do_not_fit_are_refused_before_allocation(shape: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zeros", "unpackbits"):
        monkeypatch.setattr(np, name, Mock(side_effect=AssertionError("memory was taken")))
    with pytest.raises(WireError, match="2 bytes do not say where"):
        mask_of(torch.zeros(2, dtype=torch.uint8), shape)


def half(n: int, seed: int = 0) -> Masked:
    """Returns an update of an n by n layer of which every second row and column is kept."""
    rng = np.random.default_rng(seed)
    mask = torch.zeros(n, n)
    mask[::2, ::2] = 1
    values = torch.from_numpy(rng.standard_normal((n, n)).astype(np.float32)) * mask
    return Masked(delta={"w": values}, mask={"w": mask})


def test_a_layer_of_half_width_is_sent_in_a_quarter_of_the_bytes() -> None:
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


def test_sum_per_position_is_sent_where_it_has_weight() -> None:
    n, fixed_point = 128, FixedPoint(total_weight=100)
    accumulator = Accumulator(Masked, fixed_point)
    for seed in range(3):
        accumulator.add(half(n, seed), 10 + seed)
    body = bytes(codec.encode(accumulator.result()).join())
    assert len(body) < 16 * (n // 2) ** 2 + 800
    back = codec.decode(PartialSum, body, model={"w": torch.zeros(n, n)})
    found, expected = back.means["delta"], accumulator.result().means["delta"]
    assert torch.equal(found.sums["w"], expected.sums["w"])
    assert torch.equal(found.positions["w"], expected.positions["w"])
    assert found.positions["w"][0, :2].tolist() == [33, 0]


def test_sizes_are_computed_without_gathering_kept_values(monkeypatch: pytest.MonkeyPatch) -> None:
    update = half(8)
    n = codec.encode(update).n_bytes
    gathered = Mock(side_effect=AssertionError("elements were gathered"))
    monkeypatch.setattr("shared.wire.json_encoding.TensorIndex.kept", gathered)
    assert codec.size(update) == n


def test_masks_that_are_none_travel_whole_and_values_and_shapes_must_fit() -> None:
    update = half(8)
    odd = update.replace(mask={"w": update.mask["w"] * 0.5})
    assert torch.equal(codec.decode(Masked, bytes(codec.encode(odd).join())).mask["w"], odd.mask["w"])
    body = bytes(codec.encode(update).join()).replace(b"[8,8]", b"[9,9]")
    with pytest.raises(WireError, match=r"the run's model has no tensor of shape \(9, 9\)"):
        codec.decode(Masked, body, model={"w": torch.zeros(8, 8)})
    with pytest.raises(WireError, match=r"\(3,\) values for 2 places"):
        placed(torch.ones(3), torch.tensor([True, False, True]))
