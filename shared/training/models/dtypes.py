"""The dtypes of models: which can be trained and sent, and calling a model whose parameters are not float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shared.core.errors import BadInput
from shared.training.models.classifier import own_state

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""The dtypes of what is trained and averaged."""
OTHERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
"""The dtypes of buffers that are not averaged."""


def check_dtypes(model: nn.Module, name: str) -> None:
    """Refuses a model that cannot be federated because of the dtype of a parameter or a buffer.

    Raises:
        BadInput: naming the first such tensor.
    """
    for key, tensor in own_state(model).items():
        what, shown = "parameter" if isinstance(tensor, nn.Parameter) else "buffer", str(tensor.dtype)[6:]
        if tensor.is_quantized or tensor.layout != torch.strided:
            cause = f"{what} {key} is {'quantised' if tensor.is_quantized else 'sparse'}"
        elif tensor.dtype not in (*FLOATS, *OTHERS):
            cause = f"{what} {key} is {shown}"
        elif what == "parameter" and tensor.dtype not in FLOATS:
            cause = f"parameter {key} is {shown}; as a buffer it would be kept as it is"
        else:
            continue
        floats = ", ".join(str(dtype)[6:] for dtype in FLOATS)
        raise BadInput(f"{name}: {cause}. Models are trained and averaged in {floats}", field="model.name")


def with_own_dtype(model: nn.Module) -> nn.Module:
    """Returns a model that takes float32 samples whatever the one dtype of its parameters, as far as that differs.

    Its inputs are converted to the dtype of its parameters, and outputs of 16 bits to float32, in which losses are
    computed. A model with parameters of several dtypes converts what it needs itself.
    """
    found = {tensor.dtype for tensor in model.parameters()}
    if len(found) != 1 or found <= {torch.float32} or not found <= set(FLOATS):
        return model
    (dtype,) = found

    def convert(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(x.to(dtype) if isinstance(x, Tensor) and x.dtype in FLOATS else x for x in inputs)

    def widen(_: nn.Module, __: Any, outputs: Any) -> Any:
        return outputs.float() if isinstance(outputs, Tensor) and outputs.dtype in FLOATS[1:3] else outputs

    model.register_forward_pre_hook(convert)
    model.register_forward_hook(widen)
    features = getattr(model, "features", None)
    if isinstance(features, nn.Module):
        features.register_forward_pre_hook(convert)
    return model
