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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shared.core.errors import BadInput
from shared.core.randomness import seeded_generators
from shared.core.records import Record
from shared.training.models import Design, built, described, outputs_of

BATCH = 2
"""Samples in the counted batch: batch-norm cannot train on one sample if its input has a single pixel."""
MOST = 10**18
"""Most operations of training on one sample that a model may claim."""


def _lstm_operations(passes: int) -> Callable[..., int]:
    """Returns the formula of an LSTM layer, which torch does not count: two products at each position."""

    def count(x: Tensor, into_gates: Tensor, from_state: Tensor, *_: Any, **__: Any) -> int:
        return passes * 2 * x.shape[0] * x.shape[1] * (into_gates.numel() + from_state.numel())

    return count


_LSTM = {
    torch.ops.aten.mkldnn_rnn_layer: _lstm_operations(1),
    torch.ops.aten.mkldnn_rnn_layer_backward: _lstm_operations(2),
}


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
        formula = _LSTM.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.n += formula(*args, **(kwargs or {}), out_val=out)
        return out


def operations(loss: Callable[[], Tensor]) -> int:
    """Returns the number of operations of computing a loss and its gradients.

    Raises:
        BadInput: it has no gradients.
    """
    with seeded_generators(0), Operations() as counter:  # dropout draws from the default generator
        value = loss()
        if not value.requires_grad:
            why = "its outputs are detached from all of them, or computed without gradients"
            raise BadInput(f"no parameter of the model can be trained: {why}", field="model.name")
        value.backward()  # type: ignore[no-untyped-call]
    return int(counter.n)


def model_and_batch(design: Design) -> tuple[Any, Tensor, Tensor]:
    """Returns a model with initial weights, and the samples and targets of a batch.

    Raises:
        UnknownName, BadInput: as for `built`.
    """
    sample, target = described(design.sample, design.target)
    return built(design, 0), sample.example(BATCH), target.example(BATCH)


@lru_cache(maxsize=64)
def training_flops(design: Design) -> int:
    """Returns the operations of training on one sample with the target's loss.

    A model whose operations cannot be counted says them itself, as its attribute `training_flops`.

    Raises:
        UnknownName: as for `built`.
        BadInput: as for `built`; or the model's outputs do not fit the target, or nothing in it can be counted.
    """
    made, x, y = model_and_batch(design)
    model, (_, wanted) = design.name, described(design.sample, design.target)

    def loss() -> Tensor:
        outputs = outputs_of(made, model, x)
        shape = tuple(outputs.shape)
        if not wanted.fits(shape, BATCH):
            cause = f"{model} has outputs {shape} for {BATCH} samples, targets of {wanted.kind} need {wanted.outputs}"
            raise BadInput(cause, field="model.name")
        return wanted.loss(outputs, y)

    counted = operations(loss) // BATCH
    own = getattr(made, "training_flops", None)
    if own is not None:
        return _checked(own, model)
    if not counted:
        cause = f"no operation of {model} can be counted: give the model the attribute `training_flops`"
        raise BadInput(f"{cause}, the operations of training it on one sample", field="model.name")
    return counted


@lru_cache(maxsize=64)
def step_flops(
    count: Callable[[Any, Any, Tensor, Tensor], float], kind: type[Record], params: str, design: Design
) -> int:
    """Returns the operations of training on one sample as an algorithm counts them, from its parameters as JSON."""
    model, x, y = model_and_batch(design)
    return round(count(kind.model_validate_json(params), model, x, y) / len(y))


def _checked(own: Any, model: str) -> int:
    if isinstance(own, bool) or not isinstance(own, int) or not 0 < own <= MOST:
        raise BadInput(
            f"`training_flops` of {model} is {own!r:.60}, not an integer from 1 to {MOST}", field="model.name"
        )
    return own
