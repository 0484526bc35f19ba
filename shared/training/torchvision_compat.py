"""The only import of torchvision.

With the CPU build of torch, a torchvision wheel from the public package registry fails at import: its compiled part
needs CUDA libraries and is not loaded, so that the operator `torchvision::nms` does not exist. Nothing here uses these
operators. They are declared, without an implementation, only if the plain import fails.

Importing torchvision takes about a second and 100 MB: call `torchvision()` inside the function that needs it.
"""

from __future__ import annotations

import functools
import importlib
import threading
from types import ModuleType

import torch

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_IMPORTING = threading.Lock()
"""The threads of several tiers in one process may all make the first call; an operator can be declared only once."""


@functools.cache
def torchvision() -> ModuleType:
    """Returns the torchvision package, which the first call imports."""
    with _IMPORTING:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
        _declare_missing()
        return importlib.import_module("torchvision")


@functools.cache
def _declare_missing() -> torch.library.Library:
    """Declares the missing operators; the cache keeps the library object, which must outlive them."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + _SIGNATURE)  # type: ignore[no-untyped-call]
    return library
