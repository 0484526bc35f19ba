"""Checks of a data set's arrays, and the description that follows from them.

A source gives arrays by the keys of `KEYS`. Their dtypes say what samples are: `uint8` are images, other integers are
indices, floats are numbers. What targets are is told in `shared.training.data.targets`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.layouts import (
    channels_last,
    check_has_channels,
    images_channels_last,
    statistic_channels_last,
)
from shared.training.data.masks import apply_masks
from shared.training.data.plain import named_groups, plain
from shared.training.data.precision import before_float32
from shared.training.data.reading import Read, Reading, listed
from shared.training.data.sources import (
    IMAGES,
    KEYS,
    LABELS,
    MASKS,
    REQUIRED,
    WRITERS,
    Arrays,
    DataMalformed,
)
from shared.training.data.targets import Targets, read_targets
from shared.training.description import Classes, Labels, Numbers, Sample, Target, Tokens
from shared.training.specs import Layout, TargetKind

LARGEST_VOCABULARY = 1_000_000
"""Most classes of a target, and most values of indices: a model has a row of weights for each."""
LARGE = 100
"""Numbers of samples from which on a note says that they are not normalised."""
SCALE = ("mean", "std")
"""The attributes of numbers that are standardised, which a description has only then."""
LARGEST_TARGET = 1_000_000
"""Most numbers of one sample's target."""


@dataclass(frozen=True)
class Description:
    """What a data set's samples are, and its targets."""

    sample: Sample
    target: Target

    def as_json(self) -> dict[str, Any]:
        """Returns the description as a JSON object."""
        sample = {key: value for key, value in vars(self.sample).items() if key != "layout" or value is not None}
        target = {key: value for key, value in vars(self.target).items() if key not in SCALE or value is not None}
        return {"sample": sample, "target": {"kind": self.target.kind, **target}}

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> Description:
        """Returns the description that `as_json` has written."""
        kinds: dict[str, Any] = {"classes": Classes, "labels": Labels, "numbers": Numbers, "tokens": Tokens}
        made, target = dict(raw["sample"]), dict(raw["target"])
        kind = kinds[target.pop("kind")]
        target |= {key: tuple(target[key]) for key in ("shape", *SCALE) if key in target}
        return cls(Sample(**{**made, "shape": tuple(made["shape"])}), kind(**target))


def checked_images(arrays: Arrays, n_classes: int, where: str) -> tuple[Arrays, Description]:
    """Returns images of a known number of classes, with labels and writers as int64, and their description.

    Raises:
        DataMalformed: an array is missing or wrong; the message names the key.
    """
    _check_keys(arrays, where)
    arrays = {key: each.reshape(-1) if _column(key, each) else each for key, each in arrays.items()}
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


def _column(key: str, y: npt.NDArray[Any]) -> bool:
    """Returns whether an array holds labels as a column, (n, 1)."""
    return key in LABELS and y.ndim == 2 and y.shape[1] == 1


def of_images(x: npt.NDArray[Any], n_classes: int) -> Description:
    """Returns the description of images, uint8 (n, height, width[, channels]), and their classes."""
    return Description(_sample(x), Classes(n_classes))


def checked(
    source: Read, kind: TargetKind | None, where: str, layout: Layout | None = None
) -> tuple[Arrays, Description, Reading]:
    """Returns arrays of any kind in the dtypes in which they are stored, their description, and how they were read.

    Args:
        source: arrays by the keys of `KEYS`, and what the source says of them.
        kind: what the targets are; None means what their type and values say.
        where: the data set, for messages.
        layout: which axis of the samples holds their channels; None means that the arrays are as models get them.

    Raises:
        DataMalformed: an array is missing or wrong, or may be read in two ways; the message names the key.
    """
    _check_keys(source.arrays, where)
    arrays = {key: plain(source.arrays[key], f"{where}: {key}") for key in KEYS if key in source.arrays}
    masked, reading = MASKS[0] in arrays, source.reading
    arrays, scale = before_float32(arrays, layout, where)
    found, notes = _samples(arrays, layout, where)
    vocabulary, padding = _number(arrays, "vocabulary", where), _number(arrays, "padding", where)
    n_classes = _number(arrays, "n_classes", where)
    y, x = (arrays["train_y"], arrays["test_y"]), (found["train_x"], found["test_x"])
    targets = read_targets(y, x, _said(kind, y, reading), n_classes, where, reading.classes)
    found["train_y"], found["test_y"] = targets.arrays
    groups, group_names = named_groups(arrays, where)
    found |= groups
    apply_masks(found, arrays, padding, layout, where)
    sample = _sample(found["train_x"], _vocabulary(found, vocabulary, padding, where), padding)
    sample = replace(sample, layout=_layout_of(sample, layout, masked))
    target = _target(found, sample, targets, n_classes, padding, where)
    _keep_normalisation(found, arrays, sample, layout, masked=masked, where=where)
    notes += targets.notes + _unknown_keys(source.arrays) + _not_normalised(found, sample)
    known = {"classes": reading.classes or targets.classes, "groups": reading.groups or group_names}
    told = {"scale": scale, "notes": reading.notes + notes}
    return found, Description(sample, target), reading.model_copy(update={**known, **told})


def _said(kind: TargetKind | None, y: Sequence[npt.NDArray[Any]], reading: Reading) -> TargetKind | None:
    """Returns what the targets are as the spec says it, or the source: a table's target is settled with its column."""
    if kind is not None or reading.target is None:
        return kind
    return "numbers" if y[0].dtype.kind == "f" else "classes"


def _unknown_keys(arrays: Arrays) -> tuple[str, ...]:
    unknown = sorted(set(arrays) - set(KEYS))
    return (f"keys that are not read: {listed(unknown)}",) if unknown else ()


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


def _samples(arrays: Arrays, layout: Layout | None, where: str) -> tuple[Arrays, tuple[str, ...]]:
    """Returns samples as they are stored, but for their masks, and what was done with them."""
    found: Arrays = {key: _as_samples(arrays[key], layout, f"{where}: {key}") for key in IMAGES}
    if found["train_x"].dtype != found["test_x"].dtype:
        raise DataMalformed(f"{where}: train_x is {found['train_x'].dtype}, test_x is {found['test_x'].dtype}")
    _check_same_shape(found, where, "samples")
    x, given = found["train_x"], arrays["train_x"]
    if x.dtype == np.uint8:
        moved = x.shape != given.shape and layout is None
        return found, (f"train_x of shape {given.shape} has its channels first",) if moved else ()
    check_has_channels(x, layout, MASKS[0] in arrays, f"{where}: train_x")
    return {key: channels_last(each, layout) for key, each in found.items()}, ()


def _layout_of(sample: Sample, layout: Layout | None, masked: bool) -> Layout | None:
    if sample.images or sample.dtype == "int64" or len(sample.shape) < 2:
        return None
    return "channels_first" if layout is not None else "channels_last" if masked else None


def _not_normalised(found: Arrays, sample: Sample) -> tuple[str, ...]:
    """Returns a note of numbers so large that training hardly works with them as they are."""
    x = found["train_x"]
    if sample.images or sample.dtype == "int64" or "mean" in found or np.abs(x).max() < LARGE:
        return ()
    return (f"train_x holds numbers from {x.min():g} to {x.max():g}, not normalised (keys mean and std)",)


def _as_samples(x: npt.NDArray[Any], layout: Layout | None, what: str) -> npt.NDArray[Any]:
    """Returns samples as uint8 (images), float32 or int64."""
    if x.dtype == np.uint8:
        x = images_channels_last(x, layout)
        try:
            _check_images(x, what)
        except DataMalformed as error:
            raise DataMalformed(f"{error.detail}; save what is no image as float32, or as int64 indices") from None
        return x
    if x.ndim < 2 or 0 in x.shape:
        raise DataMalformed(f"{what} has shape {x.shape}, expected (n, ...) with at least one sample and one value")
    if np.issubdtype(x.dtype, np.floating):
        return _finite(x, what)
    if x.dtype.kind in "iu":
        return x.astype(np.int64)
    hint = "; save them as float32" if x.dtype.kind in "bmM" else ""
    raise DataMalformed(f"{what} has dtype {x.dtype}, expected uint8 (images), floats or integers (indices){hint}")


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
        what = f"samples have indices {low}..{high}, expected 0..{most - 1}"
        raise DataMalformed(f"{where}: {what} (integers other than uint8 are indices: save numbers as floats)")
    return high + 1 if given is None else given


# ---- targets


def _tokens(arrays: Arrays) -> bool:
    return arrays["train_y"].dtype == np.int64 and arrays["train_y"].ndim == 2


def _target(
    arrays: Arrays, sample: Sample, targets: Targets, n_classes: int | None, padding: int | None, where: str
) -> Target:
    y = arrays["train_y"]
    if targets.kind in ("numbers", "labels"):
        if math.prod(y.shape[1:]) > LARGEST_TARGET:
            raise DataMalformed(f"{where}: targets of {math.prod(y.shape[1:])} numbers, at most {LARGEST_TARGET}")
        return Labels(y.shape[1]) if targets.kind == "labels" else Numbers(y.shape[1:])
    n = targets.n_classes if targets.kind == "classes" else n_classes or sample.vocabulary
    if n is None:
        n = max(int(arrays[key].max()) for key in LABELS) + 1
    if not 1 <= n <= LARGEST_VOCABULARY:
        raise DataMalformed(f"{where}: {n} classes, expected 1 to {LARGEST_VOCABULARY}")
    _check_range(arrays, n, where)
    return Tokens(n, y.shape[1], padding) if targets.kind == "tokens" else Classes(n)


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


def _keep_normalisation(
    into: Arrays, arrays: Arrays, sample: Sample, layout: Layout | None, *, masked: bool, where: str
) -> None:
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
        if layout is not None and not sample.images:
            value = statistic_channels_last(value, layout, len(sample.shape))
        if masked:
            width = sample.shape[-1 if layout is None else 0] - 1
            rest = value.shape[:-1]
            value = np.concatenate(
                [np.broadcast_to(value, (*rest, width)), np.full((*rest, 1), neutral, np.float32)], axis=-1
            )
        if layout is not None and not sample.images and value.ndim:
            value = np.moveaxis(value.reshape((1,) * (len(sample.shape) - value.ndim) + value.shape), -1, 0)
        try:
            fits = np.broadcast_shapes(value.shape, sample.shape) == sample.shape
        except ValueError:
            fits = False
        if not fits:
            raise DataMalformed(f"{where}: {key} has shape {arrays[key].shape}, a sample {sample.shape}")
        into[key] = value.astype(np.float32)
