"""A record as JSON in which numbers stand for tensors: the writing half of the codec that knows no bytes.

Of a field that is averaged per position only what its mask keeps is told (`shared/wire/sparse.py`); a tensor in its
short form (`shared/wire/compression`) is told by its parts. `shared/wire/decoding.py` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from pydantic import BaseModel

from shared.core.aggregation_rules import KeptBy, Mean
from shared.core.errors import WireError
from shared.core.parsing import check_keys, check_text
from shared.core.records import Tensor
from shared.core.tensors import memory_of
from shared.wire.compression.coded_tensor import Coded
from shared.wire.sparse import places_of

MAX_DEPTH = 64
"""How deep a record may be nested: what one tier could write, the next can read."""
TENSOR, KEPT, MASK, CODED = "$t", "$k", "$m", "$c"

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "U8": torch.uint8,
    "I8": torch.int8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

PLAIN = frozenset({int, float, bool, type(None)})


class Tensors:
    """The tensors met so far, each once. A tensor is known by its memory, which lives as long as the record."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []
        self._index: dict[tuple[object, ...], int] = {}

    def index(self, tensor: Tensor) -> int:
        """The number of a tensor."""
        if tensor.dtype not in NAMES:
            raise WireError(f"tensors of {tensor.dtype} do not travel")
        own, key = tensor.detach(), memory_of(tensor)
        if key not in self._index:
            self._index[key] = len(self.found)
            self.found.append(own)
        return self._index[key]

    def kept(self, tensor: Tensor, mask: Tensor) -> int:
        """The number of what a mask keeps of a tensor."""
        return self.index(tensor[mask != 0])


class Lengths(Tensors):
    """As `Tensors`, where only sizes are asked for: of what masks keep no element is gathered."""

    def kept(self, tensor: Tensor, mask: Tensor) -> int:
        """The number of what has the length and dtype of what a mask keeps of a tensor."""
        return self.index(torch.zeros((), dtype=tensor.dtype).expand(int(mask.count_nonzero())))


def to_json(value: object, tensors: Tensors, depth: int) -> object:
    if depth and type(value) in PLAIN:  # most of what there is
        return value
    if not depth:
        raise WireError(f"the record is nested deeper than {MAX_DEPTH}")
    if isinstance(value, Coded):
        return {CODED: [value.codec.called(), [tensors.index(part) for part in value.parts], list(value.shape)]}
    if isinstance(value, Tensor):
        return {TENSOR: tensors.index(value)}
    if isinstance(value, BaseModel):
        sparse = _sparse(value, tensors)
        return {
            name: sparse.get(name) or to_json(getattr(value, name), tensors, depth - 1) for name in _fields(type(value))
        }
    if isinstance(value, Mapping):
        check_keys(map(str, value))
        found = {str(key): to_json(item, tensors, depth - 1) for key, item in value.items()}
        if len(found) != len(value):
            raise WireError("two keys of a record are the same as text")
        return found
    if isinstance(value, list | tuple):
        return [to_json(item, tensors, depth - 1) for item in value]
    if isinstance(value, str):
        check_text(value)
    return value


def _sparse(record: BaseModel, tensors: Tensors) -> dict[str, Any]:
    """The skeletons of fields of which only what a mask keeps travels, and of their masks."""
    found: dict[str, Any] = {}
    for name, (other, is_mask) in _kept_by(type(record)).items():
        values, masks = getattr(record, name), getattr(record, other)
        if not isinstance(values, Mapping) or not values or not _can_be_left_out(values, masks, is_mask):
            continue
        check_keys(values)
        places = {key: tensors.index(places_of(masks[key])) for key in values}
        shapes = {key: list(tensor.shape) for key, tensor in values.items()}
        kept = {key: tensors.kept(tensor, masks[key]) for key, tensor in values.items()}
        found[name] = {key: {KEPT: [kept[key], places[key], shapes[key]]} for key in values}
        if is_mask:
            found[other] = {key: {MASK: [places[key], shapes[key]]} for key in values}
        else:
            weights = {key: tensors.kept(masks[key], masks[key]) for key in values}
            found[other] = {key: {KEPT: [weights[key], places[key], shapes[key]]} for key in values}
    return found


@lru_cache(maxsize=256)
def _kept_by(kind: type[BaseModel]) -> dict[str, tuple[str, bool]]:
    """Field -> the field that says which of its positions travel, and whether that is a mask of 0 and 1."""
    marks = {name: mark for name, field in kind.model_fields.items() for mark in field.metadata}
    found = {name: (mark.field, False) for name, mark in marks.items() if isinstance(mark, KeptBy)}
    masked = {name: mark.per_position for name, mark in marks.items() if isinstance(mark, Mean)}
    return found | {name: (mask, True) for name, mask in masked.items() if mask}


def _can_be_left_out(values: Mapping[str, Tensor], masks: Any, is_mask: bool) -> bool:
    """Whether these are masks, each of its tensor's shape; what is none is for the reader to refuse."""
    if not isinstance(masks, Mapping) or masks.keys() != values.keys():
        return False
    if any(masks[key].shape != tensor.shape for key, tensor in values.items()):
        return False
    return not is_mask or all(
        mask.dtype == torch.float32 and bool(((mask == 0) | (mask == 1)).all()) for mask in masks.values()
    )


@lru_cache(maxsize=256)
def _fields(kind: type[BaseModel]) -> tuple[str, ...]:
    """The names of a record's fields: pydantic asks its class anew each time."""
    return tuple(kind.model_fields)
