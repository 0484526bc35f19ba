"""The one codec: record <-> safetensors bytes with a JSON skeleton in the header.

A body is a plain safetensors file: 8 bytes little-endian header length, the JSON header, the tensors without
holes. The header's `__metadata__.record` holds the record as JSON in which a tensor is `{"$t": i}`, the i-th
tensor of the body; a tensor that stands in several places is encoded once. Floats survive exactly. Of a field that is
averaged per position only what its mask keeps travels: `{"$k": [i, j, shape]}` has the values i at the places j, and
`{"$m": [j, shape]}` is the mask (`shared/wire/sparse.py`). A tensor in its short form (`shared/wire/compression`) is
`{"$c": [name of the codec, [i, ...], shape]}`.

`encode` answers with views of the tensors, `decode` with views of the body: nothing large is copied. Views may lie
at addresses that torch's kernels treat differently, so add up from views, but train and evaluate on copies.

Format: https://github.com/huggingface/safetensors#format

Encoded records as bytes, in parts that were never joined, and what tells whether they came as they were sent.
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
from shared.core.parsing import check_items, parse, within
from shared.core.records import Record, Tensor
from shared.core.tensors import bytes_of
from shared.wire.decoding import ModelRoom, any_room, from_json, is_counts, is_shape, no_room
from shared.wire.encoding import DTYPES, MAX_DEPTH, NAMES, Lengths, Tensors, to_json


@dataclass(frozen=True)
class Body:
    """An encoded record: buffers to be sent one after another, without having been joined."""

    parts: tuple[bytes | memoryview, ...]
    n_bytes: int

    def digest(self) -> str:
        """sha256 over the bytes."""
        sha = hashlib.sha256()
        for part in self.parts:
            sha.update(part)
        return sha.hexdigest()

    def checksum(self) -> str:
        """CRC-32 over the bytes: tells a garbled answer at a quarter of the digest's cost."""
        found = 0
        for part in self.parts:
            found = zlib.crc32(part, found)
        return f"{found:08x}"

    def join(self) -> bytearray:
        """One buffer, a copy."""
        return bytearray().join(self.parts)


def digest_of(body: bytearray | memoryview | bytes) -> str:
    """sha256 over a body in one piece."""
    return hashlib.sha256(body).hexdigest()


R = TypeVar("R", bound=Record)

MAX_HEADER_BYTES = 64 * 2**20
MAX_TENSORS = 2**18
MAX_ERRORS = 1000
"""Of more faults than these no path is told: pydantic makes an error of each before it shows the first."""


# ---- encode


def encode(record: Record) -> Body:
    """The record's bytes; the same record gives the same bytes.

    Raises:
        NotFinite: a JSON number is NaN or infinite.
        WireError: a leaf is neither JSON nor a tensor, a key begins with `$`, or the record is nested too deeply.
        TooLarge: nobody would read it.
    """
    text, tensors = _written(record, Tensors())
    head, end = _head(text, tensors)
    return Body((head, *(bytes_of(tensor) for _, tensor in _laid(tensors))), len(head) + end)


def size(record: Record) -> int:
    """Bytes that the encoded record would have; of tensors' elements it looks at masks alone."""
    head, end = _head(*_written(record, Lengths()))
    return len(head) + end


def _written(record: Record, tensors: Tensors) -> tuple[str, list[Tensor]]:
    """The record as JSON text, and its tensors."""
    told = to_json(record, tensors, MAX_DEPTH)
    try:
        return _compact(told), tensors.found
    except ValueError as error:
        raise NotFinite(f"{type(record).__name__}: {error}") from None
    except TypeError as error:
        raise WireError(f"{type(record).__name__}: {error}") from None


_compact = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _laid(tensors: list[Tensor]) -> list[tuple[int, Tensor]]:
    """The tensors with their numbers by falling item size, so that each begins at a multiple of its own."""
    return sorted(enumerate(tensors), key=lambda item: -item[1].element_size())


def _head(text_of_record: str, tensors: list[Tensor]) -> tuple[bytes, int]:
    """What stands before the tensors, and how many bytes they have together."""
    entries, end = _entries(tuple((index, NAMES[t.dtype], tuple(t.shape), t.nbytes) for index, t in _laid(tensors)))
    text = f'{{"__metadata__":{{"format":"strata-1","record":{_compact(text_of_record)}}}{entries}}}'
    text += " " * (-len(text) % 8)  # it is ASCII
    within(len(tensors), MAX_TENSORS, "tensors")
    within(len(text), MAX_HEADER_BYTES, "bytes of header")
    check_items(text)
    return struct.pack("<Q", len(text)) + text.encode(), end


@lru_cache(maxsize=64)
def _entries(laid: tuple[tuple[int, str, tuple[int, ...], int], ...]) -> tuple[str, int]:
    """The header's entries of tensors, the same for all seats that send the same shapes, and where the last ends."""
    text, end = "", 0
    for index, dtype, shape, n_bytes in laid:
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
) -> R:
    """The record in a body; its tensors are views of it (of a copy, where the body is read-only).

    Args:
        kind: the record's type; a parametrised generic where a field's type depends on the algorithm.
        body: the whole body.
        header: the body's header, where the caller has read it already.
        model: the run's model, against which `ModelState` fields are checked. Only where it is given may tensors come
            of which not all travels: they have shapes of its tensors.
        n_seats: of how many seats the body may hold messages or updates: the elements that such tensors may have
            together go with it.
        stored: this process wrote the body itself, and may have written what it liked.

    Raises:
        WireError: names what is wrong, with the path of the field.
    """
    header = header or read_header(body)
    view = memoryview(body).cast("B")
    tensors = _views(header, memoryview(bytearray(view)) if view.readonly else view)
    room = any_room if stored else no_room if model is None else ModelRoom(model, n_seats)
    try:
        return kind.model_validate(from_json(header.record, tensors, room), context={"model": model})
    except ValidationError as error:
        raise misfit(kind, error) from None


def misfit(kind: type[Record], error: ValidationError) -> WireError:
    """What a validation found, as an error with the path of the field."""
    if error.error_count() > MAX_ERRORS:
        return WireError(f"{kind.__name__}: {error.error_count()} faults")
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"])[:200]
    return WireError(f"{kind.__name__}: {path}: {first['msg'][:500]}", field=path or None)


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
        raise WireError(f"a body of {n_bytes} bytes is no record")
    (length,) = struct.unpack("<Q", bytes(body[:8]))
    within(length, MAX_HEADER_BYTES, "bytes of header")
    if 8 + length > n_bytes:
        raise WireError(f"the header claims {length} bytes in a body of {n_bytes}")
    header = parse(bytes(body[8 : 8 + length]), "header")
    if not isinstance(header, dict):
        raise WireError("the header is no JSON object")
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("record"), str):
        raise WireError("the header holds no record")
    return Header(parse(metadata["record"], "record"), header, 8 + length)


def _views(header: Header, view: memoryview) -> list[Tensor]:
    _, entries, begin = header
    within(len(entries), MAX_TENSORS, "tensors")
    names = {str(index): index for index in range(len(entries))}
    found: dict[int, _Entry] = {}
    for name, entry in entries.items():
        if name not in names:
            raise WireError(f"a tensor is named {name[:40]!r}")
        found[names[name]] = _entry(name, entry, begin)
    end = 0
    for first, last in sorted((entry.first, entry.last) for entry in found.values()):
        if first != end:
            raise WireError(f"tensors overlap or leave a hole at byte {end}")
        end = last
    if begin + end != len(view):
        raise WireError(f"the tensors end at byte {begin + end} of {len(view)}")
    return [_view(view, begin, found[index]) for index in range(len(found))]


class _Entry(NamedTuple):
    """A tensor of a body: its bytes, counted from the end of the header, and what they are."""

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
        raise WireError(f"tensor {name}: shape and offsets are lists of counts, of a tensor that can be")
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
