"""The limit on the number of elements that the bytes of a body may represent, and its errors."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field

from shared.core.errors import TooLarge, WireError
from shared.core.records import Record
from shared.core.tensor_records import ModelState, Tensor, TensorMap, copy_tensors
from shared.core.update_annotations import MaskOf, Mean, PerClient
from shared.wire import codec
from shared.wire.compression import Coded, Fp16, TopK
from shared.wire.json_decoding import MODELS_A_SEAT
from tests.shared.wire.test_codec import entry, holding, raw

N = 64
MODEL = {"w": torch.zeros(N, N)}


class Loose(Record):
    x: Any = None


class Masked(Record):
    delta: Annotated[ModelState, Mean(per_position="mask")]
    mask: Annotated[ModelState, MaskOf()]


class Several(Record):
    """Several updates, as an agent sends those of its seats."""

    updates: tuple[Masked, ...]


class PerClientRecord(Record):
    each: Annotated[dict[str, TensorMap], PerClient()] = Field(default_factory=dict)


def one_of(seat: int) -> Masked:
    """Returns a seat's update with its own positions."""
    mask = torch.zeros(N, N)
    mask[seat::3, ::2] = 1
    return Masked(delta={"w": mask * (seat + 1)}, mask={"w": mask})


def body_with(record: str) -> bytes:
    """Returns a body with one byte of places and one value."""
    tensors = {"0": entry("F32", [1], [0, 4]), "1": entry("U8", [1], [4, 5])}
    return holding(record, bytes(4) + b"\0", **tensors)


def with_record(body: bytearray, record: Any) -> bytes:
    """Returns the body's tensors with another record."""
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    return raw({**header, "__metadata__": {"record": json.dumps(record)}}, bytes(body[8 + length :]))


def test_a_tensor_described_twice_is_decoded_once() -> None:
    """A reference has a few bytes; the tensor that it describes takes memory once, however often it occurs."""
    mask = torch.zeros(N, N)
    mask[0] = 1
    update = Masked(delta={"w": mask}, mask={"w": mask})
    body = codec.encode(Loose(x=[update, TopK(fraction=0.01).encode(torch.ones(N, N))])).join()
    reference = codec.read_header(body).record["x"]
    first, coded, second, again = codec.decode(Loose, with_record(body, {"x": reference + reference}), model=MODEL).x
    assert second["delta"]["w"] is first["delta"]["w"]
    assert second["mask"]["w"] is first["mask"]["w"]
    assert again is coded
    assert torch.equal(first["delta"]["w"], mask)


DOT = torch.eye(1, N * N).view(N, N)
COPIED: dict[str, Any] = {
    "masks": Masked(delta={"w": DOT}, mask={"w": DOT}),
    "coded tensors": PerClientRecord(each={"device-0": {"w": Coded(TopK, (N, N), TopK().encode(torch.ones(3)).parts)}}),
}


@pytest.mark.parametrize("kind", COPIED)
def test_each_reference_is_counted(kind: str) -> None:
    """The reader of a record may copy each occurrence."""
    most = MODELS_A_SEAT // (1 if kind == "coded tensors" else 2)
    allowed, beyond = ([COPIED[kind]] * n for n in (most, most + 1))
    assert len(codec.decode(Loose, codec.encode(Loose(x=allowed)).join(), model=MODEL).x) == most
    body = codec.encode(Loose(x=beyond)).join()
    assert len(body) < 2000
    limit = MODELS_A_SEAT * N * N
    with pytest.raises(TooLarge, match=rf"x\.{most}\..* elements .*, the limit is {limit}") as refused:
        codec.decode(Loose, body, model=MODEL)
    assert (refused.value.field or "").startswith(f"x.{most}.")


def test_the_allowance_is_proportional_to_the_seats_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that can be read alone can be read beside others."""
    monkeypatch.setattr("shared.wire.json_decoding.MODELS_A_SEAT", 2)
    alone, together = [Several(updates=tuple(one_of(seat) for seat in range(n))) for n in (1, 12)]
    assert codec.decode(Several, codec.encode(alone).join(), model=MODEL, n_seats=1).updates[0].mask["w"].sum() > 0
    body = codec.encode(together).join()
    back = codec.decode(Several, body, model=MODEL, n_seats=12)
    assert [item.delta["w"].max().item() for item in back.updates] == [seat + 1 for seat in range(12)]
    with pytest.raises(TooLarge, match=r"updates\.11\.delta\.w"):
        codec.decode(Several, body, model=MODEL, n_seats=11)


@pytest.mark.parametrize("shape", ["[0,268435456]", "[0,4503599627370496]", "[64,64]"])
@pytest.mark.parametrize("reference", ['{"$k":[0,1,SHAPE]}', '{"$m":[1,SHAPE]}', '{"$c":["topk",[0,1],SHAPE]}'])
def test_without_a_model_tensors_must_be_complete(reference: str, shape: str) -> None:
    body = body_with('{"x":[{"$t":0},{"a":' + reference.replace("SHAPE", shape) + "}]}")
    with pytest.raises(WireError, match=r"x\.1\.a: here a tensor travels whole") as refused:
        codec.decode(Loose, body)
    assert refused.value.field == "x.1.a"


@pytest.mark.parametrize(
    ("record", "reference"),
    [
        ('{"x":{"a":[0,{"$t":7}]}}', "x.a.1: the record names a tensor that is not among the body's 2"),
        ('{"x":{"a":[0,{"$k":[0,1]}]}}', "x.a.1: a tensor of which some positions travel has values"),
        ('{"x":{"a":[0,{"$m":[1,[4503599627370496,4503599627370496]]}]}}', "x.a.1: a mask has places and a shape"),
        ('{"x":{"a":[0,{"$m":[1,[64,65]]}]}}', r"x.a.1: the run's model has no tensor of shape \(64, 65\)"),
        ('{"x":{"a":[0,{"$m":[1,[64,64]]}]}}', r"x.a.1: 1 bytes do not say where a tensor of \(64, 64\) has values"),
        ('{"x":{"a":[0,{"$m":[0,[64,64]]}]}}', r"x.a.1: places are bytes, not torch.float32 \(1,\)"),
        ('{"x":{"a":[0,{"$c":["zip",[0],[64,64]]}]}}', "x.a.1: there is no codec 'zip'"),
        ('{"x":{"a":[0,{"$x":0}]}}', "x.a.1: a key of a record may not begin with"),
    ],
)
def test_errors_name_the_field(record: str, reference: str) -> None:
    with pytest.raises(WireError, match=reference) as refused:
        codec.decode(Loose, body_with(record), model=MODEL)
    assert refused.value.field == "x.a.1"


@pytest.mark.parametrize("copied", [False, True])
def test_copied_tensors_are_no_views_of_the_body_and_compressed_ones_are_decoded(copied: bool) -> None:
    whole, coded = torch.arange(4096.0).reshape(64, 64), Fp16().encode(torch.ones(64, 64))
    body = codec.encode(Loose(x=[whole, {"a": whole}, coded])).join()
    back = codec.decode(Loose, body, model=MODEL, copied=copied).x
    assert back[0] is back[1]["a"]
    assert isinstance(back[2], Coded) != copied
    assert torch.equal(back[2], torch.ones(64, 64))
    body[-whole.nbytes :] = bytes(whole.nbytes)
    assert torch.equal(back[0], whole) == copied


def test_a_tensor_referenced_several_times_is_copied_once_and_own_files_are_read_without_a_model() -> None:
    """Otherwise a few bytes that refer to a tensor again would take its memory again."""
    tensor: Tensor = torch.arange(3.0)
    mine = copy_tensors(Loose(x=[tensor, {"a": tensor}, torch.arange(3.0)])).x
    assert mine[0] is mine[1]["a"]
    assert mine[2] is not mine[0]
    tensor += 1
    assert mine[0].tolist() == [0, 1, 2]
    update = one_of(1)
    stored = codec.decode(Masked, codec.encode(update).join(), stored=True)
    assert torch.equal(stored.delta["w"], update.delta["w"])
