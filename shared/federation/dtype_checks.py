"""Checks that a spec's methods are defined for the dtypes of its model's parameters, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shared.core.errors import BadInput
from shared.core.tensor_records import Tensor
from shared.federation.hooks import Algorithm
from shared.spec.experiment import ExperimentSpec
from shared.wire.codec_settings import CompressionSpec


def check_dtypes(spec: ExperimentSpec, algorithm: Algorithm, parameters: Mapping[str, Tensor]) -> None:
    """Checks algorithm, `vectorised` and compression of both links.

    Raises:
        BadInput: one of them is not; names its field and a parameter.
    """
    others = {name: str(tensor.dtype)[6:] for name, tensor in parameters.items() if tensor.dtype != torch.float32}
    if not others:
        return
    name, dtype = next(iter(others.items()))
    cause = f"the parameter {name} of {spec.model.name} is {dtype}"
    if algorithm.dtypes == "float32":
        raise BadInput(f"{algorithm.name} is defined for float32, {cause}", field="algorithm.name")
    if spec.vectorised is not None:
        raise BadInput(f"vectorised: many devices train at once in float32 alone, {cause}", field="vectorised")
    for field in ("compression", "edge_compression"):
        link: CompressionSpec = getattr(spec, field)
        if link != CompressionSpec() and len(others) == len(parameters):
            why = f"codecs compress float32 parameters, {cause}, and none is float32"
            raise BadInput(f"{field}: {why}", field=field)


def count_by_dtype(parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """Returns the number of parameters of each dtype, the most frequent first."""
    counts: dict[str, int] = {}
    for tensor in parameters.values():
        dtype = str(tensor.dtype)[6:]
        counts[dtype] = counts.get(dtype, 0) + tensor.numel()
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
