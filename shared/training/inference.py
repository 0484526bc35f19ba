"""The use of a trained model: outputs of new samples as names of classes with probabilities, numbers or tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from shared.core.user_code import user_code
from shared.training import models
from shared.training.data.dataset import as_batch
from shared.training.description import Numbers
from shared.training.loop import channels_last
from shared.training.preprocessing import Preprocessing

BATCH = 512
"""Samples of a batch, as in evaluations, whose outputs these are to the last bit."""


@dataclass(frozen=True, eq=False)
class Predictions(Sequence[Any]):
    """What a model says of samples, in their order.

    Attributes:
        values: of each sample: the name of its most likely class, or the class's number where classes have no names; of
            labels a tuple of those above one half; a number in the target's unit, or an array of them; of sequences, an
            array with a token for each place.
        probabilities: of each class (or label), float32 (n, classes), in the order of `classes`; None of numbers and
            tokens.
        classes: names of the classes; their numbers as text where they have none.
        target: what is predicted: the column's name, else `prediction`.
    """

    values: npt.NDArray[Any]
    probabilities: npt.NDArray[np.float32] | None
    classes: tuple[str, ...]
    target: str = "prediction"

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.values, dtype=dtype)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields a row for each sample: what is predicted, then the probability of each class (`p_NAME`)."""
        for at, value in enumerate(self.values):
            row = dict(self._cells(value))
            if self.probabilities is not None:
                chances = zip(self.classes, self.probabilities[at].tolist(), strict=True)
                row |= {f"p_{name}": chance for name, chance in chances}
            yield row

    def _cells(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, tuple):
            yield self.target, "; ".join(value)
            return
        if not isinstance(value, np.ndarray):
            yield self.target, value.item() if isinstance(value, np.generic) else value
            return
        for at, each in enumerate(value.ravel().tolist()):
            yield f"{self.target}_{at}", each

    def to_pandas(self) -> Any:
        """The rows as a `DataFrame`; needs pandas."""
        import pandas as pd

        return pd.DataFrame(list(self.rows()))


class TrainedModel:
    """A trained model.

    Args:
        preprocessing: of the run that trained it.
        state: its tensors by name.

    Raises:
        UnknownName, BadInput: the module cannot be built here, or the tensors are of another one.
    """

    def __init__(self, preprocessing: Preprocessing, state: Mapping[str, Tensor]) -> None:
        self.preprocessing, self._state = preprocessing, state

    @cached_property
    def module(self) -> nn.Module:
        """The module with the trained tensors, in evaluation mode; it takes batches that are preprocessed."""
        made: nn.Module = models.built(self.preprocessing.design, 0)
        models.write_state(made, self._state)
        return made.eval()

    def batch(self, x: npt.NDArray[Any]) -> Tensor:
        """Returns samples as the module takes them: uint8 images, float32 numbers or int64 indices, (n, ...)."""
        made, transform = as_batch(x, self.preprocessing.normalisation), self.preprocessing.transform
        return made if transform is None else transform(made)

    def outputs(self, x: npt.NDArray[Any]) -> Tensor:
        """Returns the module's outputs of samples, as they are stored, in the order of the samples."""
        module = self.module
        laid_out, found = channels_last(module), list[Tensor]()
        with torch.no_grad(), user_code(f"the model {self.preprocessing.module.name}"):
            for begin in range(0, len(x), BATCH):
                found.append(module(laid_out(self.batch(x[begin : begin + BATCH]))))
        return torch.cat(found)

    def predict(self, x: npt.NDArray[Any]) -> Predictions:
        """Returns what the model says of samples, as they are stored; of classes the likeliest, with probabilities."""
        outputs = self.outputs(x)
        target, reading = self.preprocessing.description.target, self.preprocessing.reading
        name, found = reading.target.name if reading.target is not None else "prediction", self.finished(outputs)
        if target.kind == "numbers":
            numbers = found.reshape(len(found), -1).numpy()
            return Predictions(numbers[:, 0] if numbers.shape[1] == 1 else numbers, None, (), name)
        classes = reading.classes or tuple(map(str, range(found.shape[-1])))
        if target.kind == "labels":
            held = (
                tuple(each for each, has in zip(classes, row, strict=True) if has) for row in (outputs > 0).tolist()
            )
            return Predictions(np.fromiter(held, dtype=object, count=len(found)), found.numpy(), classes, name)
        likeliest = outputs.argmax(-1).numpy()
        values = np.array(reading.classes, dtype=object)[likeliest] if reading.classes else likeliest
        return Predictions(values, None if target.kind == "tokens" else found.numpy(), classes, name)

    def finished(self, outputs: Tensor) -> Tensor:
        """Returns outputs as probabilities of classes, or numbers in the target's unit; of tokens, as they are."""
        outputs, target = outputs.to(torch.float32), self.preprocessing.description.target
        if isinstance(target, Numbers) and target.mean is not None:
            return target.in_unit(outputs)
        kind = target.kind
        return outputs.softmax(-1) if kind == "classes" else outputs.sigmoid() if kind == "labels" else outputs
