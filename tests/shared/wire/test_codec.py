"""The codec: round trips, golden bytes, and refused bodies."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from contextlib import suppress
from typing import Annotated, Any, cast

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, ValidationError

from shared.core import parsing
from shared.core.errors import NotFinite, TooLarge, WireError
from shared.core.records import Record
from shared.core.scores import Score
from shared.core.tensor_records import ModelState, Tensor, TensorMap, copy_tensors, same_leaves
from shared.core.update_annotations import Mean
from shared.wire import codec
from shared.wire.json_encoding import DTYPES as NAMED
from shared.wire.json_encoding import MAX_DEPTH

DTYPES = list(NAMED.values())


class Leaf(Record):
    name: str
    number: float
    tensor: Tensor


class Tree(Record):
    flag: bool
    count: int
    ratio: float
    maybe: float | None
    pair: tuple[int, str]
    leaves: tuple[Leaf, ...]
    by_seat: dict[int, float]
    tensors: TensorMap
    free: Any


class Open(Record):
    """As the parameters of a plug-in's partition, which are further fields."""

    model_config = ConfigDict(extra="allow")
    name: str


class Holds(Record):
    held: Open
    tensor: Tensor


def test_further_fields_of_a_record_that_allows_them_travel_and_are_kept() -> None:
    sent = Holds(held=Open.model_validate({"name": "a", "n": 25, "of": ["x", None]}), tensor=torch.ones(2))
    replaced = sent.replace(held=sent.held.replace(name="a"))
    for got in (codec.decode(Holds, codec.encode(sent).join()), copy_tensors(sent), replaced):
        assert got.held == sent.held
        assert same_leaves(got.held, sent.held)
    assert not same_leaves(sent.held, Open(name="a"))


class Sent(Record):
    model: ModelState


class Loose(Record):
    x: Any = None


# ---- round trips

numbers = st.floats(allow_nan=False, allow_infinity=False)
shapes = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    found = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape).sub(1)
    return found.to(dtype).T if draw(st.booleans()) and len(shape) == 2 else found.to(dtype)


leaves = st.builds(Leaf, name=st.text(max_size=5), number=numbers, tensor=tensors())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
trees = st.builds(
    Tree,
    flag=st.booleans(),
    count=st.integers(),
    ratio=numbers,
    maybe=st.none() | numbers,
    pair=st.tuples(st.integers(), st.text(max_size=3)),
    leaves=st.lists(leaves, max_size=3).map(tuple),
    by_seat=st.dictionaries(st.integers(0, 99), numbers, max_size=3),
    tensors=st.dictionaries(st.sampled_from(["w", "b", "layer.0"]), tensors(), max_size=3),
    free=json_values,
)


def assert_same(a: Any, b: Any) -> None:
    """Checks that values, bits and types are equal."""
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)
    elif isinstance(a, Record):
        for name in type(a).model_fields:
            assert_same(getattr(a, name), getattr(b, name))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b
        assert str(a) == str(b)  # -0.0 is not 0.0


@settings(max_examples=30)
@given(trees)
def test_a_record_round_trips_and_encodes_to_the_same_bytes(tree: Tree) -> None:
    body = codec.encode(tree)
    joined = body.join()
    assert len(joined) == body.n_bytes == codec.size(tree)
    assert body.digest() == codec.digest_of(joined)
    back = codec.decode(Tree, joined)
    assert_same(back, tree)
    assert codec.encode(back).join() == joined


def test_golden_bytes() -> None:
    """These bytes are the format: a change breaks every stored state and every running tier."""
    record = Leaf(name="é", number=0.1, tensor=torch.tensor([[1, -2]], dtype=torch.int16))
    header = (
        rb'{"__metadata__":{"format":"strata-1",'
        rb'"record":"{\"name\":\"\\u00e9\",\"number\":0.1,\"tensor\":{\"$t\":0}}"},'
        rb'"0":{"dtype":"I16","shape":[1,2],"data_offsets":[0,4]}}'
    )
    header += b" " * (-len(header) % 8)
    assert bytes(codec.encode(record).join()) == struct.pack("<Q", len(header)) + header + b"\x01\x00\xfe\xff"
    parts = {name: torch.arange(12).reshape(3, 4).to(dtype) for name, dtype in zip("abcdefghij", DTYPES, strict=True)}
    body = bytes(codec.encode(Sent(model=parts)).join())
    assert hashlib.sha256(body).hexdigest() == "a3815165d3f5d33412d0679b3052f5d0380affcf2656cc304982f39b759a8d34"
    assert len(body) == 1228
    found = safetensors.torch.load(body)  # by falling item size: each tensor begins at a multiple of its own
    assert sorted(found) == [str(number) for number in range(10)]
    assert all(torch.equal(tensor, found[str(number)]) for number, tensor in enumerate(parts.values()))


def test_a_tensor_in_several_records_is_sent_once_and_two_views_of_one_memory_are_two_tensors() -> None:
    shared, other = torch.zeros(1000), torch.zeros(1000)
    once, twice = (
        codec.encode(Loose(x=[Leaf(name="a", number=0, tensor=shared), Leaf(name="b", number=0, tensor=second)]))
        for second in (shared, other)
    )
    assert twice.n_bytes - once.n_bytes >= 4000
    back = codec.decode(Loose, once.join()).x
    assert back[0]["tensor"] is back[1]["tensor"]
    matrix = torch.arange(4.0).reshape(2, 2)
    views = codec.decode(Loose, codec.encode(Loose(x=[matrix, matrix.T, matrix[0]])).join()).x
    assert [tensor.tolist() for tensor in views] == [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [0, 1]]


def test_encoding_copies_no_tensor_and_decoding_gives_views_of_the_body() -> None:
    tensor = torch.zeros(4)
    encoded = codec.encode(Loose(x=tensor))
    tensor[2] = 7
    body = encoded.join()
    back = codec.decode(Loose, body).x
    assert back.tolist() == [0, 0, 7, 0]
    body[-4:] = struct.pack("<f", 9)
    assert back.tolist() == [0, 0, 7, 9]


def test_read_only_bodies_and_views_of_bodies_are_read() -> None:
    body = codec.encode(Loose(x=torch.arange(3))).join()
    for each in (bytes(body), memoryview(bytes(body)), memoryview(body)):
        back = codec.decode(Loose, each).x
        back += 1  # of a read-only body it is a view of a copy
        assert back.tolist() == [1, 2, 3]


def test_the_record_can_be_read_as_json_before_its_type_is_known() -> None:
    body = codec.encode(Loose(x={"algorithm": "fedavg", "w": torch.zeros(1)})).join()
    header = codec.read_header(body)
    assert header.record == {"x": {"algorithm": "fedavg", "w": {"$t": 0}}}
    assert codec.decode(Loose, body, header=header).x["w"].tolist() == [0.0]


# ---- values that cannot be sent


@pytest.mark.parametrize(
    ("value", "error"),
    [
        *((value, NotFinite) for value in (math.nan, {"a": [-math.inf]})),
        *((value, WireError) for value in ({1, 2}, b"bytes", {"$t": 0}, {"$other": 0}, {1: "a", "1": "b"})),
        *((value, WireError) for value in (torch.zeros(1, dtype=torch.complex64), ["\ud800"], {"\udc00": 1})),
    ],
    ids=str,
)
def test_values_other_than_json_and_tensors_are_refused_by_the_encoder(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        codec.encode(Loose(x=value))


def test_values_nested_too_deeply_are_refused_by_the_encoder() -> None:
    deepest = cast(Any, 1)
    for _ in range(MAX_DEPTH - 2):
        deepest = [deepest]
    assert codec.decode(Loose, codec.encode(Loose(x=deepest)).join()).x == deepest
    with pytest.raises(WireError, match="deeper than 64"):
        codec.encode(Loose(x=[deepest]))


# ---- hostile and broken bodies


def raw(header: Any, data: bytes = b"") -> bytes:
    """Returns a body with any header, padded so that the tensors are aligned."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def holding(record: str = '{"x":{"$t":0}}', data: bytes = b"", **entries: Any) -> bytes:
    return raw({"__metadata__": {"record": record}, **entries}, data)


def of_four(described: Any, record: str = '{"x":{"$t":0}}') -> bytes:
    """Four bytes, described as the tensor 0."""
    return holding(record, b"1234", **{"0": described})


PAIR = '{"x":[{"$t":0},{"$t":1}]}'
BROKEN = {
    "empty": b"",
    "seven bytes": b"1234567",
    "header longer than the body": struct.pack("<Q", 100) + b"{}",
    "header is not valid JSON": raw(b"{"),
    "header is no UTF-8": raw(b'{"\xff":1}'),
    "header is UTF-16": raw("{}".encode("utf-16")),
    "header is a list": raw([]),
    "no metadata": raw({}),
    "record is no text": raw({"__metadata__": {"record": {}}}),
    "record is not valid JSON": holding("{x"),
    "lone surrogate": holding('{"x":"\ud800"'),
    "half of a surrogate pair": holding('{"x":["\\ud800"]}'),
    "key with half of a surrogate pair": holding('{"x":{"\\udc00":1}}'),
    "NaN": holding('{"x":NaN}'),
    "infinity": holding('{"x":-Infinity}'),
    "number beyond double": holding('{"x":1e999}'),
    "number of 5000 digits": holding('{"x":' + "1" * 5000 + "}"),
    "nested beyond the limit": holding('{"x":' + "[" * 80 + "]" * 80 + "}"),
    "nested beyond the parser": holding('{"x":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "reserved key": of_four(entry(), '{"x":{"$t":0,"y":1}}'),
    "no such tensor": of_four(entry(), '{"x":{"$t":1}}'),
    "negative tensor": of_four(entry(), '{"x":{"$t":-1}}'),
    "tensor number is a bool": of_four(entry(), '{"x":{"$t":false}}'),
    "tensor number is a list": of_four(entry(), '{"x":{"$t":[]}}'),
    "tensor in no field": of_four(entry(), '{"x":1}'),
    "tensor named by a word": holding(data=b"1234", w=entry()),
    "tensor named 00": holding(data=b"1234", **{"00": entry()}),
    "tensor name of 5000 digits": holding(data=b"1234", **{"1" * 5000: entry()}),
    "entry is no object": of_four(3),
    "entry with another key": of_four({**entry(), "more": 1}),
    "unknown dtype": of_four(entry("F4")),
    "dtype is a list": of_four(entry([])),
    "shape is no list": of_four(entry(shape=1)),
    "negative shape": of_four(entry(shape=[-1])),
    "shape of floats": of_four(entry(shape=[1.0])),
    "shape of bools": of_four(entry(shape=[True])),
    "rank 17": of_four(entry(shape=[1] * 17)),
    "shape product overflows": of_four(entry(shape=[2**32, 2**32])),
    "strides of an empty shape overflow": holding(**{"0": entry(shape=[0, 2**52, 2**52], offsets=[0, 0])}),
    "three offsets": of_four(entry(offsets=[0, 2, 4])),
    "offsets backwards": of_four(entry(offsets=[4, 0])),
    "fewer bytes than the shape": holding(data=b"12", **{"0": entry(offsets=[0, 2])}),
    "more bytes than the shape": holding(data=b"12345678", **{"0": entry(offsets=[0, 8])}),
    "bytes beyond the body": holding(data=b"12", **{"0": entry()}),
    "bytes after the last tensor": holding(data=b"12345", **{"0": entry()}),
    "hole": holding(PAIR, b"1" * 12, **{"0": entry(), "1": entry(offsets=[8, 12])}),
    "overlap": holding(PAIR, b"1234", **{"0": entry(), "1": entry(offsets=[0, 4])}),
    "not aligned": holding(PAIR, b"12345", **{"0": entry("U8", offsets=[0, 1]), "1": entry(offsets=[1, 5])}),
    "BOOL that is neither": holding(data=b"\x02", **{"0": entry("BOOL", offsets=[0, 1])}),
    "huge field name": holding('{"' + "y" * 100_000 + '":1}'),
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_an_invalid_body_is_refused_with_a_short_reason(body: bytes) -> None:
    with pytest.raises(WireError) as caught:
        codec.decode(Loose, body)
    assert caught.value.status == 400
    assert len(caught.value.detail) < 1000
    assert codec.decode(Loose, holding(data=struct.pack("<f", 5), **{"0": entry()})).x.tolist() == [5], "one like it"


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_body_with_one_changed_byte_is_read_or_refused_without_a_crash(where: int, byte: int) -> None:
    body = codec.encode(Leaf(name="n", number=1.5, tensor=torch.tensor([1.0, 2.0]))).join()
    body[where % len(body)] = byte
    with suppress(WireError):
        assert isinstance(codec.decode(Leaf, body), Leaf)


def test_a_header_beyond_the_limit_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_HEADER_BYTES", 10)
    monkeypatch.setattr(parsing, "parse", lambda text, what: pytest.fail("the header was parsed"))
    with pytest.raises(TooLarge, match="the limit is 10"):
        codec.decode(Loose, raw({"__metadata__": {"record": "{}"}}))
    with pytest.raises(TooLarge):
        codec.decode(Loose, struct.pack("<Q", 2**60) + b"{}")  # it claims an exabyte


@pytest.mark.parametrize(
    ("limit", "most", "record"),
    [
        ("shared.core.parsing.MAX_ITEMS", 20, Loose(x=[[]] * 30)),
        ("shared.wire.codec.MAX_TENSORS", 2, Loose(x=[torch.zeros(1) for _ in range(3)])),
        ("shared.wire.codec.MAX_HEADER_BYTES", 50, Loose(x="x" * 50)),
    ],
)
def test_oversized_bodies_are_refused(monkeypatch: pytest.MonkeyPatch, limit: str, most: int, record: Loose) -> None:
    body = codec.encode(record).join()
    monkeypatch.setattr(limit, most)
    with pytest.raises(TooLarge, match=f"the limit is {most}"):
        codec.decode(Loose, body)
    with pytest.raises(TooLarge, match=f"the limit is {most}"):
        codec.encode(record)


# ---- bodies that contradict the type or the model


def test_a_list_reports_only_its_first_wrong_item() -> None:
    """An error takes a thousand times the memory of the wrong item."""
    with pytest.raises(ValidationError) as caught:
        Tree.model_validate({"leaves": [1] * 1000, "by_seat": {f"a{index}": 1 for index in range(1000)}})
    assert caught.value.error_count() < 20
    with pytest.raises(WireError, match="Loose: 2000 faults"):
        codec.decode(Loose, holding(json.dumps({f"a{index}": 1 for index in range(2000)})))


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ('{"name":"a","tensor":{"$t":0}}', "number"),  # missing
        ('{"name":"a","number":1,"tensor":{"$t":0},"more":1}', "more"),
        ('{"name":3,"number":1,"tensor":{"$t":0}}', "name"),
        ('{"name":"a","number":"much","tensor":{"$t":0}}', "number"),
        ('{"name":{"$t":0},"number":1,"tensor":1}', "name"),
    ],
)
def test_a_record_of_another_type_is_refused_with_the_fields_path(record: str, field: str) -> None:
    with pytest.raises(WireError) as caught:
        codec.decode(Leaf, holding(record, b"1234", **{"0": entry()}))
    assert caught.value.field == field
    assert caught.value.detail.startswith(f"Leaf: {field}: ")


def test_a_metric_that_is_nan_is_refused_at_both_ends() -> None:
    with pytest.raises(WireError, match="not a finite number"):
        codec.decode(Score, holding('{"n":1,"n_correct":1,"loss_sum":NaN}'))
    with pytest.raises(ValueError, match="finite"):
        Score(n=1, n_correct=1, loss_sum=math.nan)
    with pytest.raises(NotFinite):
        codec.encode(Score.model_construct(n=1, n_correct=1, loss_sum=math.nan))


class Grouped(Record):
    delta: Annotated[dict[str, ModelState], Mean(by_group=True)] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"w": torch.zeros(3)}, r"'w' is torch.float32 \(3,\), the model's is torch.float32 \(2,\)"),
        ({"w": torch.zeros(2, dtype=torch.float64)}, "'w' is torch.float64"),
        ({"v": torch.zeros(2)}, "the run's model has no tensor 'v'"),
    ],
)
def test_tensors_that_the_model_does_not_have_are_refused(sent: TensorMap, message: str) -> None:
    model = {"w": torch.ones(2), "b": torch.ones(1)}
    body = codec.encode(Sent(model=sent)).join()
    codec.decode(Sent, body)  # unknown model: nothing to compare with
    part = codec.encode(Sent(model={"b": torch.zeros(1)})).join()
    assert codec.decode(Sent, part, model=model).model["b"].tolist() == [0], "a part of the model may be sent"
    with pytest.raises(WireError, match=message) as caught:
        codec.decode(Sent, body, model=model)
    assert caught.value.field == "model"
    with pytest.raises(WireError, match=message):
        codec.decode(Grouped, codec.encode(Grouped(delta={"g": sent})).join(), model=model)


# ---- sizes


def test_equal_empty_tensors_are_sent_once() -> None:
    """They have no memory that identifies them, and sizes must not depend on which objects are alive."""
    alike = codec.encode(Loose(x=[torch.empty(0), torch.empty(0), torch.empty(0, 2), torch.empty(0).half()]))
    assert codec.read_header(alike.join()).record == {"x": [{"$t": 0}, {"$t": 0}, {"$t": 1}, {"$t": 2}]}
    keeping = [torch.empty(0) for _ in range(3)]
    sizes = {codec.size(Loose(x=[torch.ones(4)[torch.zeros(4) != 0] for _ in range(3)])) for _ in range(20)}
    assert sizes == {codec.size(Loose(x=keeping))}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_and_float_round_trips_bit_by_bit(dtype: torch.dtype) -> None:
    sent = [torch.ones(shape, dtype=dtype) for shape in ((), (0,), (0, 3), (2, 3))]
    numbers = [0.1, 1e-320, -0.0, 1.7976931348623157e308, 2.0**-1074]
    assert_same(codec.decode(Loose, codec.encode(Loose(x=[*sent, *numbers])).join()).x, [*sent, *numbers])
