"""Floating-point operations of training, counted on the run's own model.

The forward and backward pass of a small batch are run on the CPU, and the formulas of `torch.utils.flop_counter` are
summed: a multiply-add counts as two operations. Only matrix products and convolutions are counted; activations,
normalisation, pooling, loss and the optimiser's step are not. (On torch's `meta` device nothing would be computed, but
torch then imports its compiler, which takes seconds and 80 MB in each process.)
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

from shared.core.randomness import seeded_default_generator
from shared.training.models import Classifier, Shape, build

BATCH = 2
"""Samples in the counted batch: batch-norm cannot train on one sample if its input has a single pixel."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the operations of this thread in `n`; `FlopCounterMode` would hook the modules of all threads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, or torch would import its whole compiler, only to switch it off for this class."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Runs one operation and adds its count."""
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.n += formula(*args, **(kwargs or {}), out_val=out)
        return out


def operations(loss: Callable[[], Tensor]) -> int:
    """Returns the number of operations of computing a loss and its gradients."""
    with seeded_default_generator(0), Operations() as counter:  # dropout draws from the default generator
        loss().backward()  # type: ignore[no-untyped-call]
    return int(counter.n)


def model_and_batch(
    model: str, input_shape: Shape, n_classes: int, projection: int | None = None, width: float = 1.0
) -> tuple[Classifier, Tensor, Tensor]:
    """Returns a model with initial weights, and the images and labels of a batch.

    Args:
        model: one of `shared.training.models.MODELS`.
        input_shape: (channels, height, width).
        n_classes: number of outputs of the head.
        projection: number of outputs of the model's projection head; None means no projection head.
        width: share of the units of its hidden layers.

    Raises:
        UnknownName, BadInput: as for `build`.
    """
    made = build(model, input_shape, n_classes, 0, projection, width)
    return made, torch.zeros(BATCH, *input_shape), torch.zeros(BATCH, dtype=torch.int64)


@lru_cache(maxsize=64)
def training_flops(
    model: str, input_shape: Shape, n_classes: int, projection: int | None = None, width: float = 1.0
) -> int:
    """Returns the operations of training on one sample with the cross-entropy; arguments and errors as for `build`."""
    made, x, y = model_and_batch(model, input_shape, n_classes, projection, width)
    return operations(lambda: functional.cross_entropy(made(x), y)) // BATCH
