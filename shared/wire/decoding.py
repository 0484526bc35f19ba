"""A skeleton with its tensors: the reading half of the codec, which trusts nobody, and the bounds that it keeps.

The elements of a whole tensor travel, so that a body's length bounds them. What only a mask keeps, a mask and a coded
tensor stand for more than travels: `Room` says for how much. It counts what each place of the record stands for, since
whoever owns the record may copy it there; here what is told twice is made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from shared.core.errors import WireError
from shared.core.parsing import check_keys, check_text, within
from shared.core.records import Tensor
from shared.wire.compression import from_parts
from shared.wire.encoding import CODED, KEPT, MASK, MAX_DEPTH, PLAIN, TENSOR
from shared.wire.sparse import mask_of, placed

MAX_RANK = 16
MAX_COUNT = 2**53
MODELS_A_SEAT = 8
"""As many elements as so many models may be stood for by what travels of one seat, up or down.

An update that is averaged by position takes two, the values and their mask, and so does the sum of several.
"""

Shape = tuple[int, ...]
Room = Callable[[Shape], None]
"""Asked before anything of a shape is made of fewer bytes; raises WireError where there is no room for it."""


def no_room(shape: Shape) -> None:
    """Where no model is known by which to tell what may be stood for.

    Raises:
        WireError: always.
    """
    raise WireError("here a tensor travels whole, not as its kept values, a mask or in a short form")


def any_room(shape: Shape) -> None:
    """For what this process has written itself."""


class ModelRoom:
    """In shapes of the run's model, and so many elements in all.

    Args:
        model: of the run.
        n_seats: of how many seats a body holds messages, updates or the sum of updates. The bound goes with it: whether
            a seat's update can be read does not depend on those that came with it.
    """

    def __init__(self, model: Mapping[str, Tensor], n_seats: int) -> None:
        self.shapes = {tuple(tensor.shape) for tensor in model.values()}
        self.most = MODELS_A_SEAT * n_seats * sum(max(tensor.numel(), 1) for tensor in model.values())
        self.taken = 0

    def __call__(self, shape: Shape) -> None:
        """Take room.

        Raises:
            WireError: no tensor of the model has that shape.
            TooLarge: there is not so much.
        """
        if shape not in self.shapes:
            raise WireError(f"the run's model has no tensor of shape {str(shape)[:100]}")
        self.taken += max(math.prod(shape), 1)
        within(self.taken, self.most, "elements of which not all travel")


def from_json(value: Any, tensors: list[Tensor], room: Room) -> Any:
    """The skeleton with its tensors; every tensor must be used.

    Raises:
        WireError: names what is wrong, with the path of the field.
    """
    filling = _Filling(tensors, room)
    try:
        found = filling.fill(value, MAX_DEPTH)
    except WireError as error:
        place = filling.place
        raise type(error)(f"{place}: {error.detail}" if place else error.detail, field=place or None) from None
    if len(filling.used) != len(tensors):
        raise WireError(f"{len(tensors) - len(filling.used)} tensors stand in no field")
    return found


class _Filling:
    """Puts a body's tensors into its skeleton.

    Attributes:
        path: to the value at hand; after an error, to what is at fault.
        made: what was made of fewer bytes than it has, by what was told of it.
    """

    def __init__(self, tensors: list[Tensor], room: Room) -> None:
        self.tensors, self.room = tensors, room
        self.used: set[int] = set()
        self.path: list[object] = []
        self.made: dict[Hashable, Tensor] = {}

    @property
    def place(self) -> str:
        """The path as text."""
        return ".".join(str(part)[:200] for part in self.path)[:200]

    def fill(self, value: Any, depth: int) -> Any:
        """The value with its tensors."""
        if depth and type(value) in PLAIN:
            return value
        if not depth:
            raise WireError(f"the record is nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            if len(value) == 1 and (read := self._readers.get(next(iter(value)))):
                return read(self, *value.values())
            check_keys(value)
            return {key: self._at(key, item, depth - 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self._at(index, item, depth - 1) for index, item in enumerate(value)]
        if isinstance(value, str):
            check_text(value)
        return value

    def _at(self, step: object, value: Any, depth: int) -> Any:
        self.path.append(step)
        found = self.fill(value, depth)
        self.path.pop()
        return found

    # ---- what stands for a tensor

    def _tensor(self, index: Any) -> Tensor:
        if type(index) is not int or not 0 <= index < len(self.tensors):
            raise WireError(f"the record names a tensor that is none of the body's {len(self.tensors)}")
        self.used.add(index)
        return self.tensors[index]

    def _kept(self, told: Any) -> Tensor:
        index, where, shape = _told(told, 3, "a tensor of which some positions travel has values, places and a shape")
        values = self._tensor(index)
        self.room(shape)
        mask = self._places(where, shape)
        return self._once((KEPT, index, where, shape), lambda: placed(values, mask))

    def _mask(self, told: Any) -> Tensor:
        where, shape = _told(told, 2, "a mask has places and a shape")
        self.room(shape)
        mask = self._places(where, shape)
        return self._once((MASK, where, shape), lambda: mask.to(torch.float32))

    def _places(self, index: Any, shape: Shape) -> Tensor:
        places = self._tensor(index)
        return self._once((index, shape), lambda: mask_of(places, shape))

    def _coded(self, told: Any) -> Tensor:
        what = "a coded tensor has the name of a codec, parts and a shape"
        codec, indices, shape = _told(told, 3, what)
        if not isinstance(codec, str) or not isinstance(indices, list):
            raise WireError(what)
        parts = tuple(self._tensor(index) for index in indices)
        self.room(shape)
        return self._once((CODED, codec, *indices, shape), lambda: from_parts(codec, shape, parts, self.place))

    def _once(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    _readers = {TENSOR: _tensor, KEPT: _kept, MASK: _mask, CODED: _coded}  # noqa: RUF012 - a table, by token


def _told(value: Any, n: int, what: str) -> tuple[Any, ...]:
    """The items of a list of n that ends with a shape; this as a tuple."""
    if not isinstance(value, list) or len(value) != n or not is_shape(value[-1]):
        raise WireError(what)
    return (*value[:-1], tuple(value[-1]))


def is_counts(value: Any) -> bool:
    """Whether this is a list of whole numbers that a double can hold."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < MAX_COUNT for item in value)


def is_shape(value: Any) -> bool:
    """Whether a tensor can have this shape.

    The strides of an empty tensor are products of its other dimensions: these must not overflow either.
    """
    return is_counts(value) and len(value) <= MAX_RANK and math.prod(max(extent, 1) for extent in value) < MAX_COUNT
