"""Which axis of a sample of numbers holds its channels, for models that take them first.

Images of bytes always reach models with channels first. Numbers do so unless the data say otherwise; where their shape
looks as if channels came last, nobody can tell, and the spec is asked.
"""

from __future__ import annotations

from torch import Tensor, nn

from shared.core.errors import BadInput
from shared.training.description import Sample


class ChannelsFirst(nn.Module):
    """Moves the channels of signals from the last axis to the first, (batch, length, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns signals (batch, channels, length)."""
        return x.transpose(1, 2)


def check_image(name: str, sample: Sample) -> None:
    """Checks that (channels, height, width) of numbers does not look like (height, width, channels).

    Raises:
        BadInput: it does, and the data do not say which of the two it is.
    """
    if len(sample.shape) != 3 or sample.images or sample.layout == "channels_first":
        return
    if sample.layout == "channels_last" or sample.shape[2] < min(sample.shape[:2]):
        raise _asked(name, "images (channels, height, width)", sample)


def check_signal(name: str, sample: Sample) -> None:
    """Checks that (channels, length) does not look like (length, channels), as `check_image` does."""
    if len(sample.shape) == 2 and sample.layout is None and sample.shape[1] <= sample.shape[0] > 1:
        raise _asked(name, "signals (channels, length)", sample)


def _asked(name: str, takes: str, sample: Sample) -> BadInput:
    cause = f"{name} takes {takes}; the samples {sample.shape} may have their channels last"
    remedy = f"`channels_last` moves them, `channels_first` says that there are {sample.shape[0]} channels"
    return BadInput(f"{cause}: data.layout has to say it ({remedy})", field="data.layout")
