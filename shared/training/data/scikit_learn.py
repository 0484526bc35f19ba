"""Data sets in the files of scikit-learn's package, which is not imported.

To import it takes a second, and where pandas is installed imports that too.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.splits import fifth_of_each

Arrays = dict[str, npt.NDArray[Any]]

HOSPITALS = 8
WINDOW = 48
"""Characters of a sample of `sklearn_docs`."""


def version() -> str:
    """Returns scikit-learn's version, to which the files belong."""
    return metadata.version("scikit-learn")


def digits(_: Path) -> Arrays:
    """Returns the 8x8 digits (1,797, from UCI), 0..16 scaled to 0..255.

    The data have no split of their own: a seeded fifth of each class, rounded, is the test set here.
    """
    rows = np.loadtxt(_file("data/digits.csv.gz"), delimiter=",")
    x, y = rows[:, :-1], rows[:, -1].astype(np.int64)
    x = np.rint(x.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    test = fifth_of_each(y)
    return {"train_x": x[~test], "train_y": y[~test], "test_x": x[test], "test_y": y[test]}


def breast_cancer(_: Path) -> Arrays:
    """Returns 30 measurements of 569 tumours, and whether each is malignant (0) or benign (1), by hospital.

    W. Street, W. Wolberg, O. Mangasarian: Nuclear feature extraction for breast tumor diagnosis, 1993 (from UCI). The
    data name no hospitals. Here tumours are divided among eight of equal size by their mean radius with noise of one
    standard deviation: the higher a hospital's number, the larger and the more malignant are its tumours. A seeded
    fifth of each hospital's tumours is the test set.
    """
    rows = np.loadtxt(_file("data/breast_cancer.csv"), delimiter=",", skiprows=1)
    x, y = rows[:, :-1], rows[:, -1].astype(np.int64)
    radius = (x[:, 0] - x[:, 0].mean()) / x[:, 0].std() + np.random.default_rng(0).standard_normal(len(x))
    hospital = np.argsort(np.argsort(radius)) * HOSPITALS // len(x)
    test = fifth_of_each(hospital)
    found = {"mean": x[~test].mean(0), "std": x[~test].std(0)}
    for part, chosen in (("train", ~test), ("test", test)):
        found |= {f"{part}_x": x[chosen], f"{part}_y": y[chosen], f"{part}_group": hospital[chosen]}
    return found


def sklearn_docs(_: Path) -> Arrays:
    """Returns windows of text, and the same windows one character later, by document.

    The documents describe 14 data sets, some 43,000 characters of English with tables and references. Characters
    that are not ASCII become `?`. The last fifth of each document's windows is the test set.
    """
    documents = [path.read_text(encoding="utf-8") for path in sorted(_file("descr").glob("*.rst"))]
    texts = [np.frombuffer(text.encode("ascii", "replace"), np.uint8) for text in documents]
    characters = np.unique(np.concatenate(texts))
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for group, text in enumerate(texts):
        codes = np.searchsorted(characters, text)
        n = (len(codes) - 1) // WINDOW
        windows = [codes[start : start + n * WINDOW].reshape(n, WINDOW) for start in (0, 1)]
        n_train = n - max(n // 5, 1)
        for part, chosen in (("train", slice(n_train)), ("test", slice(n_train, None))):
            for key, array in zip("xy", windows, strict=True):
                parts.setdefault(f"{part}_{key}", []).append(array[chosen])
            parts.setdefault(f"{part}_group", []).append(np.full(len(windows[0][chosen]), group))
    return {key: np.concatenate(arrays) for key, arrays in parts.items()} | {"vocabulary": np.array(len(characters))}


def _file(path: str) -> Path:
    """Returns a file or folder of scikit-learn's data sets.

    Raises:
        FileNotFoundError: scikit-learn is not installed, or has none of this name.
    """
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (found := Path(folder, "datasets", path)).exists():
            return found
    raise FileNotFoundError("scikit-learn, which brings the data, is not installed")
