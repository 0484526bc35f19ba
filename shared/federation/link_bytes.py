"""Bytes that simulated links carry: of tensors, by an algorithm's footprint and the codecs, and of whole bodies.

The measurements of devices count nothing: only the simulator has to know them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from shared.core.tensor_records import TensorMap
from shared.core.update_annotations import coded_fields
from shared.federation.context import Context
from shared.federation.hooks import Algorithm, Direction
from shared.simulation import DeviceFile, DeviceSpec
from shared.simulation.cost_model import LinkUse
from shared.spec.experiment import ExperimentSpec
from shared.wire.codec import measured, size_without
from shared.wire.compression import Codec, Compressor

SUM_BYTES = 8
"""Bytes of an element of an exact sum."""


@dataclass(frozen=True)
class LinkBytes:
    """The links of a run.

    Attributes:
        algorithm: says what is sent.
        shapes: the model's tensors, without elements.
    """

    algorithm: Algorithm
    shapes: TensorMap

    def of_device(self, ctx: Context, compressor: Compressor) -> LinkUse:
        """Bytes of the model that a device receives and of the tensors that it sends, in a context with a device."""
        sent, coded = self.algorithm.footprint.sends(ctx, self.shapes), coded_fields(self.algorithm.update)
        up = (self._carried(ctx, names, field in coded, "up", compressor) for field, names in sent.items())
        return LinkUse(down_bytes=self._carried(ctx, self.shapes, True, "down", compressor), up_bytes=sum(up))

    def of_edge(self, ctx: Context, compressor: Compressor) -> LinkUse:
        """Bytes of the model that an edge receives and of the tensors that it sends, in the context of an edge.

        An edge that forms no model sends the exact sum of its devices' updates, or the mean.
        """
        own, coded = self.algorithm.edge.forms_model(ctx), coded_fields(self.algorithm.update)
        sent = self.algorithm.footprint.sends(ctx if own else ctx.at(seat=0), self.shapes)
        down_bytes = self._carried(ctx, self.shapes, True, "down", compressor)
        if not own and not ctx.spec.sends_means:
            n_summed = sum(self.shapes[name].numel() for names in sent.values() for name in names)
            return LinkUse(down_bytes=down_bytes, up_bytes=SUM_BYTES * n_summed)
        codecs = {field: compressor.up if field in coded else None for field in sent}
        up_bytes = sum(self._in_codec(names, compressor, codecs[field]) for field, names in sent.items())
        return LinkUse(down_bytes=down_bytes, up_bytes=up_bytes)

    def _carried(
        self, ctx: Context, names: Collection[str], coded: bool, way: Direction, compressor: Compressor
    ) -> int:
        """Bytes of these tensors, in the algorithm's own codecs where it has one, else, if `coded`, in the spec's."""
        own = self.algorithm.footprint.codes(ctx, self.shapes, way)
        own_bytes = sum(own[name].n_bytes(self.shapes[name].numel()) for name in own.keys() & set(names))
        codec = (compressor.up if way == "up" else compressor.down) if coded else None
        return own_bytes + self._in_codec([name for name in names if name not in own], compressor, codec)

    def _in_codec(self, names: Collection[str], compressor: Compressor, codec: Codec | None) -> int:
        return compressor.carried_bytes({name: self.shapes[name] for name in names}, codec)


# ---- whole bodies


def spec_on_links(spec: ExperimentSpec) -> ExperimentSpec:
    """The spec whose size counts on simulated links."""
    if spec.devices.file is None:
        return spec
    return spec.model_copy(update={"devices": spec.devices.model_copy(update={"file": None})})


def size_on_links(spec: ExperimentSpec, head: bytes | memoryview, n_bytes: int) -> int:
    """The size of a body as if it held that spec.

    Args:
        spec: the one that it holds.
        head: the body up to its tensors.
        n_bytes: its size.
    """
    return n_bytes if spec.devices.file is None else size_without(head, n_bytes, _characters(spec.devices.file))


@lru_cache(maxsize=8)
def _characters(file: DeviceFile) -> int:
    """Characters that a file of devices adds to the header of a body that holds the spec."""
    return measured(DeviceSpec(file=file)).text - measured(DeviceSpec()).text
