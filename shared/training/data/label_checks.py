"""Targets of several labels: 0 or 1 for each label of each sample, (n, labels)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.sources import LABELS, Arrays, DataMalformed
from shared.training.specs import TargetKind


def as_labels(y: npt.NDArray[Any], n: int, what: str) -> npt.NDArray[np.float32]:
    """Returns targets of several labels as they are stored: float32 of 0 and 1, (n, labels).

    Args:
        y: integers, bools or floats.
        n: number of samples.
        what: the array, for messages.

    Raises:
        DataMalformed: it has another shape, or holds another value than 0 and 1.
    """
    if y.ndim != 2 or len(y) != n or 0 in y.shape:
        why = f"labels are ({n}, labels), 0 or 1 for each label of each sample"
        hint = "; one label of two is a class (kind: classes)" if y.shape == (n,) else ""
        raise DataMalformed(f"{what} has shape {y.shape}; {why}{hint}")
    other = y[~np.isin(y, (0, 1))]
    if len(other):
        some = ", ".join(map(str, np.unique(other)[:3]))
        why = f"{len(other)} values that are neither 0 nor 1, such as {some}"
        raise DataMalformed(f"{what} holds {why}: leave out samples of which a label is not known")
    return y.astype(np.float32)


def kind_of(arrays: Arrays, given: TargetKind | None, where: str) -> TargetKind | None:
    """Returns the kind of the targets as the spec gives it, or `labels` where they can be nothing else.

    Integers of the shape of the samples, which are integers too, are tokens: the next one at each position.

    Raises:
        DataMalformed: they may be labels, classes (one-hot) or tokens, and the spec does not say which.
    """
    y = [np.asarray(arrays[key]) for key in LABELS]
    flags = all(each.ndim == 2 and each.dtype.kind in "biu" and np.isin(each, (0, 1)).all() for each in y)
    x = np.asarray(arrays["train_x"])
    next_tokens = x.dtype.kind in "iu" and x.dtype != np.uint8 and x.shape == y[0].shape and y[0].dtype.kind != "b"
    if given is not None or not flags or next_tokens or any(0 in each.shape for each in y):
        return given
    one_hot = all((each.sum(1) == 1).all() for each in y)
    if y[0].dtype == y[1].dtype == np.bool_ and not one_hot:
        return "labels"
    shape = f"{where}: the targets are 0 and 1, (n, {y[0].shape[1]})"
    if one_hot:
        cause = "one 1 in each row: one-hot classes are saved as their numbers, (n,), by `y.argmax(1)`"
        raise DataMalformed(f"{shape}, {cause}; `data.kind: labels` means several labels for each sample")
    cause = "`data.kind` has to say `labels` (several for each sample), `tokens` (a sequence) or `numbers`"
    raise DataMalformed(f"{shape}: {cause}")
