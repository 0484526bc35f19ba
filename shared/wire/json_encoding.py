"""The writing half of the codec: a record -> JSON with references to tensors, and the tensors.

Of a field that is averaged per position only the values that its mask keeps are referred to (`shared/wire/sparse.py`);
of a compressed tensor (`shared/wire/compression`) its parts. `shared/wire/json_decoding.py` is the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from pydantic import BaseModel

from shared.core.errors import WireError
from shared.core.number_sets import NumberSet
from shared.core.parsing import check_keys, check_text
from shared.core.tensor_records import Tensor
from shared.core.tensors import memory_of
from shared.core.update_annotations import KeptBy, Mean
from shared.wire.compression.coded_tensor import Coded
from shared.wire.sparse import positions_of

MAX_DEPTH = 64
"""Deepest nesting of a record, for writing and reading alike."""
TENSOR, KEPT, MASK, CODED = "$t", "$k", "$m", "$c"
"""Keys of the references: a whole tensor, kept values, their mask, a compressed tensor."""

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
"""Name in a safetensors header -> dtype; no other dtype travels."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PLAIN = frozenset({int, float, bool, type(None)})
"""Types of JSON values that are neither text nor contain other values."""


class TensorIndex:
    """Numbers the tensors of a record in the order in which they are met, each once.

    A tensor is identified by its memory, which lives as long as the record.

    Attributes:
        tensors: those numbered so far.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._index: dict[tuple[object, ...], int] = {}

    def index(self, tensor: Tensor) -> int:
        """Returns the number of a tensor.

        Raises:
            WireError: its dtype does not travel.
        """
        if tensor.dtype not in NAMES:
            raise WireError(f"tensors of {tensor.dtype} do not travel")
        own, key = tensor.detach(), memory_of(tensor)
        if key not in self._index:
            self._index[key] = len(self.tensors)
            self.tensors.append(own)
        return self._index[key]

    def kept(self, tensor: Tensor, mask: Tensor) -> int:
        """Returns the number of the values that a mask keeps of a tensor, as a tensor of their own."""
        return self.index(tensor[mask != 0])


class SizeIndex(TensorIndex):
    """A `TensorIndex` for computing sizes: the values that masks keep are not gathered."""

    def kept(self, tensor: Tensor, mask: Tensor) -> int:
        """Returns the number of a placeholder with the length and dtype of the values that a mask keeps."""
        return self.index(torch.zeros((), dtype=tensor.dtype).expand(int(mask.count_nonzero())))


def to_json(value: Any, tensors: TensorIndex, depth: int) -> object:
    """Returns a record, or a value in one, as JSON with references to tensors.

    Args:
        value: the record or value.
        tensors: numbers its tensors.
        depth: how much deeper values may be nested.

    Raises:
        WireError: a tensor does not travel, a key is reserved or doubled, or the nesting is too deep.
    """
    if not depth:
        raise WireError(f"the record is nested deeper than {MAX_DEPTH}")
    return _writer(type(value))(value, tensors, depth - 1)  # type: ignore[arg-type]


Writer = Callable[[Any, TensorIndex, int], object]
"""(value, tensors, how much deeper its items may be nested) -> JSON."""


@lru_cache(maxsize=1024)
def _writer(kind: type) -> Writer:
    """Returns the function that writes values of a type; cached, since the checks of a type take most of the time."""
    if kind in PLAIN:
        return _as_it_is
    return next((writer for parent, writer in _WRITERS.items() if issubclass(kind, parent)), _as_it_is)


def _as_it_is(value: object, tensors: TensorIndex, depth: int) -> object:
    return value


def _text(value: str, tensors: TensorIndex, depth: int) -> object:
    check_text(value)
    return value


def _coded(value: Coded, tensors: TensorIndex, depth: int) -> object:
    return {CODED: [value.codec.called(), [tensors.index(part) for part in value.parts], list(value.shape)]}


def _record(value: BaseModel, tensors: TensorIndex, depth: int) -> object:
    kind, fields = type(value), vars(value)
    sparse, plain = _sparse(value, tensors) if kept_by(kind) else {}, PLAIN if depth else ()
    found: dict[str, object] = {}
    for name, left_out in _fields(kind):
        item = fields[name]
        if left_out is not None and left_out(item):
            continue
        if type(item) in plain:
            found[name] = item
        else:
            found[name] = sparse.get(name) or to_json(item, tensors, depth)
    return found | _map(value.model_extra, tensors, depth) if value.model_extra else found


def _map(value: Mapping[Any, Any], tensors: TensorIndex, depth: int) -> dict[str, object]:
    if not value:
        return {}
    check_keys(map(str, value))
    found = {str(key): to_json(item, tensors, depth) for key, item in value.items()}
    if len(found) != len(value):
        raise WireError("two keys of a record are the same as text")
    return found


_WRITERS: Mapping[type, Writer] = {
    Coded: _coded,
    Tensor: lambda value, tensors, depth: {TENSOR: tensors.index(value)},
    BaseModel: _record,
    NumberSet: lambda value, tensors, depth: value.text,
    Mapping: _map,
    list: lambda value, tensors, depth: [to_json(item, tensors, depth) for item in value],
    tuple: lambda value, tensors, depth: [to_json(item, tensors, depth) for item in value],
    str: _text,
}
"""How values are written, by type; the first that fits counts."""


def _sparse(record: BaseModel, tensors: TensorIndex) -> dict[str, Any]:
    """Returns, as JSON, the fields of which only kept values travel, and their masks."""
    found: dict[str, Any] = {}
    for name, (other, is_mask) in kept_by(type(record)).items():
        values, masks = getattr(record, name), getattr(record, other)
        if not isinstance(values, Mapping) or not values or not _can_be_left_out(values, masks, is_mask):
            continue
        check_keys(values)
        places = {key: tensors.index(positions_of(masks[key])) for key in values}
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
def kept_by(kind: type[BaseModel]) -> dict[str, tuple[str, bool]]:
    """Returns field -> the field whose nonzero positions travel, and whether that is a mask of 0 and 1."""
    rules = {name: rule for name, field in kind.model_fields.items() for rule in field.metadata}
    kept_by = {name: (rule.field, False) for name, rule in rules.items() if isinstance(rule, KeptBy)}
    masked = {name: rule.per_position for name, rule in rules.items() if isinstance(rule, Mean)}
    return kept_by | {name: (mask, True) for name, mask in masked.items() if mask}


def _can_be_left_out(values: Mapping[str, Tensor], masks: Any, is_mask: bool) -> bool:
    """Whether each tensor has a mask of its shape. If not, all travel whole, and the reader refuses them."""
    if not isinstance(masks, Mapping) or masks.keys() != values.keys():
        return False
    if any(masks[key].shape != tensor.shape for key, tensor in values.items()):
        return False
    return not is_mask or all(
        mask.dtype == torch.float32 and bool(((mask == 0) | (mask == 1)).all()) for mask in masks.values()
    )


@lru_cache(maxsize=256)
def _fields(kind: type[BaseModel]) -> tuple[tuple[str, Callable[[Any], bool] | None], ...]:
    """Returns the names of a record's fields, and which of their values are left out; cached for speed."""
    return tuple((name, field.exclude_if) for name, field in kind.model_fields.items())
