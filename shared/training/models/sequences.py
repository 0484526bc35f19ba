"""Models of sequences and signals.

`char_lstm` is the character model of McMahan et al. (AISTATS 2017), section 3: an embedding of 8 dimensions and two
LSTM layers of 256 units (S. Hochreiter, J. Schmidhuber: Long Short-Term Memory. Neural Computation 1997). `cnn_1d` and
`autoencoder` are StrataFL's own, for short signals such as windows of a machine's vibration.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shared.core.errors import BadInput
from shared.training.description import Sample, Target
from shared.training.models.axes import ChannelsFirst, check_signal
from shared.training.models.classifier import Classifier

EMBEDDED, UNITS = 8, 256


class Recurrent(nn.Module):
    """An embedding and an LSTM of two layers.

    Args:
        vocabulary: number of indices.
        padding: index of positions without content, which are at the end of a sequence; None without padding.
        every: whether all positions have features, or the last one with content alone.
    """

    def __init__(self, vocabulary: int, padding: int | None, *, every: bool) -> None:
        super().__init__()
        self.padding, self.every = padding, every
        self.embedding = nn.Embedding(vocabulary, EMBEDDED)
        self.lstm = nn.LSTM(EMBEDDED, UNITS, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Returns features of indices (batch, length): (batch, length, units), or (batch, units)."""
        states: Tensor = self.lstm(self.embedding(x))[0]
        if self.every:
            return states
        last = torch.full_like(x[:, 0], x.shape[1] - 1)
        if self.padding is not None:
            last = ((x != self.padding).sum(1) - 1).clamp(min=0)
        return states[torch.arange(len(x), device=x.device), last]


def char_lstm(sample: Sample, target: Target) -> Classifier:
    """An LSTM of indices: for tokens it says one at each position, else it says the target after the last position."""
    if sample.vocabulary is None or len(sample.shape) != 1:
        what = f"{sample.what} of shape {sample.shape}"
        raise BadInput(f"char_lstm takes sequences of indices (length,), not {what}", field="model.name")
    body = Recurrent(sample.vocabulary, sample.padding, every=target.kind == "tokens")
    return Classifier(body, UNITS, target.n_outputs)


def cnn_1d(sample: Sample, target: Target) -> Classifier:
    """Two convolutions of 16 and 32 channels over a signal, each halved by a max-pool, and 64 units.

    Signals are (length,) or (channels, length) with at least 4 positions; those of a mask are (length, channels).
    """
    _check_signal("cnn_1d", sample, target)
    check_signal("cnn_1d", sample)
    last = sample.layout == "channels_last"
    channels, length = (1, *sample.shape) if len(sample.shape) == 1 else sample.shape[::-1] if last else sample.shape
    if length < 4:
        raise BadInput(f"cnn_1d: signals of {length} positions are too short for two pools", field="model.name")
    modules: list[nn.Module] = [nn.Unflatten(1, (1, length))] if len(sample.shape) == 1 else []
    modules += [ChannelsFirst()] if last else []
    for before, after in ((channels, 16), (16, 32)):
        modules += [nn.Conv1d(before, after, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)]
    modules += [nn.Flatten(), nn.Linear(32 * (length // 4), 64), nn.ReLU()]
    return Classifier(nn.Sequential(*modules), 64, target.n_outputs)


def autoencoder(sample: Sample, target: Target) -> Classifier:
    """Layers of 64, 16 and 64 units: with the sample itself as its target, the 16 in the middle are its code."""
    _check_signal("autoencoder", sample, target)
    if target.kind != "numbers":
        raise BadInput(f"autoencoder says numbers, not {target.kind}", field="model.name")
    modules: list[nn.Module] = [nn.Flatten()]
    before = math.prod(sample.shape)
    for units in (64, 16, 64):
        modules += [nn.Linear(before, units), nn.ReLU()]
        before = units
    return Classifier(nn.Sequential(*modules), 64, target.n_outputs)


def _check_signal(name: str, sample: Sample, target: Target) -> None:
    if sample.dtype != "float32" or len(sample.shape) not in (1, 2) or target.kind == "tokens":
        what = f"{sample.what} of shape {sample.shape} and targets of {target.kind}"
        cause = f"{name} takes signals, (length,) or (channels, length), for classes or numbers; not {what}"
        raise BadInput(cause, field="model.name")
