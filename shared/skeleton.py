"""A record as JSON in which numbers stand for tensors, and back: the codec's half that knows no bytes.

Of a field that is averaged per position only what its mask keeps is told (`shared/sparse.py`); a tensor in its short
form (`shared/codecs`) is told by its parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from pydantic import BaseModel

from shared.codecs.coded import Coded, from_parts
from shared.errors import WireError
from shared.records import KeptBy, Mean, Tensor
from shared.sparse import packed, placed, unpacked
from shared.strict_json import check_keys, check_text, within

MAX_RANK = 16
MAX_DEPTH = 64
"""How deep a record may be nested: what one tier could write, the next can read."""
MAX_COUNT = 2**53
MAX_PLACES = 2**28
"""Of all masks of a body together: a few bytes could name as many as they like."""
_TENSOR, _KEPT, _MASK, _CODED = "$t", "$k", "$m", "$c"

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


# ---- to JSON


class Tensors:
    """The tensors met so far, each once. A tensor is known by its memory, which lives as long as the record."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []
        self._index: dict[tuple[object, ...], int] = {}

    def index(self, tensor: Tensor) -> int:
        if tensor.dtype not in NAMES:
            raise WireError(f"tensors of {tensor.dtype} do not travel")
        own = tensor.detach()
        key = (own.data_ptr() or id(tensor), own.dtype, tuple(own.shape), own.stride())
        if key not in self._index:
            self._index[key] = len(self.found)
            self.found.append(own)
        return self._index[key]


_PLAIN = frozenset({int, float, bool, type(None)})


def skeleton(value: object, tensors: Tensors, depth: int) -> object:
    if depth and type(value) in _PLAIN:  # most of what there is
        return value
    if not depth:
        raise WireError(f"the record is nested deeper than {MAX_DEPTH}")
    if isinstance(value, Coded):
        return {_CODED: [value.codec, [tensors.index(part) for part in value.parts], list(value.shape)]}
    if isinstance(value, Tensor):
        return {_TENSOR: tensors.index(value)}
    if isinstance(value, BaseModel):
        sparse = _sparse(value, tensors)
        return {
            name: sparse.get(name) or skeleton(getattr(value, name), tensors, depth - 1)
            for name in _fields(type(value))
        }
    if isinstance(value, Mapping):
        check_keys(map(str, value))
        found = {str(key): skeleton(item, tensors, depth - 1) for key, item in value.items()}
        if len(found) != len(value):
            raise WireError("two keys of a record are the same as text")
        return found
    if isinstance(value, list | tuple):
        return [skeleton(item, tensors, depth - 1) for item in value]
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
        places = {key: tensors.index(packed(masks[key])) for key in values}
        shapes = {key: list(tensor.shape) for key, tensor in values.items()}
        kept = {key: tensors.index(tensor[masks[key] != 0]) for key, tensor in values.items()}
        found[name] = {key: {_KEPT: [kept[key], places[key], shapes[key]]} for key in values}
        if is_mask:
            found[other] = {key: {_MASK: [places[key], shapes[key]]} for key in values}
        else:
            weights = {key: tensors.index(masks[key][masks[key] != 0]) for key in values}
            found[other] = {key: {_KEPT: [weights[key], places[key], shapes[key]]} for key in values}
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


# ---- and back


def filled(value: Any, tensors: list[Tensor], model: Mapping[str, Tensor] | None) -> Any:
    """The skeleton with its tensors; every tensor must be used."""
    filling = _Filling(tensors, None if model is None else {tuple(tensor.shape) for tensor in model.values()})
    filled = filling.fill(value, MAX_DEPTH)
    if len(filling.used) != len(tensors):
        raise WireError(f"{len(tensors) - len(filling.used)} tensors stand in no field")
    return filled


class _Filling:
    """Puts a body's tensors into its skeleton.

    Args:
        tensors: of the body.
        shapes: those that a tensor may have of which only some positions, or a short form, travel: a few bytes could
            else stand for as much memory as they like. None: nothing travels in a short form.
    """

    def __init__(self, tensors: list[Tensor], shapes: set[tuple[int, ...]] | None) -> None:
        self.tensors, self.shapes = tensors, shapes
        self.used: set[int] = set()
        self.masks: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def fill(self, value: Any, depth: int) -> Any:
        """The value with its tensors."""
        if depth and type(value) in _PLAIN:
            return value
        if not depth:
            raise WireError(f"the record is nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            if len(value) == 1 and (read := self._readers.get(next(iter(value)))):
                return read(self, *value.values())
            check_keys(value)
            return {key: self.fill(item, depth - 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item, depth - 1) for item in value]
        if isinstance(value, str):
            check_text(value)
        return value

    def _tensor(self, index: Any) -> Tensor:
        if type(index) is not int or not 0 <= index < len(self.tensors):
            raise WireError(f"the record names a tensor that is none of the body's {len(self.tensors)}")
        self.used.add(index)
        return self.tensors[index]

    def _kept(self, value: Any) -> Tensor:
        if not isinstance(value, list) or len(value) != 3:
            raise WireError("a tensor of which some positions travel has values, places and a shape")
        return placed(self._tensor(value[0]), self._places(value[1], value[2]))

    def _mask(self, value: Any) -> Tensor:
        if not isinstance(value, list) or len(value) != 2:
            raise WireError("a mask has places and a shape")
        return self._places(value[0], value[1]).to(torch.float32)

    def _coded(self, value: Any) -> Tensor:
        if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str):
            raise WireError("a coded tensor has the name of a codec, parts and a shape")
        codec, parts, shape = value
        if not isinstance(parts, list) or not is_counts(shape):
            raise WireError("a coded tensor has the name of a codec, parts and a shape")
        if self.shapes is None or tuple(shape) not in self.shapes:
            raise WireError(f"a coded tensor is {str(shape)[:100]}: no tensor of the run's model is")
        return from_parts(codec, shape, tuple(self._tensor(part) for part in parts))

    def _places(self, index: Any, shape: Any) -> Tensor:
        """The mask of a shape, made once."""
        if not is_counts(shape) or len(shape) > MAX_RANK:
            raise WireError(f"a mask has no shape {str(shape)[:80]}")
        places, key = self._tensor(index), (index, tuple(shape))
        if key not in self.masks:
            if self.shapes is not None and key[1] not in self.shapes:
                raise WireError(f"the run's model has no tensor of shape {key[1]}")
            within(sum(mask.numel() for mask in self.masks.values()) + math.prod(shape), MAX_PLACES, "places")
            self.masks[key] = unpacked(places, shape)
        return self.masks[key]

    _readers = {_TENSOR: _tensor, _KEPT: _kept, _MASK: _mask, _CODED: _coded}  # noqa: RUF012 - a table, by token


def is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < MAX_COUNT for item in value)
