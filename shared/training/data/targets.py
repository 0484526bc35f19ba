"""What targets are: told by their type and values, or by the spec; what may be read in two ways is asked.

Training and test targets are read together, so that a class has one number in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.reading import listed
from shared.training.data.sources import LABELS, DataMalformed
from shared.training.specs import TargetKind

FEW = 20
"""Up to so many different whole numbers may as well be classes: the spec has to say it."""
MISSING = frozenset({"", "nan", "<na>", "nat"})
"""Texts, in small letters, that stand for a label that is not known."""
Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""The targets of the training samples, and those of the test samples."""


@dataclass(frozen=True)
class Targets:
    """Targets as they are stored.

    Attributes:
        arrays: int64 classes (n,) or tokens (n, length), or float32 numbers or labels (n, ...).
        kind: what they are.
        n_classes: of classes; None where the spec or the largest token says it.
        classes: names of the classes, if they are not their numbers.
        notes: how they were read, where their type does not say it.
    """

    arrays: Pair
    kind: TargetKind
    n_classes: int | None = None
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_targets(
    y: Pair, x: Pair, kind: TargetKind | None, n_classes: int | None, where: str, names: Sequence[str] = ()
) -> Targets:
    """Returns targets as they are stored, and what they are.

    Args:
        y: integers, floats, bools or texts.
        x: the samples as they are stored.
        kind: what the spec says that the targets are; None means what their type and values say.
        n_classes: number of classes, if the data say it.
        where: the data set, for messages.
        names: of the classes, if the source says them.

    Raises:
        DataMalformed: they have a wrong shape or value, or may be read in two ways; the message names the key.
    """
    for key, each, samples in zip(LABELS, y, x, strict=True):
        if each.ndim < 1 or len(each) != len(samples) or 0 in each.shape:
            wanted = f"expected ({len(samples)}, ...), one target for each sample"
            raise DataMalformed(f"{where}: {key} has shape {each.shape}, {wanted}")
    y = _alike(y, kind, where)
    what = f"{where}: {LABELS[0]}"
    if y[0].dtype.kind == "U":
        return _texts(y, kind, what)
    found = kind or _kind_of(y, x, where)
    if found == "numbers":
        soft = kind is None and all(map(_shares, y))
        note = (
            f"{LABELS[0]} holds shares that sum to 1, taken as numbers (kind); classes are whole numbers: their argmax"
        )
        return Targets(_each(y, _numbers, where), "numbers", notes=(note,) if soft else ())
    if found == "labels":
        return Targets(_each(y, _labels, where), "labels")
    whole = _each(y, _whole, where)
    if found == "tokens":
        return Targets(_each(whole, _sequences, where), "tokens")
    return _classes(whole, kind is None, n_classes or len(names) or None, where, tuple(names))


def _each(y: Pair, turn: Any, where: str) -> Pair:
    train, test = (turn(each, f"{where}: {key}") for key, each in zip(LABELS, y, strict=True))
    return train, test


def _alike(y: Pair, kind: TargetKind | None, where: str) -> Pair:
    """Returns both parts in one shape, if their types mean the same: (n,) and (n, 1) are one value for each sample."""
    families = {"i" if each.dtype.kind == "u" else each.dtype.kind for each in y}
    if odd := families - set("bifU"):
        wrong = next((key, each.dtype) for key, each in zip(LABELS, y, strict=True) if each.dtype.kind in odd)
        wanted = "integers or texts (classes, tokens) or floats (numbers)"
        raise DataMalformed(f"{where}: {wrong[0]} has dtype {wrong[1]}, expected {wanted}")
    if len({each.dtype == np.uint64 for each in y}) > 1:  # numpy compares them as floats, which round
        huge = max(int(each.max()) for each in y if each.dtype == np.uint64)
        raise DataMalformed(f"{where}: {LABELS[0]} or {LABELS[1]} holds {huge}, beyond int64: save such ids as texts")
    same = y[0].shape[1:] == y[1].shape[1:]
    single = all(each.size == len(each) for each in y)
    if not (same or single) or (len(families) > 1 and (kind is None or "U" in families)):
        types = " and ".join(f"{each.dtype} {each.shape[1:]}" for each in y)
        raise DataMalformed(f"{where}: train_y and test_y differ: {types}; save both alike")
    return y if same else (y[0].reshape(-1), y[1].reshape(-1))


# ---- what targets are, if the spec does not say it


def _kind_of(y: Pair, x: Pair, where: str) -> TargetKind:
    """Returns what targets of numbers or bools are.

    Raises:
        DataMalformed: they may be several things.
    """
    real, shape = y[0].dtype.kind == "f", y[0].shape
    if real:
        for key, each in zip(LABELS, y, strict=True):
            _numbers(each, f"{where}: {key}")
    what = f"{where}: {LABELS[0]}"
    if shape == x[0].shape and x[0].dtype == np.int64 and y[0].dtype.kind in "iu" and len(shape) == 2:
        return "tokens"  # the next one at each position
    if y[0].size == len(y[0]):
        return _numbers_or_classes(y, what) if real else "classes"
    flags = len(shape) == 2 and all(bool(np.isin(each, (0, 1)).all()) for each in y)
    one_hot = flags and all(bool((each.sum(1) == 1).all()) for each in y)
    rows = f"{what} has shape {shape}, rows of 0 and 1"
    if real and one_hot:
        raise _asked(f"{rows} with a single 1", "classes (one-hot)", "labels", "numbers")
    if flags and not one_hot and y[0].dtype.kind != "b":
        raise _asked(
            rows, "labels (any number of them a sample)", *(() if real else ("tokens (a sequence)",)), "numbers"
        )
    if real:
        return "numbers"
    if flags:
        return "classes" if one_hot else "labels"
    return "tokens"


def _numbers_or_classes(y: Pair, what: str) -> TargetKind:
    values = np.unique(np.concatenate([each.ravel() for each in y]))
    whole = bool((values == np.round(values)).all())
    if whole and (len(values) <= FEW or _consecutive(values, len(y[0]) + len(y[1]))):
        many = f"{what} holds {len(values)} different whole numbers ({values[0]:g} to {values[-1]:g}) as {y[0].dtype}"
        raise _asked(many, "classes", "numbers")
    return "numbers"


def _consecutive(values: npt.NDArray[Any], n: int) -> bool:
    """Returns whether values are all the whole numbers from 0 or 1 on, each of about two samples at least."""
    return bool(values[0] in (0, 1) and values[-1] - values[0] == len(values) - 1 and 2 * len(values) <= n)


def _asked(cause: str, *kinds: str) -> DataMalformed:
    return DataMalformed(f"{cause}: data.kind has to say whether they are {', '.join(kinds[:-1])} or {kinds[-1]}")


# ---- arrays


def _numbers(y: npt.NDArray[Any], what: str) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        floats = y.astype(np.float32)
    if not np.isfinite(floats).all():
        raise DataMalformed(f"{what} holds NaN, infinity, or numbers beyond float32")
    return floats[:, None] if y.ndim == 1 else floats


def _labels(y: npt.NDArray[Any], what: str) -> npt.NDArray[np.float32]:
    """Returns targets of several labels: float32 of 0 and 1, (n, labels)."""
    if y.ndim != 2:
        why = f"labels are ({len(y)}, labels), 0 or 1 for each label of each sample"
        hint = "; one label of two is a class (kind: classes)" if y.ndim == 1 else ""
        raise DataMalformed(f"{what} has shape {y.shape}; {why}{hint}")
    other = y[~np.isin(y, (0, 1))]
    if len(other):
        some = ", ".join(map(str, np.unique(other)[:3]))
        why = f"{len(other)} values that are neither 0 nor 1, such as {some}"
        raise DataMalformed(f"{what} holds {why}: leave out samples of which a label is not known")
    return y.astype(np.float32)


def _whole(y: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """Returns classes or tokens as integers, floats included."""
    if y.dtype.kind != "f":
        return y
    odd = y[~np.isfinite(y) | (y != np.round(y)) | (np.abs(y) > 2**53)]
    if len(odd):
        soft = "; of shares of classes save the largest's number (argmax)" if _shares(y) else ""
        raise DataMalformed(f"{what} holds {odd.flat[0]:g}; classes and tokens are whole numbers or texts{soft}")
    return y.astype(np.int64)


def _shares(y: npt.NDArray[Any]) -> bool:
    """Returns whether rows are shares that sum to 1, as those of soft labels, and not one-hot."""
    if y.dtype.kind != "f" or y.ndim != 2 or y.shape[1] < 2 or not (y >= 0).all():
        return False
    return bool(np.allclose(y.sum(1, dtype=np.float64), 1, atol=1e-3)) and not np.isin(y, (0, 1)).all()


def _sequences(y: npt.NDArray[Any], what: str) -> npt.NDArray[np.int64]:
    if y.ndim != 2:
        raise DataMalformed(f"{what} has shape {y.shape}, expected (n,) for classes or (n, length) for tokens")
    return y.astype(np.int64)


# ---- classes


def _classes(whole: Pair, free: bool, n_classes: int | None, where: str, known: tuple[str, ...]) -> Targets:
    """Returns classes, numbered from 0: as they are if most numbers from 0 occur, else by their order.

    Args:
        whole: integers or bools, one for each sample, or one-hot rows.
        free: whether the spec says nothing, so that numbers that hardly are classes are asked about.
        n_classes: number of classes, if the data say it; labels are then as they are.
        where: the data set, for messages.
        known: names of the classes, if the source says them.
    """
    y, columns, notes = _one_each(whole, where)
    n_classes, what = n_classes or columns, f"{where}: {LABELS[0]}"
    values, codes = np.unique(np.concatenate(y), return_inverse=True)
    if values.dtype.kind == "b":
        return _named(y, n_classes or 2, ("False", "True"), notes)
    if n_classes is not None:
        _check_range(values, n_classes, what)
        return _named(y, n_classes, known, notes)
    if free and len(values) > FEW and _hardly_classes(values, len(codes)):
        many = f"{what} holds {len(values):,} different whole numbers ({values[0]} to {values[-1]})"
        raise _asked(many, "classes", "numbers")
    if free and (odd := _marker(values)) is not None:
        cause = f"{what} holds {odd} beside {len(values) - 1} other labels, which may mean that a label is not known"
        raise DataMalformed(f"{cause}: leave these samples out, or say that it is a class (data.kind: classes)")
    if _dense(values):
        return _named(y, int(values[-1]) + 1, (), notes)
    names, n = tuple(map(str, values.tolist())), len(y[0])
    notes.append(f"the labels {listed(names)} became classes 0 to {len(names) - 1}, in this order")
    return _named((codes[:n], codes[n:]), len(names), names, notes)


def _one_each(whole: Pair, where: str) -> tuple[Pair, int | None, list[str]]:
    """Returns one class for each sample, (n,), the number of columns of one-hot rows, and what was done."""
    shape = whole[0].shape
    if whole[0].size > len(whole[0]):
        done = f"{LABELS[0]} of shape {shape} was one-hot: a class for each column (kind: labels if not)"
        return _each(whole, _unfolded, where), shape[1], [done]
    flat = (whole[0].reshape(-1), whole[1].reshape(-1))
    return flat, None, [f"{LABELS[0]} of shape {shape} has one class for each sample"] if len(shape) > 1 else []


def _dense(values: npt.NDArray[Any]) -> bool:
    """Returns whether at least half of the numbers from 0 to the largest occur."""
    return bool(values[0] == 0 and values[-1] < 2 * len(values))


def _hardly_classes(values: npt.NDArray[Any], n: int) -> bool:
    """Returns whether integers are about as many as the samples, or neither numbers from 0 nor all those from 1 on."""
    return 2 * len(values) > n or not (_dense(values) or _consecutive(values, n))


def _marker(values: npt.NDArray[Any]) -> Any:
    """Returns a label that may mark what is not known: a negative one, or one far above all from 0 or 1 to k."""
    if len(values) > 2 and values[0] < 0:
        return values[0]
    in_turn = len(values) > 2 and values[0] in (0, 1) and values[-2] - values[0] == len(values) - 2
    return values[-1] if in_turn and values[-1] >= 2 * len(values) else None


def _named(y: Pair, n_classes: int, names: tuple[str, ...], notes: Sequence[str]) -> Targets:
    """Returns classes, with a note of those that only test samples have, or none at all."""
    train, test = (each.astype(np.int64) for each in y)
    trained, tested = set(np.unique(train).tolist()), set(np.unique(test).tolist())
    found = list(notes)
    for cause, lacking in (
        ("with test samples and no training sample", tested - trained),
        ("without any sample", set(range(n_classes)) - trained - tested),
    ):
        if lacking:
            found.append(
                f"classes {cause}: {listed([names[c] if c < len(names) else str(c) for c in sorted(lacking)])}"
            )
    return Targets((train, test), "classes", n_classes, names, tuple(found))


def _unfolded(y: npt.NDArray[Any], what: str) -> npt.NDArray[np.int64]:
    """Returns the class of each one-hot row."""
    if y.ndim != 2 or not np.isin(y, (0, 1)).all() or not (y.sum(1) == 1).all():
        raise DataMalformed(f"{what} has shape {y.shape}, expected (n,) for classes, or one-hot rows with a single 1")
    found: npt.NDArray[np.int64] = y.argmax(1)
    return found


def _check_range(values: npt.NDArray[Any], n_classes: int, what: str) -> None:
    if values[0] < 0 or values[-1] >= n_classes:
        cause = f"has labels {values[0]}..{values[-1]}, expected 0..{n_classes - 1}"
        raise DataMalformed(f"{what} {cause} (without n_classes labels are numbered by their order)")


def _texts(y: Pair, kind: TargetKind | None, what: str) -> Targets:
    """Returns the classes of names, or the numbers that texts are."""
    if y[0].size != len(y[0]):
        raise DataMalformed(f"{what} has texts of shape {y[0].shape}, expected one class's name for each sample")
    names, codes = np.unique(np.char.strip(np.concatenate([each.reshape(-1) for each in y])), return_inverse=True)
    n, numbers = len(y[0]), _as_numbers(names)
    if kind not in (None, "classes", "numbers") or (kind == "numbers" and numbers is None):
        raise DataMalformed(f"{what} holds texts such as {str(names[-1])!r:.60}, which are no {kind}")
    missing = [name for name in map(str, names) if name.casefold() in MISSING]
    if missing:
        raise DataMalformed(
            f"{what} holds {missing[0]!r}, which is no class's name; leave these samples out or name it"
        )
    if numbers is not None and kind is None:
        raise _asked(f"{what} holds texts that are numbers, such as {str(names[-1])!r:.60}", "classes", "numbers")
    if numbers is not None and kind == "numbers":
        found = numbers[codes]
        return Targets((_numbers(found[:n], what), _numbers(found[n:], what)), "numbers")
    if numbers is not None:  # by size, not by letters
        order = np.argsort(numbers, kind="stable")
        names, codes = names[order], np.argsort(order)[codes]
    named = tuple(map(str, names))
    return _named((codes[:n], codes[n:]), len(named), named, _alikes(named, what))


def _alikes(names: Sequence[str], what: str) -> list[str]:
    """Returns a note of names that differ in upper and lower case or blanks alone."""
    seen = dict[str, str]()
    pairs = [(seen.setdefault("".join(name.casefold().split()), name), name) for name in names]
    alike = [f"{first!r:.40} and {name!r:.40}" for first, name in pairs if first != name]
    return [f"{what} has names of classes that differ in case or blanks alone: {listed(alike)}"] if alike else []


def _as_numbers(texts: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    try:
        found = texts.astype(np.float64)
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None
