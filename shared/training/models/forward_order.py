"""The order in which a forward pass uses the modules of a model, whatever the order in which they are registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


def forward_order(model: nn.Module, run: Callable[[], object]) -> list[str]:
    """Returns the names of the modules with tensors of their own, from input to output; unused ones come first.

    A module without children is used when it is called. One with children, and one that is never called (its tensors
    are used by another), is used when an operation last takes one of its own tensors for the first time. Hooks stay on
    the model, and its forward pass draws from torch's default generator.

    Args:
        model: in training mode, as training uses it.
        run: passes a batch through it.
    """
    own = {name for name, module in model.named_modules() if module._parameters or module._buffers}
    seen = _Uses(model)
    with torch.no_grad(), seen:
        run()
    at = {name: seen.called.get(name, seen.taken.get(name, -1)) for name in own}
    return sorted((name for name, _ in model.named_modules() if name in own), key=at.__getitem__)


class _Uses(TorchFunctionMode):
    """Observes a forward pass; positions count calls and operations.

    Attributes:
        called: by module without children, the position of its first call.
        taken: by module, the largest of the positions at which its own tensors are first taken by an operation.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.n = 0
        self.called: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self.waiting: dict[int, str] = {}
        for name, module in model.named_modules():
            tensors = (*module._parameters.values(), *module._buffers.values())
            self.waiting |= {id(tensor): name for tensor in tensors if tensor is not None}
            if not module._modules:
                module.register_forward_pre_hook(partial(self._calls, name))

    def _calls(self, name: str, *_: Any) -> None:
        self.n += 1
        self.called.setdefault(name, self.n)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operation and notes whose tensors it takes; reading a shape, or making zeros alike, takes none."""
        found = func(*args, **(kwargs or {}))
        self.n += 1
        computes = any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(found))
        if computes and not func.__name__.startswith("new_") and not func.__name__.endswith("_like"):
            names = (self.waiting.pop(id(leaf), None) for leaf in pytree.tree_leaves((args, kwargs)))
            self.taken |= {name: self.n for name in names if name is not None}
        return found
