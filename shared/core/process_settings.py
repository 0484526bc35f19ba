"""Settings of the process that code of a user may change, although other clients and runs depend on them.

They are put back after each visit, each work of a compute thread and each call of a plug-in: what the code of one
client sets for itself is not seen by the next.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def settings_kept() -> Iterator[None]:
    """Puts the settings of torch and warnings back after the body of a `with`.

    Those that all threads share become their defaults, not what they were: two threads may do this at the same time.
    Those of numpy belong to the context of a task, of which each work of a compute thread has its own.
    """
    torch = _torch()
    n_threads, with_gradients = (torch.get_num_threads(), torch.is_grad_enabled()) if torch else (None, True)
    filters = warnings.filters[:]
    try:
        yield
    finally:
        if (torch := _torch()) is not None:
            _restore_torch(torch, n_threads)
            if torch.is_grad_enabled() != with_gradients:
                torch.set_grad_enabled(with_gradients)
        if warnings.filters != filters:
            _restore_warnings(filters)


def _torch() -> Any:
    """The module, None unless this process has imported all of it."""
    found = sys.modules.get("torch")
    return found if hasattr(found, "set_default_device") else None


def _restore_warnings(before: Sequence[Any]) -> None:
    """Takes away the filters that turn warnings into errors, and that were not there before."""
    for each in [each for each in warnings.filters if each[0] == "error" and each not in before]:
        warnings.filters.remove(each)  # type: ignore[attr-defined]
        warnings._filters_mutated()  # type: ignore[attr-defined]


def _restore_torch(torch: Any, n_threads: int | None) -> None:
    if torch.get_default_dtype() != torch.float32:
        torch.set_default_dtype(torch.float32)
    if n_threads is not None and torch.get_num_threads() != n_threads:
        torch.set_num_threads(n_threads)
    if torch.get_float32_matmul_precision() != "highest":
        torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)  # it cannot be read
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not None:
        torch.set_default_device(None)
