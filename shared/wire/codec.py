"""The codec: record <-> safetensors bytes with the record as JSON in the header.

A body is a plain safetensors file: 8 bytes with the header's length (little-endian), the JSON header, the tensors
without holes. The header's `__metadata__.record` is the record as JSON, with references in place of tensors:

    {"$t": i}                          the i-th tensor of the body
    {"$k": [i, j, shape]}              the values i at the places j, 0 elsewhere (`shared/wire/sparse.py`)
    {"$m": [j, shape]}                 the mask that is 1 at the places j
    {"$c": [codec, [i, ...], shape]}   a compressed tensor and its parts (`shared/wire/compression`)

A tensor that occurs several times is encoded once. Floats survive exactly.

`encode` returns views of the tensors, `decode` views of the body: nothing large is copied. torch's kernels may treat
the addresses of views differently, so sums are made from views, but training and evaluation use copies.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import ValidationError

from shared.core.errors import NotFinite, WireError
from shared.core.field_errors import first_fault, told
from shared.core.parsing import check_items, parse, within
from shared.core.records import Record
from shared.core.tensor_records import Tensor
from shared.core.tensors import bytes_of
from shared.wire.json_decoding import ModelAllowance, from_json, is_counts, is_shape, only_whole, unlimited
from shared.wire.json_encoding import DTYPES, MAX_DEPTH, NAMES, SizeIndex, TensorIndex, kept_by, to_json


@dataclass(frozen=True)
class Body:
    """An encoded record: buffers that are sent one after another and never joined."""

    parts: tuple[bytes | memoryview, ...]
    n_bytes: int

    def digest(self) -> str:
        """Returns the sha256 of the bytes."""
        sha = hashlib.sha256()
        for part in self.parts:
            sha.update(part)
        return sha.hexdigest()

    def checksum(self) -> str:
        """Returns the CRC-32 of the bytes, which detects damage at a quarter of the digest's cost."""
        crc = 0
        for part in self.parts:
            crc = zlib.crc32(part, crc)
        return f"{crc:08x}"

    def join(self) -> bytearray:
        """Returns the bytes as one buffer, a copy."""
        return bytearray().join(self.parts)


def digest_of(body: bytearray | memoryview | bytes) -> str:
    """Returns the sha256 of a body in one buffer."""
    return hashlib.sha256(body).hexdigest()


R = TypeVar("R", bound=Record)

MAX_HEADER_BYTES = 64 * 2**20
"""Longest JSON header."""
MAX_TENSORS = 2**18
"""Most tensors of a body."""
MAX_ERRORS = 1000
"""With more validation errors, only their number is reported: pydantic builds all of them before the first is read."""


# ---- encode


def encode(record: Record) -> Body:
    """Returns a record's bytes; the same record gives the same bytes.

    Raises:
        NotFinite: a JSON number is NaN or infinite.
        WireError: a leaf is neither JSON nor a tensor, a key begins with `$`, or the record is nested too deeply.
        TooLarge: it exceeds the limits of `decode`.
    """
    text, tensors = _to_text(record, TensorIndex())
    head, end = _head(text, tensors)
    return Body((head, *(bytes_of(tensor) for _, tensor in _aligned(tensors))), len(head) + end)


def size(record: Record) -> int:
    """Returns the bytes that the encoded record would have; of all elements it reads those of masks only."""
    return measured(record).n_bytes


class Size(NamedTuple):
    """The parts of a body's size.

    Attributes:
        text: characters of the header before it is filled up to a multiple of eight.
        tensors: bytes of the tensors.
    """

    text: int
    tensors: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the body."""
        return 8 + self.text + -self.text % 8 + self.tensors


def measured(record: Record) -> Size:
    """Returns the size of a record's body in its parts."""
    text, end = _header_text(*_to_text(record, SizeIndex()))
    return Size(len(text), end)


def size_without(head: bytes | memoryview, n_bytes: int, n_characters: int) -> int:
    """Returns the size that a body would have whose header held so many characters fewer.

    Args:
        head: the body up to its tensors.
        n_bytes: its size.
        n_characters: of the header.
    """
    text = len(bytes(head).rstrip(b" ")) - 8
    return Size(text - n_characters, n_bytes - len(head)).n_bytes


def leaves_out_values(kind: type[Record]) -> bool:
    """Whether of some fields of a record only those values travel that a mask keeps."""
    return bool(kept_by(kind))


def inner_text(record: Record) -> int | None:
    """Returns how many characters a record adds to the header of a body that holds it; None if it has tensors."""
    text, tensors = _to_text(record, SizeIndex())
    return None if tensors else len(_compact(text)) - len('""')


def _to_text(record: Record, index: TensorIndex) -> tuple[str, list[Tensor]]:
    """Returns a record as JSON text, and its tensors."""
    value = to_json(record, index, MAX_DEPTH)
    try:
        return _compact(value), index.tensors
    except ValueError as error:
        raise NotFinite(f"{type(record).__name__}: {error}") from None
    except TypeError as error:
        raise WireError(f"{type(record).__name__}: {error}") from None


_compact = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _aligned(tensors: list[Tensor]) -> list[tuple[int, Tensor]]:
    """Returns (number, tensor) by falling item size, so that each tensor begins at a multiple of its own."""
    return sorted(enumerate(tensors), key=lambda item: -item[1].element_size())


def _head(text_of_record: str, tensors: list[Tensor]) -> tuple[bytes, int]:
    """Returns the bytes before the tensors, and the number of bytes of all tensors."""
    text, end = _header_text(text_of_record, tensors)
    text += " " * (-len(text) % 8)  # a character is a byte: the text is ASCII
    return struct.pack("<Q", len(text)) + text.encode(), end


def _header_text(text_of_record: str, tensors: list[Tensor]) -> tuple[str, int]:
    """Returns the header before it is filled up, and the number of bytes of all tensors."""
    entries, end = _entries(tuple((index, NAMES[t.dtype], tuple(t.shape), t.nbytes) for index, t in _aligned(tensors)))
    text = f'{{"__metadata__":{{"format":"strata-1","record":{_compact(text_of_record)}}}{entries}}}'
    within(len(tensors), MAX_TENSORS, "tensors")
    within(len(text), MAX_HEADER_BYTES, "bytes of header")
    check_items(text)
    return text, end


@lru_cache(maxsize=64)
def _entries(tensors: tuple[tuple[int, str, tuple[int, ...], int], ...]) -> tuple[str, int]:
    """Returns the header's entries of tensors, and the end of the last; cached: all seats send the same shapes."""
    text, end = "", 0
    for index, dtype, shape, n_bytes in tensors:
        begin, end = end, end + n_bytes
        text += f',"{index}":' + _compact({"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]})
    return text, end


# ---- decode


def decode(
    kind: type[R],
    body: bytearray | memoryview | bytes,
    *,
    header: Header | None = None,
    model: Mapping[str, Tensor] | None = None,
    n_seats: int = 1,
    stored: bool = False,
    copied: bool = False,
) -> R:
    """Returns the record in a body; its tensors are views of the body (of a copy, if that is read-only).

    Args:
        kind: the record's type; a parametrised generic where a field's type depends on the algorithm.
        body: the whole body.
        header: the body's header, if the caller has read it already.
        model: the run's model, against which `ModelState` fields are checked. Without it every tensor must travel
            whole; with it, sparse and compressed tensors of its shapes are accepted.
        n_seats: the number of seats of which the body may hold messages or updates; the limit on the elements of
            sparse and compressed tensors is proportional to it.
        stored: this process wrote the body itself, so that these limits do not apply.
        copied: the tensors are in torch's own memory, compressed ones decoded. Training on views of a body would give
            other bits (torch's kernels depend on alignment), and they keep the whole body in memory.

    Raises:
        WireError: names the fault and the path of the field.
    """
    header = header or read_header(body)
    view = memoryview(body).cast("B")
    tensors = _views(header, memoryview(bytearray(view)) if view.readonly else view)
    allowance = unlimited if stored else only_whole if model is None else ModelAllowance(model, n_seats)
    try:
        found = from_json(header.record, tensors, allowance, copied=copied)
        return kind.model_validate(found, context={"model": model})
    except ValidationError as error:
        raise misfit(kind, error) from None


def misfit(kind: type[Record], error: ValidationError) -> WireError:
    """Returns the first error of a validation as a `WireError` with the path of the field."""
    if error.error_count() > MAX_ERRORS:
        return WireError(f"{kind.__name__}: {error.error_count()} faults")
    return WireError(f"{kind.__name__}: {told(error)}", field=first_fault(error)[0] or None)


class Header(NamedTuple):
    """The parsed header of a body, which can be read before the record's type is known.

    Attributes:
        record: the record as JSON values; a tensor is `{"$t": i}`.
        entries: dtype, shape and offsets of each tensor by its number, not yet validated.
        end: the byte of the body at which the header ends and the tensors begin.
    """

    record: Any
    entries: dict[str, Any]
    end: int


def read_header(body: bytearray | memoryview | bytes) -> Header:
    """Parses the header of a body; `decode` takes it, so that nothing is parsed twice.

    Raises:
        WireError: the body has no header, or the header holds no record.
    """
    n_bytes = len(body)
    if n_bytes < 8:
        raise WireError(f"a body of {n_bytes} bytes is not a valid record")
    (length,) = struct.unpack("<Q", bytes(body[:8]))
    within(length, MAX_HEADER_BYTES, "bytes of header")
    if 8 + length > n_bytes:
        raise WireError(f"the header claims {length} bytes in a body of {n_bytes}")
    header = parse(bytes(body[8 : 8 + length]), "header")
    if not isinstance(header, dict):
        raise WireError("the header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("record"), str):
        raise WireError("the header holds no record")
    return Header(parse(metadata["record"], "record"), header, 8 + length)


def _views(header: Header, view: memoryview) -> list[Tensor]:
    _, entries, begin = header
    within(len(entries), MAX_TENSORS, "tensors")
    names = {str(index): index for index in range(len(entries))}
    parsed: dict[int, _Entry] = {}
    for name, entry in entries.items():
        if name not in names:
            raise WireError(f"a tensor is named {name[:40]!r}")
        parsed[names[name]] = _entry(name, entry, begin)
    end = 0
    for first, last in sorted((entry.first, entry.last) for entry in parsed.values()):
        if first != end:
            raise WireError(f"tensors overlap or leave a hole at byte {end}")
        end = last
    if begin + end != len(view):
        raise WireError(f"the tensors end at byte {begin + end} of {len(view)}")
    return [_view(view, begin, parsed[index]) for index in range(len(parsed))]


class _Entry(NamedTuple):
    """A tensor in the header: its first and last byte, counted from the header's end, its dtype and shape."""

    first: int
    last: int
    dtype: torch.dtype
    shape: list[int]


def _entry(name: str, entry: Any, begin: int) -> _Entry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WireError(f"tensor {name}: not {{dtype, shape, data_offsets}}")
    text, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = DTYPES.get(text) if isinstance(text, str) else None
    if dtype is None:
        raise WireError(f"tensor {name}: unknown dtype")
    if not is_shape(shape) or not is_counts(offsets) or len(offsets) != 2:
        raise WireError(f"tensor {name}: shape and offsets are lists of counts, of a possible tensor")
    first, last = offsets
    if last - first != math.prod(shape) * dtype.itemsize:
        raise WireError(f"tensor {name}: {last - first} bytes do not hold {text} {shape}")
    if (begin + first) % dtype.itemsize:
        raise WireError(f"tensor {name}: {text} at byte {begin + first} is not aligned")
    return _Entry(first, last, dtype, shape)


def _view(view: memoryview, begin: int, entry: _Entry) -> Tensor:
    if entry.first == entry.last:
        return torch.empty(entry.shape, dtype=entry.dtype)
    count = (entry.last - entry.first) // entry.dtype.itemsize
    flat = torch.frombuffer(view, dtype=entry.dtype, count=count, offset=begin + entry.first)
    if entry.dtype == torch.bool and flat.view(torch.uint8).max() > 1:
        raise WireError("a BOOL tensor holds other bytes than 0 and 1")
    return flat.reshape(entry.shape)
