"""The reading half of the codec: JSON with references to tensors -> values with tensors, and limits on what it makes.

Input may come from anybody. A tensor that travels whole is bounded by the body's length. Kept values, masks and
compressed tensors stand for more elements than travel; an `Allowance` bounds these. It counts every occurrence in the
record, since each may later be copied; decoded tensors themselves are made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from shared.core.errors import WireError
from shared.core.parsing import check_keys, check_text, within
from shared.core.tensor_records import Tensor
from shared.wire.compression import from_parts
from shared.wire.json_encoding import CODED, KEPT, MASK, MAX_DEPTH, PLAIN, TENSOR
from shared.wire.sparse import mask_of, placed

MAX_RANK = 16
"""Most dimensions of a tensor."""
MAX_COUNT = 2**53
"""Most elements of a tensor, and the largest offset: whole numbers that a double holds exactly."""
MODELS_A_SEAT = 8
"""What travels for one seat, up or down, may stand for as many elements as this number of models has.

An update that is averaged per position takes two, its values and their mask, and so does the sum of several.
"""

Shape = tuple[int, ...]
Allowance = Callable[[Shape], None]
"""Called before a tensor is made of fewer bytes than it has; raises WireError if it may not be made."""


def only_whole(shape: Shape) -> None:
    """The allowance where no model is known: every tensor must travel whole.

    Raises:
        WireError: always.
    """
    raise WireError("here a tensor travels whole, not as its kept values, a mask or in a short form")


def unlimited(shape: Shape) -> None:
    """The allowance of bodies that this process has written itself."""


class ModelAllowance:
    """Allows shapes of the run's model, up to a number of elements in total.

    Args:
        model: of the run.
        n_seats: the number of seats of which a body holds messages, updates or the sum of updates. The limit is
            proportional, so that whether a seat's update can be read does not depend on those beside it.
    """

    def __init__(self, model: Mapping[str, Tensor], n_seats: int) -> None:
        self.shapes = {tuple(tensor.shape) for tensor in model.values()}
        self.most = MODELS_A_SEAT * n_seats * sum(max(tensor.numel(), 1) for tensor in model.values())
        self.taken = 0

    def __call__(self, shape: Shape) -> None:
        """Counts a tensor.

        Raises:
            WireError: no tensor of the model has that shape.
            TooLarge: the total exceeds the limit.
        """
        if shape not in self.shapes:
            raise WireError(f"the run's model has no tensor of shape {str(shape)[:100]}")
        self.taken += max(math.prod(shape), 1)
        within(self.taken, self.most, "elements of which not all travel")


def from_json(value: Any, tensors: list[Tensor], allowance: Allowance, *, copied: bool = False) -> Any:
    """Returns a JSON value with its tensors; every tensor must be used.

    Args:
        value: parsed, with references.
        tensors: of the body.
        allowance: limits what is made of fewer bytes than it has.
        copied: whether whole tensors are copied and compressed ones decoded, so that none is a view of the body.

    Raises:
        WireError: names the fault and the path of the field.
    """
    decoder = _Decoder(tensors, allowance, copied)
    try:
        decoded = decoder.decode(value, MAX_DEPTH)
    except WireError as error:
        path = decoder.path_text
        raise type(error)(f"{path}: {error.detail}" if path else error.detail, field=path or None) from None
    if len(decoder.used) != len(tensors):
        raise WireError(f"{len(tensors) - len(decoder.used)} tensors stand in no field")
    return decoded


LEAVES = PLAIN | {str}
"""Types of values that contain no others."""


class _Decoder:
    """Replaces the references in a JSON value by the tensors of a body.

    Attributes:
        used: numbers of the tensors that were referred to.
        path: to the current value; after an error, to the one at fault.
        made: copies, and tensors made of fewer bytes than they have, by the reference that describes them.
    """

    def __init__(self, tensors: list[Tensor], allowance: Allowance, copied: bool) -> None:
        self.tensors, self.allowance, self.copied = tensors, allowance, copied
        self.used: set[int] = set()
        self.path: list[object] = []
        self.made: dict[Hashable, Tensor] = {}

    @property
    def path_text(self) -> str:
        """The path, joined by points and cut."""
        return ".".join(str(part)[:200] for part in self.path)[:200]

    def decode(self, value: Any, depth: int) -> Any:
        """Returns the value with its tensors."""
        if depth and type(value) in PLAIN:
            return value
        if not depth:
            raise WireError(f"the record is nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            if len(value) == 1 and (read := self._readers.get(next(iter(value)))):
                return read(self, *value.values())
            check_keys(value)
            leaves = LEAVES if depth > 1 else ()  # most values are such
            return {
                key: item
                if type(item) in leaves and (type(item) is not str or item.isascii())
                else self._at(key, item, depth - 1)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._at(index, item, depth - 1) for index, item in enumerate(value)]
        if isinstance(value, str):
            check_text(value)
        return value

    def _at(self, step: object, value: Any, depth: int) -> Any:
        self.path.append(step)
        decoded = self.decode(value, depth)
        self.path.pop()
        return decoded

    # ---- references

    def _tensor(self, index: Any) -> Tensor:
        if type(index) is not int or not 0 <= index < len(self.tensors):
            raise WireError(f"the record names a tensor that is not among the body's {len(self.tensors)}")
        self.used.add(index)
        return self.tensors[index]

    def _whole(self, index: Any) -> Tensor:
        tensor = self._tensor(index)
        return self._once((TENSOR, index), tensor.clone) if self.copied else tensor

    def _kept(self, reference: Any) -> Tensor:
        index, where, shape = _items(
            reference, 3, "a tensor of which some positions travel has values, places and a shape"
        )
        values = self._tensor(index)
        self.allowance(shape)
        mask = self._places(where, shape)
        return self._once((KEPT, index, where, shape), lambda: placed(values, mask))

    def _mask(self, reference: Any) -> Tensor:
        where, shape = _items(reference, 2, "a mask has places and a shape")
        self.allowance(shape)
        mask = self._places(where, shape)
        return self._once((MASK, where, shape), lambda: mask.to(torch.float32))

    def _places(self, index: Any, shape: Shape) -> Tensor:
        places = self._tensor(index)
        return self._once((index, shape), lambda: mask_of(places, shape))

    def _coded(self, reference: Any) -> Tensor:
        what = "a coded tensor has the name of a codec, parts and a shape"
        codec, indices, shape = _items(reference, 3, what)
        if not isinstance(codec, str) or not isinstance(indices, list):
            raise WireError(what)
        parts = tuple(self._tensor(index) for index in indices)
        self.allowance(shape)

        def make() -> Tensor:
            coded = from_parts(codec, shape, parts, self.path_text)
            return coded.decoded() if self.copied else coded

        return self._once((CODED, codec, *indices, shape), make)

    def _once(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    _readers = {TENSOR: _whole, KEPT: _kept, MASK: _mask, CODED: _coded}  # noqa: RUF012 - a constant


def _items(value: Any, n: int, what: str) -> tuple[Any, ...]:
    """Returns the n items of a list, the last of them a shape; raises WireError with `what` if it is none."""
    if not isinstance(value, list) or len(value) != n or not is_shape(value[-1]):
        raise WireError(what)
    return (*value[:-1], tuple(value[-1]))


def is_counts(value: Any) -> bool:
    """Whether a value is a list of whole numbers from 0 that a double holds exactly."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < MAX_COUNT for item in value)


def is_shape(value: Any) -> bool:
    """Whether a tensor can have this shape.

    The strides of an empty tensor are products of its other dimensions, which must not overflow either.
    """
    return is_counts(value) and len(value) <= MAX_RANK and math.prod(max(extent, 1) for extent in value) < MAX_COUNT
