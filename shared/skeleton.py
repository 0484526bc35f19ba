"""The JSON skeleton of a body: what stands in it for tensors, and how these come to their places; see `shared.wire`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shared.codecs.coded import from_parts
from shared.errors import WireError
from shared.records import Tensor
from shared.strict_json import check_keys, check_text

MAX_DEPTH = 64
"""How deep a record may be nested: what one tier could write, the next can read."""
MAX_COUNT = 2**53
TENSOR = "$t"
CODED = "$coded"
PLAIN = frozenset({int, float, bool, type(None)})


def is_counts(value: Any) -> bool:
    """Whether it is a list of whole numbers from 0 on."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < MAX_COUNT for item in value)


@dataclass
class Filler:
    """Puts a body's tensors into its skeleton.

    Attributes:
        shapes: that coded tensors may have.
        used: numbers of the tensors that stand somewhere.
    """

    tensors: list[Tensor]
    shapes: frozenset[tuple[int, ...]]
    used: set[int] = field(default_factory=set)

    def fill(self, value: Any, depth: int) -> Any:
        """A value of the skeleton, nested no deeper than so.

        Raises:
            WireError: it is, or names what is not there.
        """
        if depth and type(value) in PLAIN:
            return value
        if not depth:
            raise WireError(f"the record is nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            if value.keys() == {TENSOR}:
                return self._tensor(value[TENSOR])
            if value.keys() == {CODED, "shape", "parts"}:
                return self._coded(value[CODED], value["shape"], value["parts"])
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

    def _coded(self, codec: Any, shape: Any, parts: Any) -> Tensor:
        if not isinstance(codec, str) or not is_counts(shape) or not isinstance(parts, list):
            raise WireError("a coded tensor is not {codec, shape, parts}")
        if tuple(shape) not in self.shapes:
            raise WireError(f"a coded tensor is {str(shape)[:100]}: no tensor of the run's model is")
        if not all(isinstance(part, dict) and part.keys() == {TENSOR} for part in parts):
            raise WireError("the parts of a coded tensor are tensors")
        return from_parts(codec, shape, tuple(self._tensor(part[TENSOR]) for part in parts))
