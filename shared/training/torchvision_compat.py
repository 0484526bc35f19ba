"""The one door to torchvision.

A torchvision wheel from the public package registry, beside the CPU build of torch, fails at import: its
compiled part wants CUDA libraries, is not loaded, and `torchvision::nms` is then looked up in vain. Nothing
here needs those operators, so they are declared (not implemented) when, and only when, the plain import
fails.

Importing torchvision takes a second and some 100 MB: call `torchvision()` inside the function that needs it.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@functools.cache
def torchvision() -> ModuleType:
    """The torchvision package, imported on the first call."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    _declare_missing()
    return importlib.import_module("torchvision")


@functools.cache
def _declare_missing() -> torch.library.Library:
    """Declare the missing operators; the library object must outlive them, hence the cache."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + _SIGNATURE)  # type: ignore[no-untyped-call]
    return library
