"""Floating-point operations of training, counted on the run's own model.

Forward and backward pass of one batch run on torch's `meta` device, where only shapes exist, and the operations'
formulas of `torch.utils.flop_counter` are added up: two operations for a multiplication with its addition, in matrix
products and convolutions. What else there is (activations, normalisation, pooling, loss, the step) is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shared.training.models import Classifier, Shape, build

BATCH = 2
"""Batch-norm cannot train on one sample where the images have shrunk to one pixel."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of this thread in `n`; `FlopCounterMode` would put hooks on the modules of all threads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """One operation."""
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.n += formula(*args, **(kwargs or {}), out_val=out)
        return out


def operations(loss: Callable[[], Tensor]) -> int:
    """Operations of making a loss and of going back through it."""
    with Operations() as counter:
        loss().backward()  # type: ignore[no-untyped-call]
    return int(counter.n)


def meta_model(
    model: str, input_shape: Shape, n_classes: int, projection: int | None = None, width: float = 1.0
) -> tuple[Classifier, Tensor, Tensor]:
    """A model, images and labels of a batch, of which there are the shapes alone.

    Args:
        model: one of `shared.training.models.MODELS`.
        input_shape: (channels, height, width).
        n_classes: width of the head.
        projection: outputs of the model's projection head, if it has one.
        width: share of the units of its hidden layers.

    Raises:
        UnknownName, BadInput: as `build` does.
    """
    with torch.device("meta"):
        made = build(model, input_shape, n_classes, 0, projection, width)
        return made, torch.empty(BATCH, *input_shape), torch.empty(BATCH, dtype=torch.int64)


@lru_cache(maxsize=64)
def training_flops(
    model: str, input_shape: Shape, n_classes: int, projection: int | None = None, width: float = 1.0
) -> int:
    """Operations of training a model on one sample with the cross-entropy; arguments and errors of `on_shapes`."""
    made, x, y = meta_model(model, input_shape, n_classes, projection, width)
    return operations(lambda: functional.cross_entropy(made(x), y)) // BATCH
