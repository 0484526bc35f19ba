"""Data sets in files of any name: an `.npz` of arrays, a table (`.csv`), or a folder of images by class.

Where a file has no test set of its own, a fifth of its samples is drawn by a fixed seed, of each class where the
targets are classes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from shared.training.data.pictures import read_images
from shared.training.data.reading import Read, Reading, listed
from shared.training.data.sources import KEYS, REQUIRED, Arrays, DataMalformed, read_npz
from shared.training.data.tables.read import read_table
from shared.training.specs import DataSpec
from shared.training.table_specs import is_table


def read_file(path: Path, spec: DataSpec) -> Arrays | Read:
    """Reads the arrays of a data set from a file or folder.

    Args:
        path: ends with `.npz` or as a table does, or is a folder.
        spec: says what the file leaves open, such as the column that models are to predict.

    Raises:
        DataMalformed: it cannot be read, or has wrong contents; the message names key, column or image.
    """
    if path.suffix == ".npz":
        return Read(read_npz(path), Reading(notes=_not_read(path)))
    if is_table(path.name):
        return read_table(path, spec)
    return read_images(path, spec)


def _not_read(path: Path) -> tuple[str, ...]:
    """Returns a note of the keys of an `.npz` that have no meaning.

    Raises:
        DataMalformed: a needed key is missing.
    """
    with zipfile.ZipFile(path) as archive:
        keys = sorted(name.removesuffix(".npy") for name in archive.namelist())
    missing, unknown = [key for key in REQUIRED if key not in keys], [key for key in keys if key not in KEYS]
    if missing:
        what = f"key {', '.join(missing)} is missing (needed: {', '.join(REQUIRED)}); it has {listed(keys)}"
        raise DataMalformed(f"{path.name}: {what}")
    return (f"keys that are not read: {listed(unknown)}",) if unknown else ()
