"""The spec's codecs, applied to the records of an algorithm.

Coded are the parameters (float32) of the run's model: in a message the fields that are `ModelState`, in an update those
of them that are averaged (`Mean`, but for `per_position`). Buffers travel as they are, and so does what its codec would
not make smaller, and what an algorithm has coded itself. What comes out depends on the record alone, and its size on
shapes alone.

Error feedback (`memory`): an update is coded together with what was left out of those before it,

    p = m + u,  u' = code(p),  m <- p - u'                       Stich et al. 2018, algorithm 1; m begins as 0

where u is the update of a visit (there a step's gradient times its rate), and m stays with the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch

from shared.core.aggregation_rules import coded_fields
from shared.core.records import Record, Tensor, TensorMap, holds_model_state
from shared.core.tensors import memory_of
from shared.wire.compression.coded_tensor import Coded
from shared.wire.compression.specs import CodecSpec, CompressionSpec

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Record)
Encode = Callable[[Tensor, str], Tensor]


@dataclass(frozen=True)
class Compressor:
    """How a run's records are coded.

    Attributes:
        spec: which codecs.
        buffer_names: of the model; all other names are parameters.
    """

    spec: CompressionSpec = field(default_factory=CompressionSpec)
    buffer_names: Collection[str] = frozenset()

    @property
    def memory(self) -> bool:
        """Whether devices keep what was left out of their updates."""
        return self.spec.up is not None and self.spec.up.feeds_back

    def messages(self) -> Callable[[R], R]:
        """What codes the models of a wave's messages: a tensor that stands in several is coded, and travels, once."""
        codec = self.spec.down
        if codec is None:
            return lambda message: message
        made: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}  # with the tensor, so that its memory stays its own

        def encode(tensor: Tensor, what: str) -> Tensor:
            key = memory_of(tensor)
            if key not in made:
                made[key] = tensor, codec.encode(tensor, what)
            return made[key][1]

        def coded(message: R) -> R:
            names = [name for name in type(message).model_fields if holds_model_state(type(message), name)]
            return self._changed(message, names, codec, encode)

        return coded

    def update(self, update: R, memory: Mapping[str, Tensor]) -> tuple[R, TensorMap]:
        """An update with its averaged parameters coded, and what its device keeps for the next one.

        Args:
            update: of a visit.
            memory: what was left out of earlier ones, by the place in the update. What does not fit there, or is not
                finite, is dropped: the update is then coded as a first one.

        Raises:
            NotFinite, OutOfBound: the update cannot be coded; names field and tensor.
        """
        codec = self.spec.up
        if codec is None:
            return update, dict(memory)
        kind, left = type(update), dict(memory)

        def encode(tensor: Tensor, what: str) -> Tensor:
            before = left.pop(what, None)
            whole = tensor if before is None or not _can_be_added(before, tensor, what) else tensor + before
            made = codec.encode(whole, what)
            if codec.feeds_back:
                left[what] = whole - made
            return made

        return self._changed(update, coded_fields(kind), codec, encode), left

    def _changed(self, record: R, names: Sequence[str], codec: CodecSpec, encode: Encode) -> R:
        kind = type(record)
        fields = {name: getattr(record, name) for name in kind.model_fields}
        coded = {name: self._walk(fields[name], name, codec, encode) for name in names}
        return cast("R", kind.model_construct(**fields | coded))

    def _walk(self, value: Any, place: str, codec: CodecSpec, encode: Encode, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {key: self._walk(item, f"{place} {key}", codec, encode, key) for key, item in value.items()}
        return encode(value, place) if isinstance(value, Tensor) and self._is_coded(name, value, codec) else value

    def _is_coded(self, name: str, tensor: Tensor, codec: CodecSpec) -> bool:
        if name in self.buffer_names or tensor.dtype != torch.float32 or isinstance(tensor, Coded):
            return False
        return codec.n_bytes(tensor.numel()) < 4 * tensor.numel()

    def carried_bytes(self, model: Mapping[str, Tensor], codec: CodecSpec | None) -> int:
        """Bytes in which all of a model, or an update of it, travels."""
        return sum(
            codec.n_bytes(tensor.numel())
            if codec is not None and self._is_coded(name, tensor, codec)
            else tensor.numel() * tensor.element_size()
            for name, tensor in model.items()
        )


def _can_be_added(memory: Tensor, tensor: Tensor, what: str) -> bool:
    """Whether this was left out of such a tensor; else a warning."""
    if memory.shape != tensor.shape or memory.dtype != tensor.dtype:
        told = f"{memory.dtype} {tuple(memory.shape)}, not {tensor.dtype} {tuple(tensor.shape)}"
    elif not torch.isfinite(memory).all():
        told = "not finite"
    else:
        return True
    log.warning("what was left out of %s is %s: dropped", what, told)
    return False
