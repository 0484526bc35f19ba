"""Sizes of bodies on simulated links: without the measurements of devices, which only the simulator has to know."""

from __future__ import annotations

from functools import lru_cache

from shared.simulation import DeviceFile, DeviceSpec
from shared.spec.experiment import ExperimentSpec
from shared.wire import codec


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
    return n_bytes if spec.devices.file is None else codec.size_without(head, n_bytes, _characters(spec.devices.file))


@lru_cache(maxsize=8)
def _characters(file: DeviceFile) -> int:
    """Characters that a file of devices adds to the header of a body that holds the spec."""
    return codec.measured(DeviceSpec(file=file)).text - codec.measured(DeviceSpec()).text
