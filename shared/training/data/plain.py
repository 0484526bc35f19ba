"""Plain arrays of numbers, bools or texts, whatever a source returns: lists, tensors, columns of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.sources import GROUPS, WRITERS, Arrays, DataMalformed

LARGEST = np.iinfo(np.int64).max


def plain(given: Any, what: str) -> npt.NDArray[Any]:
    """Returns an array of numbers, bools or texts (numpy's kind `U`), in the machine's own order of bytes.

    Numbers of more than 64 bits become float64; unsigned integers int64 if they fit: numpy compares the two as floats.

    Raises:
        DataMalformed: it holds other objects, masked values, or bytes that are no text.
    """
    if isinstance(given, np.ma.MaskedArray) and np.ma.getmaskarray(given).any():
        raise DataMalformed(f"{what} has masked values: fill them, or leave these samples out")
    found = _as_array(given, what)
    if found.dtype.kind == "O":
        found = _of_objects(found, what)
    if found.dtype.kind == "T":
        return found.astype(str)
    if found.dtype == np.uint64 and found.size and found.max() <= LARGEST:
        return found.astype(np.int64)
    if found.dtype.kind == "f" and found.dtype.itemsize > 8:
        return found.astype(np.float64)
    if not found.dtype.isnative:
        found = found.astype(found.dtype.newbyteorder("="))
    if found.dtype.kind != "S":
        return found
    try:
        return np.char.decode(found, "utf-8")
    except UnicodeDecodeError as error:
        raise DataMalformed(f"{what} holds bytes that are no text in UTF-8: {error}") from None


def _as_array(given: Any, what: str) -> npt.NDArray[Any]:
    if hasattr(given, "detach") and hasattr(given, "cpu"):  # a tensor, which numpy may not read as it is
        given = given.detach().cpu()
        given = given.float() if given.is_floating_point() and given.itemsize < 4 else given
    try:
        return np.asarray(given)
    except Exception as error:  # of whatever a plug-in returns
        hint = "series of unequal lengths are padded, and train_mask and test_mask say where they have content"
        raise DataMalformed(f"{what} is a {type(given).__name__} that is no array: {error} ({hint})") from None


def _of_objects(found: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    values = found.ravel().tolist()
    for kinds in (str, (bool, int, float, np.number, np.bool_)):
        if values and all(isinstance(value, kinds) for value in values):
            return np.array(found.tolist())
    known = (str, bool, int, float, np.number, np.bool_)
    odd = next((type(value).__name__ for value in values if not isinstance(value, known)), "texts beside numbers")
    raise DataMalformed(
        f"{what} is an array of objects, such as {odd}: numbers or texts alone are needed (series of "
        "unequal lengths are padded, and train_mask and test_mask say where they have content)"
    )


def named_groups(arrays: Arrays, where: str) -> tuple[Arrays, tuple[str, ...]]:
    """Returns the groups of samples as int64, (n,), by the keys of `GROUPS`, and their names, if they are texts.

    Raises:
        DataMalformed: they are neither integers nor texts, or not one for each sample.
    """
    found, keys = {}, {}
    for group, writer, samples in zip(GROUPS, WRITERS, ("train_x", "test_x"), strict=True):
        key = writer if writer in arrays else group
        if key in arrays:
            _check_groups(arrays[key], len(arrays[samples]), f"{where}: {key}")
            found[group], keys[group] = arrays[key], key
    if "U" not in {each.dtype.kind for each in found.values()}:
        return {group: each.astype(np.int64) for group, each in found.items()}, ()
    if len({each.dtype.kind for each in found.values()}) > 1:
        raise DataMalformed(f"{where}: {' and '.join(keys.values())} are texts and integers; save both alike")
    names, codes = np.unique(np.concatenate(list(found.values())), return_inverse=True)
    parts = np.split(codes.astype(np.int64), np.cumsum([len(each) for each in found.values()])[:-1])
    return dict(zip(found, parts, strict=True)), tuple(map(str, names))


def _check_groups(values: npt.NDArray[Any], n: int, what: str) -> None:
    if values.dtype.kind not in "iuU":
        raise DataMalformed(f"{what} has dtype {values.dtype}, expected int64, or texts")
    if values.shape != (n,):
        raise DataMalformed(f"{what} has shape {values.shape}, expected ({n},), one for each sample")
    if values.dtype == np.uint64:
        raise DataMalformed(f"{what} holds {values.max()}, beyond int64: save such ids as texts")
