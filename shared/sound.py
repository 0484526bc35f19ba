"""A sum that arrives is looked at before it is added: one bad sum must not spoil those of the others."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shared.errors import WireError
from shared.records import Record, Tensor, TensorMap
from shared.sums import Folded, Grid, mean_of
from shared.tensors import check_bound


def check_folded(folded: Folded, kind: type[Record], grid: Grid, model: Mapping[str, Tensor]) -> None:
    """Refuse a sum that cannot be one of updates of this kind for this model.

    Its values are read once; names, shapes and types are checked on tensors without values.

    Raises:
        NotFinite, OutOfBound, WireError: naming field and tensor.
    """
    if folded.n_updates < 0 or folded.n_samples < 0:
        raise WireError("a sum of fewer than no updates", field="n_updates")
    for key, part in folded.means.items():
        if part.weight < 0:
            raise WireError(f"{key}: the weight is {part.weight}")
        for name, steps in part.sums.items():
            most = part.weight * grid.bound(name) * 2.0 ** grid.exponent(name)
            check_bound(steps, most, f"the sum of {key} {name}".strip())
        for name, weights in part.positions.items():
            check_bound(weights, part.weight, f"the weights of {key} {name}".strip())
    try:
        mean_of(_hollow(folded), kind, grid, model=model)
    except (RuntimeError, KeyError) as error:
        raise WireError(f"the sum is none of {kind.__name__}: {error}") from None


def _hollow(folded: Folded) -> Folded:
    means = {
        key: part.but(sums=_shapes(part.sums), positions=_shapes(part.positions)) for key, part in folded.means.items()
    }
    return folded.but(means=means)


def _shapes(tensors: TensorMap) -> TensorMap:
    """The same tensors without values; single numbers stay, they are read as such."""
    return {
        name: tensor if tensor.numel() == 1 else torch.empty_like(tensor, device="meta")
        for name, tensor in tensors.items()
    }
