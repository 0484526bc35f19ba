"""Each codec against plain numpy, its bound on the error, its bytes, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.core.errors import NotFinite, OutOfBound, StrataError, WireError
from shared.core.records import Record
from shared.core.tensor_records import ModelState, Tensor, copy_tensors
from shared.wire import codec as codec_module
from shared.wire.compression import Codec, Coded, Fp16, Int8, Ternary, TopK, decoded, ternary_of
from tests.shared.wire.test_codec import raw

Array = npt.NDArray[Any]
FRACTION = 0.1


class Sent(Record):
    """A body that holds a model."""

    model: ModelState


CODECS: dict[str, Codec] = {"fp16": Fp16(), "int8": Int8(), "ternary": Ternary(), "topk": TopK(fraction=FRACTION)}
ALL = pytest.mark.parametrize("name", list(CODECS))


# ---- oracles: the formulas in numpy


def plain_fp16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


def plain_int8(x: Array) -> Array:
    step = np.float32(np.abs(x).max() / np.float64(127)) if x.size else np.float32(0)
    return np.float32(step) * np.rint(x / step) if step else np.zeros_like(x)


def plain_ternary(x: Array) -> Array:
    size = np.abs(x).astype(np.float64)
    kept = size > 0.7 * size.mean() if x.size else size > 0
    w = np.float32(size[kept].mean()) if kept.any() else np.float32(0)
    return (np.sign(x) * kept * w).astype(np.float32)


def plain_topk(x: Array) -> Array:
    flat = x.reshape(-1)
    order = sorted(range(flat.size), key=lambda i: (-abs(flat[i]), i))[: math.ceil(FRACTION * flat.size)]
    found = np.zeros_like(flat)
    found[order] = flat[order]
    return found.reshape(x.shape)


PLAIN = {"fp16": plain_fp16, "int8": plain_int8, "ternary": plain_ternary, "topk": plain_topk}


def samples() -> list[Tensor]:
    draws = torch.Generator().manual_seed(1)
    found = [torch.randn(shape, generator=draws) for shape in [(7,), (5, 6), (3, 2, 3, 3), (1,), (), (0,), (4, 0)]]
    many = torch.randn(1000, generator=draws)
    tied = torch.tensor([1.0, -2.0, 2.0, -2.0, 0.5, 2.0, 0.0, 1.0, -1.0, 2.0, 1.0])
    return [*found, many, many * 1e-9, many * 100, torch.zeros(9), tied, torch.randn(6, 5, generator=draws).t()]


@ALL
def test_a_codec_is_the_formula_in_numpy(name: str) -> None:
    for x in samples():
        found = CODECS[name].encode(x).decoded()
        assert name == "int8" or torch.equal(CODECS[name].encode(found).decoded(), found), "once is enough"
        assert found.shape == x.shape
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), PLAIN[name](x.numpy()), rtol=1e-6, atol=1e-45)


def test_values_by_hand() -> None:
    x = torch.tensor([1.0, -3.0, 0.25, 2.0])  # mean magnitude 1.5625, threshold 1.09375
    assert Ternary().encode(x).decoded().tolist() == [0.0, -2.5, 0.0, 2.5]
    assert Ternary().encode(x).parts[0].tolist() == [0b01_00_10_00]
    assert TopK(fraction=0.5).encode(x).decoded().tolist() == [0.0, -3.0, 0.0, 2.0]
    assert Int8().encode(torch.tensor([127.0, -1.4, 63.5])).decoded().tolist() == [127.0, -1.0, 64.0]
    assert Fp16().encode(torch.tensor([1 + 2**-12, 65_504.0])).decoded().tolist() == [1.0, 65_504]
    thrifty = TopK(fraction=0.28).encode(torch.arange(1.0, 26.0))  # in floating point, 0.28 * 25 is more than 7
    assert torch.count_nonzero(thrifty.decoded()) == 7
    made = ternary_of(torch.tensor([[1, -1], [0, 1]]), torch.tensor(0.5), (2, 2))
    assert made.decoded().tolist() == [[0.5, -0.5], [0.0, 0.5]]


@pytest.mark.parametrize(("name", "n_bytes"), [("fp16", 2000), ("int8", 1004), ("ternary", 254), ("topk", 800)])
def test_a_thousand_elements_have_the_expected_size(name: str, n_bytes: int) -> None:
    model = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(2))}
    coded = CODECS[name].encode(model["w"])
    assert coded.carried_bytes == n_bytes
    body = codec_module.encode(Sent(model={"w": coded}))
    assert body.n_bytes == codec_module.size(Sent(model={"w": coded}))
    assert n_bytes < body.n_bytes < n_bytes + 400
    back = codec_module.decode(Sent, body.join(), model=model)
    assert torch.equal(back.model["w"].detach(), coded.decoded())
    assert codec_module.size(back) == body.n_bytes  # it still is in its short form


@ALL
def test_tensors_that_a_codec_cannot_encode_are_refused_by_name(name: str) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(NotFinite, match="delta w holds NaN or infinity"):
            CODECS[name].encode(torch.tensor([1.0, bad]), "delta w")
    for dtype in (torch.int64, torch.float64, torch.bool):
        with pytest.raises(WireError, match=f"delta w is torch.*: {name} carries float32"):
            CODECS[name].encode(torch.ones(3, dtype=dtype), "delta w")


def test_operations_use_decoded_values_and_write_none() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    coded = Ternary().encode(x)
    assert type(coded + 1) is Tensor
    assert torch.equal(coded @ x.t(), coded.decoded() @ x.t())
    assert torch.equal(torch.zeros(4, 3).add_(coded, alpha=2), 2 * coded.decoded())
    assert repr(coded) == "Coded('ternary', (4, 3))"
    with pytest.raises(TypeError, match="would write to a coded tensor"):
        coded.add_(1)


# ---- bodies that came from elsewhere


def body_of(codec: str, *parts: Tensor, shape: tuple[int, ...] = (5,)) -> bytes:
    return bytes(codec_module.encode(Sent(model={"w": Coded(type(CODECS[codec]), shape, parts)})).join())


HALF, SCALE = torch.ones(5, dtype=torch.float16), torch.tensor(1.0)
STEPS, DIGITS = torch.ones(5, dtype=torch.int8), torch.tensor([0b01, 0b10], dtype=torch.uint8)
WHERE, VALUES = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("message", "codec", "parts"),
    [
        ("2 parts, it needs 1", "fp16", (HALF, SCALE)),
        (r"part 0 is torch.float16 \(4,\), not torch.float16 \(5,\)", "fp16", (HALF[:4],)),
        ("NaN or infinity", "fp16", (HALF * math.inf,)),
        ("part 0 is torch.float16", "int8", (HALF, SCALE)),
        ("steps beyond 127", "int8", (STEPS * -128, SCALE)),
        ("the scale is nan", "int8", (STEPS, SCALE * math.nan)),
        ("the scale is 3.00", "int8", (STEPS, SCALE * 3e38)),
        ("the scale is nan", "ternary", (DIGITS * 0, SCALE * math.nan)),
        ("the scale is -1", "ternary", (DIGITS, -SCALE)),
        ("an invalid ternary digit", "ternary", (DIGITS | 0b11, SCALE)),
        ("beyond its 5 elements", "ternary", (DIGITS | 0b100, SCALE)),
        (r"part 0 is torch.uint8 \(1,\)", "ternary", (DIGITS[:1], SCALE)),
        (r"part 1 is torch.float32 \(1,\), not torch.float32 \(\)", "ternary", (DIGITS, SCALE[None])),
        ("do not ascend", "topk", (WHERE.flip(0), VALUES)),
        ("do not ascend", "topk", (WHERE * 0, VALUES)),
        ("do not ascend", "topk", (WHERE + 2, VALUES)),
        ("do not ascend", "topk", (WHERE - 1, VALUES)),
        (r"part 1 is torch.float32 \(1,\)", "topk", (WHERE, VALUES[:1])),
        ("NaN or infinity", "topk", (WHERE, VALUES * math.nan)),
        ("0 parts", "topk", ()),
    ],
)
def test_garbled_parts_are_refused(message: str, codec: str, parts: tuple[Tensor, ...]) -> None:
    """They are refused at their first use, and not the tensors beside them in the body."""
    found = codec_module.decode(Sent, body_of(codec, *parts), model={"w": torch.zeros(5)}).model["w"]
    for use in (decoded, copy_tensors, lambda tensor: tensor + 1, lambda tensor: torch.zeros(5).add_(tensor)):
        with pytest.raises(WireError, match=f"model.w: a tensor coded by {codec}: .*{message}") as refused:
            use(found)
        assert refused.value.field == "model.w"


def test_an_unknown_codec_is_refused_and_parts_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    body, model = body_of("fp16", HALF), {"w": torch.zeros(5)}
    with pytest.raises(WireError, match=r"model\.w: there is no codec 'fp61'") as refused:
        codec_module.decode(Sent, body.replace(b"fp16", b"fp61"), model=model)
    assert refused.value.field == "model.w"
    found = codec_module.decode(Sent, body, model=model).model["w"]
    assert decoded(found).tolist() == [1.0] * 5
    monkeypatch.setattr(Fp16, "check", lambda parts, n: pytest.fail("they were looked at again"))
    assert decoded(found).tolist() == [1.0] * 5


def test_tensors_that_could_not_be_decoded_are_not_coded() -> None:
    """127 times the float32 nearest to a 127th of the largest number is infinite; it is refused when encoding."""
    most = torch.tensor([torch.finfo(torch.float32).max, 1.0])
    with pytest.raises(OutOfBound, match=r"delta w holds 3.40282e\+38, which is not a finite number of int8's steps"):
        Int8().encode(most, "delta w")
    with pytest.raises(OutOfBound, match="w holds 70000, fp16 carries up to 65504"):
        Fp16().encode(torch.tensor([7e4]), "w")
    for bad in (math.nan, math.inf):
        with pytest.raises(NotFinite, match=f"delta w has the magnitude {bad}"):
            ternary_of(torch.zeros(4), torch.tensor(bad), (4,), "delta w")


def test_a_coded_tensor_has_a_shape_of_the_runs_model() -> None:
    """A few bytes of top-k may claim any number of elements; no memory is allocated for them."""
    huge = body_of("topk", WHERE, VALUES, shape=(2**50,))
    for model, message in (({"w": torch.zeros(5)}, "the run's model has no tensor of shape"), (None, "travels whole")):
        with pytest.raises(WireError, match=message):
            codec_module.decode(Sent, huge, model=model)
    with pytest.raises(WireError, match=r"'w' is torch\.float32"):  # another tensor's shape
        codec_module.decode(Sent, body_of("fp16", HALF), model={"w": torch.zeros(4), "b": torch.zeros(5)})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("[0],[5]", new) for new in ('[0],"5"', "0,[5]", "[1],[5]", '[{\\"$t\\":0}],[5]')),
        ('\\"fp16\\"', '[\\"fp16\\"]'),
        (",[5]]", "]"),
    ],
)
def test_a_malformed_skeleton_is_refused(old: str, new: str) -> None:
    body = body_of("fp16", HALF)
    length = int.from_bytes(body[:8], "little")
    head = body[8 : 8 + length].decode()
    assert old in head
    changed = raw(head.replace(old, new).rstrip().encode(), body[8 + length :])
    with pytest.raises(StrataError):
        codec_module.decode(Sent, changed, model={"w": torch.zeros(5)})


def test_errors_are_bounded() -> None:
    for x in (sample for sample in samples() if sample.numel()):
        size, n = x.abs(), x.numel()
        assert ((x - Fp16().encode(x)).abs() <= torch.maximum(size * 2**-11, torch.tensor(2.0**-25))).all()
        assert ((x - Int8().encode(x)).abs() <= size.max() / 254 * (1 + 1e-5)).all()
        left, whole = (x - CODECS["topk"].encode(x)).double().square().sum(), x.double().square().sum()
        assert left <= (1 - math.ceil(FRACTION * n) / n) * whole + 1e-12
        coded = Ternary().encode(x).decoded()
        assert ((coded == 0) | (coded.sign() == x.sign())).all()
        near = (x - coded).double().square().sum()
        for other in (0.97, 1.03):  # of all magnitudes the one chosen is the best
            assert near <= (x - other * coded).double().square().sum() + 1e-12
