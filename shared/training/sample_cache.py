"""Encoded samples of clients that train in every round, so that they are converted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.training.data.dataset import as_batch


class SampleCache:
    """Keeps the encoded samples of the first sets of samples that it is asked for; never more than `most_bytes`.

    Nothing is dropped for others: where all clients take turns and not all fit, the newest would never be asked for
    again in time.
    """

    def __init__(self, most_bytes: int, encode: Callable[[npt.NDArray[Any]], Tensor] = as_batch) -> None:
        self.left_bytes, self.encode = most_bytes, encode
        self._kept: dict[bytes, tuple[npt.NDArray[Any], Tensor]] = {}

    def batch(self, x: npt.NDArray[Any], indices: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Returns the samples of `x` at these positions, encoded, on the device; they must not be written."""
        key = indices.tobytes()
        known = self._kept.get(key)
        if known is not None and known[0] is x and known[1].device.type == device.type:
            return known[1]
        made = self.encode(x[indices]).to(device)
        if known is None and made.nbytes <= self.left_bytes:
            self._kept[key] = x, made
            self.left_bytes -= made.nbytes
        return made
