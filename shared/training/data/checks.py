"""Checks of a data set's arrays, and the description that follows from them.

A source gives arrays by the keys of `KEYS`. Dtypes decide what they are: `uint8` samples are images, other integers are
indices, floats are numbers; integer targets are classes, or tokens if they are sequences, and float targets numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.label_checks import as_labels, kind_of
from shared.training.data.sources import (
    GROUPS,
    IMAGES,
    LABELS,
    MASKS,
    REQUIRED,
    WRITERS,
    Arrays,
    DataMalformed,
)
from shared.training.description import Classes, Labels, Numbers, Sample, Target, Tokens
from shared.training.specs import TargetKind

LARGEST_VOCABULARY = 1_000_000
"""Most classes of a target, and most values of indices: a model has a row of weights for each."""
LARGEST_TARGET = 1_000_000
"""Most numbers of one sample's target."""


@dataclass(frozen=True)
class Description:
    """What a data set's samples are, and its targets."""

    sample: Sample
    target: Target

    def as_json(self) -> dict[str, Any]:
        """Returns the description as a JSON object."""
        return {"sample": vars(self.sample), "target": {"kind": self.target.kind, **vars(self.target)}}

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> Description:
        """Returns the description that `as_json` has written."""
        kinds: dict[str, Any] = {"classes": Classes, "labels": Labels, "numbers": Numbers, "tokens": Tokens}
        made, target = dict(raw["sample"]), dict(raw["target"])
        kind = kinds[target.pop("kind")]
        if "shape" in target:
            target["shape"] = tuple(target["shape"])
        return cls(Sample(**{**made, "shape": tuple(made["shape"])}), kind(**target))


def checked_images(arrays: Arrays, n_classes: int, where: str) -> tuple[Arrays, Description]:
    """Returns images of a known number of classes, with labels and writers as int64, and their description.

    Raises:
        DataMalformed: an array is missing or wrong; the message names the key.
    """
    _check_keys(arrays, where)
    for key in IMAGES:
        _check_images(arrays[key], f"{where}: {key}")
    _check_same_shape(arrays, where, "images")
    for images, *numbers in zip(IMAGES, LABELS, WRITERS, strict=True):
        for key in numbers:
            if key in arrays:
                _check_numbers(arrays[key], len(arrays[images]), f"{where}: {key}")
    _check_range(arrays, n_classes, where)
    found = {key: array if key in IMAGES else array.astype(np.int64) for key, array in arrays.items()}
    return found, of_images(found["train_x"], n_classes)


def of_images(x: npt.NDArray[Any], n_classes: int) -> Description:
    """Returns the description of images, uint8 (n, height, width[, channels]), and their classes."""
    return Description(_sample(x), Classes(n_classes))


def checked(arrays: Arrays, kind: TargetKind | None, where: str) -> tuple[Arrays, Description]:
    """Returns arrays of any kind in the dtypes in which they are stored, and their description.

    Args:
        arrays: by the keys of `KEYS`.
        kind: what the targets are; None means what their dtype says.
        where: the data set, for messages.

    Raises:
        DataMalformed: an array is missing or wrong; the message names the key.
    """
    _check_keys(arrays, where)
    found: Arrays = {key: _as_samples(arrays[key], f"{where}: {key}") for key in IMAGES}
    _check_same_shape(found, where, "samples")
    if found["train_x"].dtype != found["test_x"].dtype:
        raise DataMalformed(f"{where}: train_x is {found['train_x'].dtype}, test_x is {found['test_x'].dtype}")
    vocabulary, padding = _number(arrays, "vocabulary", where), _number(arrays, "padding", where)
    kind = kind_of(arrays, kind, where)
    for samples, labels, group, writer, mask in zip(IMAGES, LABELS, GROUPS, WRITERS, MASKS, strict=True):
        n = len(found[samples])
        found[labels] = _as_targets(arrays[labels], kind, n, f"{where}: {labels}")
        for key in (group, writer):
            if key in arrays:
                _check_numbers(arrays[key], n, f"{where}: {key}")
                found[group] = arrays[key].astype(np.int64)
        if mask in arrays:
            _mask(found, samples, labels, _as_mask(arrays[mask], found[samples], f"{where}: {mask}"), padding, where)
    if (MASKS[0] in arrays) != (MASKS[1] in arrays):
        raise DataMalformed(f"{where}: {MASKS[0]} and {MASKS[1]} go together, one is missing")
    sample = _sample(found["train_x"], _vocabulary(found, vocabulary, padding, where), padding)
    target = _target(found, sample, kind, _number(arrays, "n_classes", where), padding, where)
    _keep_normalisation(found, arrays, sample, masked=MASKS[0] in arrays, where=where)
    return found, Description(sample, target)


# ---- samples


def _check_keys(arrays: Arrays, where: str) -> None:
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        raise DataMalformed(f"{where}: key {', '.join(missing)} is missing (needed: {', '.join(REQUIRED)})")


def _check_same_shape(arrays: Arrays, where: str, what: str) -> None:
    if arrays["train_x"].shape[1:] != arrays["test_x"].shape[1:]:
        shapes = " and ".join(str(arrays[key].shape[1:]) for key in IMAGES)
        raise DataMalformed(f"{where}: train_x and test_x have {what} of different shapes, {shapes}")


def _check_images(x: npt.NDArray[Any], what: str) -> None:
    if x.dtype != np.uint8:
        raise DataMalformed(f"{what} has dtype {x.dtype}, expected uint8 (0..255)")
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] not in (1, 3)):
        raise DataMalformed(f"{what} has shape {x.shape}, expected (n, height, width) or (..., 1 or 3 channels)")
    if 0 in x.shape:
        raise DataMalformed(f"{what} is empty: shape {x.shape}")


def _as_samples(x: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """Returns samples as uint8 (images), float32 or int64."""
    if x.dtype == np.uint8:
        try:
            _check_images(x, what)
        except DataMalformed as error:
            raise DataMalformed(f"{error.detail}; save what is no image as float32, or as int64 indices") from None
        return x
    if x.ndim < 2 or 0 in x.shape:
        raise DataMalformed(f"{what} has shape {x.shape}, expected (n, ...) with at least one sample and one value")
    if np.issubdtype(x.dtype, np.floating):
        return _finite(x, what)
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(np.int64)
    raise DataMalformed(f"{what} has dtype {x.dtype}, expected uint8 (images), floats or integers (indices)")


def _finite(x: npt.NDArray[Any], what: str) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        floats = x.astype(np.float32)
    if not np.isfinite(floats).all():
        raise DataMalformed(f"{what} holds NaN, infinity, or numbers beyond float32")
    return floats


def _sample(x: npt.NDArray[Any], vocabulary: int | None = None, padding: int | None = None) -> Sample:
    if x.dtype == np.uint8:
        height, width, *channels = x.shape[1:]
        return Sample((channels[0] if channels else 1, height, width), images=True)
    if x.dtype == np.int64:
        return Sample(x.shape[1:], "int64", vocabulary=vocabulary, padding=padding)
    return Sample(x.shape[1:])


def _vocabulary(arrays: Arrays, given: int | None, padding: int | None, where: str) -> int | None:
    """Returns the number of values of integer samples and their padding; None for other samples."""
    if arrays["train_x"].dtype != np.int64:
        return None
    low = min(int(arrays[key].min()) for key in IMAGES)
    high = max(padding or 0, *(int(arrays[key].max()) for key in IMAGES))
    if given is None and _tokens(arrays):  # a next token may be one that no sample has
        high = max(high, *(int(arrays[key].max()) for key in LABELS))
    most = LARGEST_VOCABULARY if given is None else given
    if low < 0 or high >= most:
        raise DataMalformed(f"{where}: samples have indices {low}..{high}, expected 0..{most - 1}")
    return high + 1 if given is None else given


# ---- masks


def _as_mask(mask: npt.NDArray[Any], x: npt.NDArray[Any], what: str) -> npt.NDArray[np.bool_]:
    if x.dtype == np.uint8 or mask.shape != x.shape[:2]:
        raise DataMalformed(f"{what} has shape {mask.shape}; masks are (n, length), for samples (n, length, ...)")
    if not np.isin(mask, (0, 1)).all():
        raise DataMalformed(f"{what} holds other values than 0 (padding) and 1")
    return mask.astype(np.bool_)


def _mask(
    arrays: Arrays, samples: str, labels: str, real: npt.NDArray[np.bool_], padding: int | None, where: str
) -> None:
    """Writes a mask into the samples: indices get the padding value, numbers one more channel, which is the mask."""
    x, y = arrays[samples], arrays[labels]
    if x.dtype == np.int64:
        if padding is None:
            raise DataMalformed(f"{where}: a mask of indices needs the key padding, the index of padded positions")
        arrays[samples] = np.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), x, padding)
        if y.dtype == np.int64 and y.shape == real.shape:
            arrays[labels] = np.where(real, y, padding)
        return
    channels = x[..., None] if x.ndim == 2 else x
    shown = real.reshape(*real.shape, *[1] * (channels.ndim - 2)).astype(np.float32)
    last = np.broadcast_to(shown, (*channels.shape[:-1], 1))
    arrays[samples] = np.concatenate([channels * shown, last], axis=-1)


# ---- targets


def _as_targets(y: npt.NDArray[Any], kind: TargetKind | None, n: int, what: str) -> npt.NDArray[Any]:
    """Returns targets as int64 (classes, tokens) or float32, (n, ...) with at least one number each."""
    if kind == "labels":
        return as_labels(y, n, what)
    integers = np.issubdtype(y.dtype, np.integer)
    if not integers and not np.issubdtype(y.dtype, np.floating):
        raise DataMalformed(f"{what} has dtype {y.dtype}, expected integers (classes, tokens) or floats (numbers)")
    if y.ndim < 1 or len(y) != n or 0 in y.shape:
        raise DataMalformed(f"{what} has shape {y.shape}, expected ({n}, ...), one target for each sample")
    if kind == "numbers" or (kind is None and not integers):
        floats = _finite(y, what)
        return floats[:, None] if y.ndim == 1 else floats
    if not integers:
        raise DataMalformed(f"{what} has dtype {y.dtype}, {kind} need integers from 0")
    shape = {"classes": 1, "tokens": 2}.get(kind or "", y.ndim)
    if y.ndim not in (1, 2) or y.ndim != shape:
        raise DataMalformed(f"{what} has shape {y.shape}, expected (n,) for classes or (n, length) for tokens")
    return y.astype(np.int64)


def _tokens(arrays: Arrays) -> bool:
    return arrays["train_y"].dtype == np.int64 and arrays["train_y"].ndim == 2


def _target(
    arrays: Arrays, sample: Sample, kind: TargetKind | None, n_classes: int | None, padding: int | None, where: str
) -> Target:
    y = arrays["train_y"]
    if y.shape[1:] != arrays["test_y"].shape[1:] or y.dtype != arrays["test_y"].dtype:
        raise DataMalformed(f"{where}: train_y and test_y differ: {y.dtype} {y.shape[1:]} and "
                            f"{arrays['test_y'].dtype} {arrays['test_y'].shape[1:]}")  # fmt: skip
    if y.dtype != np.int64:
        if math.prod(y.shape[1:]) > LARGEST_TARGET:
            raise DataMalformed(f"{where}: targets of {math.prod(y.shape[1:])} numbers, at most {LARGEST_TARGET}")
        return Labels(y.shape[1]) if kind == "labels" else Numbers(y.shape[1:])
    n = (sample.vocabulary if _tokens(arrays) else None) if n_classes is None else n_classes
    if n is None:
        n = max(int(arrays[key].max()) for key in LABELS) + 1
    if not 1 <= n <= LARGEST_VOCABULARY:
        raise DataMalformed(f"{where}: {n} classes, expected 1 to {LARGEST_VOCABULARY}")
    _check_range(arrays, n, where)
    return Tokens(n, y.shape[1], padding) if _tokens(arrays) else Classes(n)


def _check_range(arrays: Arrays, n_classes: int, where: str) -> None:
    for key in LABELS:
        low, high = int(arrays[key].min()), int(arrays[key].max())
        if low < 0 or high >= n_classes:
            raise DataMalformed(f"{where}: {key} has labels {low}..{high}, expected 0..{n_classes - 1}")


def _check_numbers(values: npt.NDArray[Any], n: int, what: str) -> None:
    if not np.issubdtype(values.dtype, np.integer):
        raise DataMalformed(f"{what} has dtype {values.dtype}, expected int64")
    if values.shape != (n,):
        raise DataMalformed(f"{what} has shape {values.shape}, expected ({n},), one for each sample")


# ---- numbers of the whole data set


def _number(arrays: Arrays, key: str, where: str) -> int | None:
    if key not in arrays:
        return None
    value = arrays[key]
    if value.shape != () or not np.issubdtype(value.dtype, np.integer) or not 0 <= value < LARGEST_VOCABULARY:
        raise DataMalformed(f"{where}: {key} is one integer from 0 to {LARGEST_VOCABULARY - 1}, not {value!r:.60}")
    return int(value)


def _keep_normalisation(into: Arrays, arrays: Arrays, sample: Sample, *, masked: bool, where: str) -> None:
    """Keeps `mean` and `std` as float32 that broadcast to a sample; the channel of a mask stays as it is."""
    if "mean" not in arrays and "std" not in arrays:
        return
    if "mean" not in arrays or "std" not in arrays:
        raise DataMalformed(f"{where}: mean and std go together, one is missing")
    if sample.dtype == "int64":
        raise DataMalformed(f"{where}: mean and std are for numbers; these samples are indices")
    values = {key: _finite(np.asarray(arrays[key], dtype=np.float64), f"{where}: {key}") for key in ("mean", "std")}
    if not (values["std"] > 0).all():
        raise DataMalformed(f"{where}: std holds values that are not above 0")
    for key, neutral in (("mean", 0.0), ("std", 1.0)):
        value = values[key]
        if sample.images and value.ndim == 1:
            value = value[:, None, None]
        if masked:
            width = sample.shape[-1] - 1
            rest = value.shape[:-1]
            value = np.concatenate(
                [np.broadcast_to(value, (*rest, width)), np.full((*rest, 1), neutral, np.float32)], axis=-1
            )
        try:
            fits = np.broadcast_shapes(value.shape, sample.shape) == sample.shape
        except ValueError:
            fits = False
        if not fits:
            raise DataMalformed(f"{where}: {key} has shape {arrays[key].shape}, a sample {sample.shape}")
        into[key] = value.astype(np.float32)
