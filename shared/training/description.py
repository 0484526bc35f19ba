"""The description of a data set: what one sample is, and what a model is to say of it.

A target decides the default loss: cross-entropy for classes, binary cross-entropy for labels, mean squared error for
numbers, cross-entropy of each token for sequences. Losses, hits and scores count *predictions*: one for each sample, or
for each token that is not padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""The label of what is not to be predicted, as in torch's cross-entropy: padding of a batch, or of a sequence."""


@dataclass(frozen=True)
class Sample:
    """One sample as a model gets it.

    Attributes:
        shape: without the batch; of an image (channels, height, width).
        dtype: `int64` samples are indices, of words or characters; they are never normalised.
        images: whether samples are made from images of bytes, which some methods need.
        vocabulary: of indices: the number of their values, 0 to `vocabulary - 1`.
        padding: of indices: the value at positions without content; None without padding.
        layout: of numbers: which axis holds the channels, the first or the last, where the data say it; images have
            channels first.
    """

    shape: tuple[int, ...]
    dtype: Literal["float32", "int64"] = "float32"
    images: bool = False
    vocabulary: int | None = None
    padding: int | None = None
    layout: Literal["channels_first", "channels_last"] | None = None

    @property
    def what(self) -> str:
        """What a sample is, in words."""
        if self.images:
            return "images"
        return "numbers" if self.dtype == "float32" else "indices"

    def example(self, n: int) -> Tensor:
        """Returns a batch of n samples of zeros."""
        return torch.zeros(n, *self.shape, dtype=torch.int64 if self.dtype == "int64" else torch.float32)


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Mean and standard deviation by which samples are normalised, `(x - mean) / std`; images are first scaled to 0..1.

    Attributes:
        mean, std: float32, of a shape that broadcasts to a sample's.
    """

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Classes:
    """A target that is one of n classes: int64 (batch,); a model has n outputs, (batch, n).

    Attributes:
        n: number of classes.
    """

    n: int
    kind = "classes"
    per_sample = 1

    @property
    def words(self) -> str:
        """What is to be said of a sample, in words."""
        return f"one of {self.n:,} classes"

    @property
    def outputs(self) -> str:
        """The shape of a model's outputs, in words."""
        return f"(batch, {self.n})"

    def fits(self, shape: tuple[int, ...], batch: int) -> bool:
        """Returns whether the outputs of a batch may have this shape."""
        return shape == (batch, self.n)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a model's last layer."""
        return self.n

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the cross-entropy of each sample, (batch,); 0 where y is `IGNORED`."""
        return functional.cross_entropy(outputs, y, reduction="none", ignore_index=IGNORED)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the mean cross-entropy of a batch."""
        return functional.cross_entropy(outputs, y)

    def loss_sum(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the sum of the cross-entropies of a batch."""
        return functional.cross_entropy(outputs, y, reduction="sum")

    def n_predictions(self, y: Tensor) -> int:
        """Returns the number of samples."""
        return y.size(0)

    def weights(self, y: Tensor) -> Tensor:
        """Returns the number of predictions of each sample, float32 (batch,)."""
        return (y != IGNORED).to(torch.float32)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns whether each sample's most likely class is its class, (batch,); logits may have more dimensions."""
        return outputs.argmax(-1) == y

    def example(self, n: int) -> Tensor:
        """Returns targets of n samples."""
        return torch.zeros(n, dtype=torch.int64)


@dataclass(frozen=True)
class Labels:
    """A target of n labels, any number of which a sample has: float32 of 0 and 1, (batch, n).

    A model has an output for each label, (batch, n), above 0 where it says that the sample has it: its log-odds.

    Attributes:
        n: number of labels.
    """

    n: int
    kind = "labels"
    per_sample = 1

    @property
    def words(self) -> str:
        """What is to be said of a sample, in words."""
        return f"any of {self.n:,} labels"

    @property
    def outputs(self) -> str:
        """The shape of a model's outputs, in words."""
        return f"(batch, {self.n}), one for each label"

    def fits(self, shape: tuple[int, ...], batch: int) -> bool:
        """Returns whether the outputs of a batch may have this shape."""
        return shape == (batch, self.n)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a model's last layer."""
        return self.n

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the binary cross-entropy of each sample, the mean over its labels, (batch,)."""
        return functional.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the mean binary cross-entropy of a batch."""
        return self.losses(outputs, y).mean()

    def loss_sum(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the sum of the samples' binary cross-entropies."""
        return self.losses(outputs, y).sum()

    def n_predictions(self, y: Tensor) -> int:
        """Returns the number of samples."""
        return len(y)

    def weights(self, y: Tensor) -> Tensor:
        """Returns the number of predictions of each sample, float32 (batch,)."""
        return torch.ones(len(y), device=y.device)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns whether all labels of each sample are right, (batch,); outputs may have more dimensions."""
        return ((outputs > 0) == (y > 0.5)).all(-1)

    def example(self, n: int) -> Tensor:
        """Returns targets of n samples."""
        return torch.zeros(n, self.n)


@dataclass(frozen=True)
class Numbers:
    """A target of real numbers: float32 (batch, *shape); a model has as many outputs, in any shape.

    Attributes:
        shape: of one sample's target; (1,) for one number.
        mean, std: in row-major order, by which the data's targets are standardised: models predict (y - mean) / std.
            None means that they are as they were given.
    """

    shape: tuple[int, ...] = (1,)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    kind = "numbers"
    per_sample = 1

    @property
    def words(self) -> str:
        """What is to be said of a sample, in words."""
        return "a number" if self.shape == (1,) else f"{' x '.join(map(str, self.shape))} numbers"

    def in_unit(self, values: Tensor) -> Tensor:
        """Returns outputs of a model, or targets, in the unit in which targets were given, float64 (n, numbers)."""
        found = values.to(torch.float64)
        found = found.flatten(1) if found.dim() > 1 else found[:, None]
        if self.mean is None or self.std is None:
            return found
        mean, std = (torch.tensor(each, dtype=torch.float64, device=values.device) for each in (self.mean, self.std))
        return found * std + mean

    @property
    def outputs(self) -> str:
        """The shape of a model's outputs, in words."""
        return f"(batch, ...), {self.n_outputs} numbers for each sample"

    def fits(self, shape: tuple[int, ...], batch: int) -> bool:
        """Returns whether the outputs of a batch may have this shape."""
        return shape[:1] == (batch,) and math.prod(shape[1:]) == self.n_outputs

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a model's last layer."""
        return math.prod(self.shape)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the squared error of each sample, the mean over its numbers, (batch,)."""
        return (outputs.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean(1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the mean squared error of a batch."""
        return self.losses(outputs, y).mean()

    def loss_sum(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the sum of the samples' squared errors."""
        return self.losses(outputs, y).sum()

    def n_predictions(self, y: Tensor) -> int:
        """Returns the number of samples."""
        return len(y)

    def weights(self, y: Tensor) -> Tensor:
        """Returns the number of predictions of each sample, float32 (batch,)."""
        return torch.ones(len(y), device=y.device)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns False for each sample: a number is not right or wrong."""
        return torch.zeros(y.shape[: y.dim() - len(self.shape)], dtype=torch.bool, device=y.device)

    def example(self, n: int) -> Tensor:
        """Returns targets of n samples."""
        return torch.zeros(n, *self.shape)


@dataclass(frozen=True)
class Tokens:
    """A target that is a sequence of tokens: int64 (batch, length); a model has outputs (batch, length, n).

    Attributes:
        n: number of tokens of the vocabulary.
        length: of a sequence, padding included.
        padding: the token that is not to be predicted; None means that all are.
    """

    n: int
    length: int
    padding: int | None = None
    kind = "tokens"

    @property
    def per_sample(self) -> int:
        """Largest number of predictions of one sample."""
        return self.length

    @property
    def words(self) -> str:
        """What is to be said of a sample, in words."""
        return f"{self.length:,} tokens, each one of {self.n:,}"

    @property
    def outputs(self) -> str:
        """The shape of a model's outputs, in words."""
        return f"(batch, {self.length}, {self.n})"

    def fits(self, shape: tuple[int, ...], batch: int) -> bool:
        """Returns whether the outputs of a batch may have this shape."""
        return shape == (batch, self.length, self.n)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a model's last layer, for each position."""
        return self.n

    @property
    def _unpredicted(self) -> int:
        return IGNORED if self.padding is None else self.padding

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the sum of the cross-entropies of each sequence's tokens, (batch,), without padding."""
        flat = functional.cross_entropy(
            outputs.flatten(0, 1), self._labels(y).flatten(), reduction="none", ignore_index=IGNORED
        )
        return flat.view(y.shape).sum(1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the mean cross-entropy of a batch's tokens, without padding."""
        return self.loss_sum(outputs, y) / max(self.n_predictions(y), 1)

    def loss_sum(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns the sum of the cross-entropies of a batch's tokens, without padding."""
        return self.losses(outputs, y).sum()

    def n_predictions(self, y: Tensor) -> int:
        """Returns the number of tokens that are not padding."""
        return int(self.real(y).sum())

    def weights(self, y: Tensor) -> Tensor:
        """Returns the number of tokens of each sequence that are not padding, float32 (batch,)."""
        return self.real(y).sum(1).to(torch.float32)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns whether each token is the most likely one, (batch, length); False for padding."""
        return (outputs.argmax(-1) == y) & self.real(y)

    def real(self, y: Tensor) -> Tensor:
        """Returns which tokens are to be predicted, (batch, length)."""
        return (y != self._unpredicted) & (y != IGNORED)

    def _labels(self, y: Tensor) -> Tensor:
        return y if self.padding is None else torch.where(y == self.padding, IGNORED, y)

    def example(self, n: int) -> Tensor:
        """Returns targets of n samples, no padding among them."""
        return torch.full((n, self.length), 1 if self.padding == 0 else 0)


Target = Classes | Labels | Numbers | Tokens
"""What a model is to say of a sample."""
