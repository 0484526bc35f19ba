"""The spec's codecs, applied to the records of an algorithm.

Compressed are the float32 parameters of the run's model that are trained: in a message the fields that are
`ModelState`, in an update those of them that are averaged (`Mean` without `per_position`). Buffers and frozen
parameters travel uncompressed, and so do tensors that the codec would not make smaller; tensors that the algorithm has
compressed itself stay as they are. The result depends on the record alone, and its size on shapes alone.

Error feedback (`memory`): an update is coded together with the error of those before it,

    p = m + u,  u' = code(p),  m <- p - u'                       Stich et al. 2018, algorithm 1; m begins as 0

where u is the update of a visit (in the paper, the gradient of a step times the learning rate), or that of an edge, and
m stays with the device or the edge.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

import torch

from shared.core.records import Record
from shared.core.tensor_records import Tensor, TensorMap, holds_model_state
from shared.core.tensors import memory_of
from shared.core.update_annotations import coded_fields
from shared.wire.codec_settings import CompressionSpec
from shared.wire.compression.codecs import codec_of
from shared.wire.compression.coded_tensor import Codec, Coded

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Record)
Encode = Callable[[Tensor, str], Tensor]


@dataclass(frozen=True)
class Compressor:
    """Compresses the records of a run.

    Attributes:
        spec: names the codecs.
        whole_names: names of the model's tensors that are never compressed: buffers and frozen parameters.
    """

    spec: CompressionSpec = field(default_factory=CompressionSpec)
    whole_names: Collection[str] = frozenset()

    @cached_property
    def up(self) -> Codec | None:
        """The codec of updates."""
        return codec_of(self.spec.up)

    @cached_property
    def down(self) -> Codec | None:
        """The codec of models."""
        return codec_of(self.spec.down)

    @property
    def keeps_residual(self) -> bool:
        """Whether senders keep the error of their updates."""
        return self.up is not None and self.up.feeds_back

    def messages(self) -> Callable[[R], R]:
        """Returns a function that compresses messages; a tensor in several of them is coded once."""
        codec = self.down
        if codec is None:
            return lambda message: message
        made: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}  # keeps the tensor: no other takes its memory

        def encode(tensor: Tensor, what: str) -> Tensor:
            key = memory_of(tensor)
            if key not in made:
                made[key] = tensor, codec.encode(tensor, what)
            return made[key][1]

        def coded(message: R) -> R:
            names = [name for name in type(message).model_fields if holds_model_state(type(message), name)]
            return self._changed(message, names, codec, encode)

        return coded

    def update(self, update: R, residual: Mapping[str, Tensor]) -> tuple[R, TensorMap]:
        """Returns an update with its averaged parameters compressed, and the residual for the next one.

        Args:
            update: of a visit or an edge.
            residual: the error of earlier updates, by field and tensor. A tensor of it with another shape or dtype, or
                that is not finite, is dropped: the update is then coded like a first one.

        Raises:
            NotFinite, OutOfBound: the update cannot be coded; names field and tensor.
        """
        codec = self.up
        if codec is None:
            return update, dict(residual)
        kind, left = type(update), dict(residual)

        def encode(tensor: Tensor, what: str) -> Tensor:
            before = left.pop(what, None)
            whole = tensor if before is None or not _can_be_added(before, tensor, what) else tensor + before
            made = codec.encode(whole, what)
            if codec.feeds_back:
                left[what] = whole - made
            return made

        return self._changed(update, coded_fields(kind), codec, encode), left

    def _changed(self, record: R, names: Sequence[str], codec: Codec, encode: Encode) -> R:
        kind = type(record)
        fields = {name: getattr(record, name) for name in kind.model_fields}
        coded = {name: self._walk(fields[name], name, codec, encode) for name in names}
        return cast("R", kind.model_construct(**fields | coded))

    def _walk(self, value: Any, field_path: str, codec: Codec, encode: Encode, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {key: self._walk(item, f"{field_path} {key}", codec, encode, key) for key, item in value.items()}
        return encode(value, field_path) if isinstance(value, Tensor) and self._is_coded(name, value, codec) else value

    def _is_coded(self, name: str, tensor: Tensor, codec: Codec) -> bool:
        if name in self.whole_names or tensor.dtype != torch.float32 or isinstance(tensor, Coded):
            return False
        return codec.n_bytes(tensor.numel()) < 4 * tensor.numel()

    def carried_bytes(self, model: Mapping[str, Tensor], codec: Codec | None) -> int:
        """Returns the bytes in which a model, or an update of all its tensors, travels."""
        return sum(
            codec.n_bytes(tensor.numel())
            if codec is not None and self._is_coded(name, tensor, codec)
            else tensor.numel() * tensor.element_size()
            for name, tensor in model.items()
        )


def _can_be_added(residual: Tensor, tensor: Tensor, what: str) -> bool:
    """Whether a residual fits a tensor; logs a warning if it does not."""
    if residual.shape != tensor.shape or residual.dtype != tensor.dtype:
        fault = f"{residual.dtype} {tuple(residual.shape)}, not {tensor.dtype} {tuple(tensor.shape)}"
    elif not torch.isfinite(residual).all():
        fault = "not finite"
    else:
        return True
    log.warning("the error feedback of %s is %s: dropped", what, fault)
    return False
