"""Which tensors of a record are compressed, and error feedback."""

from __future__ import annotations

import math
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field

from shared.algorithms.es_afl import Order, Pair
from shared.core.errors import BadInput, NotFinite
from shared.core.records import Record
from shared.core.tensor_records import ModelState, Tensor, TensorMap
from shared.core.update_annotations import MaskOf, Mean, PerClient
from shared.federation.aggregation import Accumulator, FixedPoint
from shared.federation.spec_parser import parse_spec
from shared.wire import codec as codec_module
from shared.wire.codec_settings import CompressionSpec
from shared.wire.compression import Coded, Compressor, Int8, TopK, decoded


class Down(Record):
    """A message."""

    model: ModelState
    maybe: ModelState | None = None
    other: TensorMap = Field(default_factory=dict)


class Orders(Record):
    """Returns messages as an agent decodes them."""

    messages: tuple[Order, ...]


class Up(Record):
    """An update with all kinds of fields."""

    delta: Annotated[ModelState, Mean()]
    maybe: Annotated[ModelState | None, Mean(weight="one")] = None
    groups: Annotated[dict[str, ModelState], Mean(by_group=True)] = Field(default_factory=dict)
    plain: Annotated[TensorMap, Mean()] = Field(default_factory=dict)
    each: Annotated[dict[str, ModelState], PerClient()] = Field(default_factory=dict)


class Masked(Record):
    """An update that is averaged by position."""

    delta: Annotated[ModelState, Mean(per_position="mask")]
    mask: Annotated[TensorMap, MaskOf()]


def model() -> TensorMap:
    draws = torch.Generator().manual_seed(4)
    return {
        "w": torch.randn(5, 4, generator=draws),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "running_mean": torch.randn(20, generator=draws),
        "batches": torch.tensor([3]),
        "half": torch.ones(9, dtype=torch.float16),
    }


def compression(up: Any = None, down: Any = None) -> Compressor:
    spec = CompressionSpec.model_validate({"up": up, "down": down})
    return Compressor(spec, frozenset({"running_mean", "batches"}))


def coded_names(tensors: TensorMap | None) -> set[str]:
    return {name for name, tensor in (tensors or {}).items() if isinstance(tensor, Coded)}


@pytest.mark.parametrize("codec", ["int8", "ternary", {"name": "topk", "fraction": 0.1}])
def test_only_averaged_parameters_are_coded(codec: Any) -> None:
    """A buffer, a number, another dtype, a map that is no model, and incompressible tensors stay as they are."""
    state = model()
    update = Up(delta=state, maybe=state, groups={"a": state}, plain=state, each={"device-0": state})
    found, _ = compression(up=codec).update(update, {})
    for part in (found.delta, found.maybe, found.groups["a"]):
        assert coded_names(part) == {"w"}
    assert coded_names(found.plain) == coded_names(found.each["device-0"]) == set()
    for name in state.keys() - {"w"}:
        assert found.delta[name] is state[name]


def test_messages_round_trip_through_the_codec() -> None:
    state = model()
    message = compression(down="int8").messages()(Down(model=state, other=state))
    assert coded_names(message.model) == {"w"}
    assert coded_names(message.other) == set()
    back = decoded(message)
    assert type(back) is Down
    assert torch.equal(back.model["w"], Int8().encode(state["w"]).decoded())
    assert back.model["running_mean"] is state["running_mean"]
    coded, weight = compression(down="int8").messages(), torch.ones(5, 4)
    first, second = coded(Down(model={"w": weight})), coded(Down(model={"w": weight.detach()}))
    assert second.model["w"] is first.model["w"], "a tensor is coded and sent once, even if each holds its own view"
    assert coded(Down(model={"w": torch.ones(5, 4)})).model["w"] is not first.model["w"]


def test_positions_and_coded_tensors_and_records_without_a_codec_are_not_coded() -> None:
    masked = Masked(delta={"w": torch.ones(9)}, mask={"w": torch.ones(9)})
    assert coded_names(compression(up="int8").update(masked, {})[0].delta) == set()
    own = TopK(fraction=0.2).encode(torch.arange(9.0))
    assert compression(up="int8").update(Up(delta={"w": own}), {})[0].delta["w"] is own
    update, message = Up(delta=model()), Down(model=model())
    assert compression().update(update, {})[0] is update
    assert compression().messages()(message) is message
    with pytest.raises(NotFinite, match="groups a w holds NaN"):
        compression(up="int8").update(Up(delta={}, groups={"a": {"w": torch.full((9,), math.nan)}}), {})


def test_the_error_of_an_update_is_added_to_the_next_one() -> None:
    """Two of eight elements are sent; the expected values of three updates are computed by hand."""
    coder = compression(up={"name": "topk", "fraction": 0.25})
    memory: TensorMap = {}
    x = torch.tensor([8.0, 7.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0])
    sent = []
    for update in (x, torch.zeros(8), torch.ones(8)):
        found, memory = coder.update(Up(delta={"w": update}), memory)
        sent.append(decoded(found).delta["w"].tolist())
    assert sent[0] == [8, 7, 0, 0, 0, 0, 0, 0]
    assert sent[1] == [0, 0, 3, 2, 0, 0, 0, 0]
    assert sent[2] == [1, 0, 0, 0, 2, 0, 0, 0]
    assert memory["delta w"].tolist() == [0, 1, 1, 1, 0, 1, 1, 1]
    without = compression(up={"name": "topk", "fraction": 0.25, "memory": False})
    assert without.update(Up(delta={"w": x}), {})[1] == {}


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (torch.ones(4), "not torch.float32 (8,)"),
        (torch.ones(1), "not torch.float32 (8,)"),
        (torch.ones(8, dtype=torch.float64), "torch.float64 (8,)"),
        (torch.full((8,), math.nan), "not finite"),
    ],
)
def test_a_memory_that_does_not_fit_is_dropped(memory: Tensor, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a damaged memory would fail its seat for ever, or, with one element, be added to all."""
    coder = compression(up={"name": "topk", "fraction": 0.25})
    x = torch.tensor([8.0, 7.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0])
    found, left = coder.update(Up(delta={"w": x}), {"delta w": memory})
    first, as_first = coder.update(Up(delta={"w": x}), {})
    assert torch.equal(decoded(found).delta["w"], decoded(first).delta["w"])
    assert torch.equal(left["delta w"], as_first["delta w"])
    assert "the error feedback of delta w is" in caplog.text
    assert expected in caplog.text


def test_sums_of_coded_updates_are_those_of_the_decoded_ones() -> None:
    fixed_point = FixedPoint(100)
    short, full = Accumulator(Up, fixed_point), Accumulator(Up, fixed_point)
    for seed in range(3):
        x = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        short.add(Up(delta={"w": Int8().encode(x)}), 5)
        full.add(Up(delta={"w": Int8().encode(x).decoded()}), 5)
    assert torch.equal(short.result().means["delta"].sums["w"], full.result().means["delta"].sums["w"])


def test_sizes_are_known_beforehand() -> None:
    state = model()
    for codec in ("fp16", "int8", "ternary", {"name": "topk", "fraction": 0.1}):
        coder = compression(up=codec)
        found, _ = coder.update(Up(delta=state), {})
        expected = sum(
            t.carried_bytes if isinstance(t, Coded) else t.numel() * t.element_size() for t in found.delta.values()
        )
        assert coder.carried_bytes(state, coder.up) == expected


@pytest.mark.parametrize(
    ("compression", "field", "expected"),
    [
        ("fp16", "compression", r"say which way: \{up: fp16\}, \{down: fp16\} or both"),
        ({"up": "gzip"}, "compression.up", "known: fp16, int8, ternary, topk"),
        ({"up": {"name": "topk", "fraction": 0}}, "compression.up.fraction", "greater than 0"),
        ({"up": {"name": "fp16", "fraction": 0.1}}, "compression.up.fraction", "unknown field"),
        ({"down": "topk"}, "compression", "topk is for updates"),
        ({"sideways": "fp16"}, "compression.sideways", "unknown field"),
    ],
)
def test_an_impossible_spec_is_refused_by_the_field(compression: Any, field: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected) as refused:
        parse_spec({"compression": compression})
    assert refused.value.field == field
    assert parse_spec({"compression": None}) == parse_spec({})


def test_orders_that_differ_share_the_model_that_is_coded() -> None:
    """ES-AFL's messages differ in the chromosomes: eight of them in a body contain one model, coded or not."""
    weights = {"w": torch.randn(64, 64, generator=torch.Generator().manual_seed(1))}
    orders = [Order(model=weights, pair=Pair(parent=(n / 8,), child=(n / 9,))) for n in range(8)]
    coded = compression(down="fp16").messages()
    for size, each in ((4, orders), (2, [coded(order) for order in orders])):
        assert size * 64 * 64 < codec_module.encode(Orders(messages=tuple(each))).n_bytes < size * 64 * 64 + 2000


@pytest.mark.parametrize(("fraction", "kept"), [(0.4, 8), (0.45, 9), (0.5, 20)])
def test_a_codec_is_used_for_all_tensors_that_it_makes_smaller_if_only_a_little(fraction: float, kept: int) -> None:
    """An element of top-k takes eight bytes, one of a whole tensor four: at a half, nothing is gained."""
    coder = Compressor(CompressionSpec(up=TopK(fraction=fraction)))
    update, _ = coder.update(Up(delta={"w": torch.arange(1.0, 21.0)}), {})
    assert int(decoded(update).delta["w"].count_nonzero()) == kept
