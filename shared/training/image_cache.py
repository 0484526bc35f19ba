"""Float images of clients that train in every round, so that their bytes are converted once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.training.data.dataset import as_batch


class ImageCache:
    """Keeps the float images of the first sets of samples that it is asked for; never more than `most_bytes`.

    Nothing is dropped for others: where all clients take turns and not all fit, the newest would never be asked for
    again in time.
    """

    def __init__(self, most_bytes: int) -> None:
        self.left_bytes = most_bytes
        self._kept: dict[bytes, tuple[npt.NDArray[np.uint8], Tensor]] = {}

    def floats(self, x: npt.NDArray[np.uint8], indices: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Returns the images of `x` at these positions as `as_batch` does, on the device; they must not be written."""
        key = indices.tobytes()
        known = self._kept.get(key)
        if known is not None and known[0] is x and known[1].device.type == device.type:
            return known[1]
        made = as_batch(x[indices]).to(device)
        if known is None and made.nbytes <= self.left_bytes:
            self._kept[key] = x, made
            self.left_bytes -= made.nbytes
        return made
