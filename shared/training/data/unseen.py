"""New samples for a trained model: a table, arrays or images, read as the training data were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from shared.core.errors import BadInput
from shared.training.data.layouts import channels_first, channels_last, images_channels_last
from shared.training.data.masks import as_mask, masked
from shared.training.data.picture_files import PICTURES, opened
from shared.training.data.pixels import DEEP, GREY, Pixels, head_of, scale_of
from shared.training.data.plain import plain
from shared.training.data.reading import Scale
from shared.training.data.sources import DataMalformed, read_npz
from shared.training.data.tables.rows import Table, read_rows
from shared.training.data.tables.unseen import inputs_of, written
from shared.training.preprocessing import Preprocessing
from shared.training.table_specs import CsvSpec, is_table

ARRAYS = {"x": "mask", "test_x": "test_mask"}
"""The keys of an `.npz` that hold new samples, and their masks; the first that is there counts."""


@dataclass(frozen=True, eq=False)
class Unseen:
    """New samples.

    Attributes:
        x: as a data set stores them, (n, ...): uint8 images, float32 numbers, int64 indices.
        files: of images, where each is from.
        ignored: columns of a table that the model does not use.
    """

    x: npt.NDArray[Any]
    files: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def unseen(source: Any, preprocessing: Preprocessing) -> Unseen:
    """Returns new samples.

    Args:
        source: the path of a table, an `.npz`, an image, or a folder of images; or a `DataFrame`, a map of columns, an
            array or a tensor of samples as an `.npz` holds them.
        preprocessing: of the model.

    Raises:
        DataMalformed: a row, an image or an array cannot be read as the training data were; names where.
        BadInput: the model takes other samples.
    """
    if isinstance(source, np.ndarray | Tensor):
        return Unseen(_array(source, "the array", preprocessing))
    if not isinstance(source, str | Path):
        return _of_table(_frame(source, written(preprocessing.reading).decimal), preprocessing)
    path = Path(source)
    if not path.exists():
        raise DataMalformed(f"there is no file {path}")
    if path.is_dir() or path.suffix.lower() in PICTURES:
        return _images(path, preprocessing)
    if path.suffix == ".npz":
        return Unseen(_of_archive(path, preprocessing))
    if is_table(path.name):
        return _of_table(read_rows(path, preprocessing.source.csv or CsvSpec(), least=1), preprocessing)
    raise BadInput(f"{path.name} is neither a table (.csv), nor an .npz, nor an image or a folder of images")


# ---- tables


def _of_table(table: Table, preprocessing: Preprocessing) -> Unseen:
    columns = preprocessing.reading.columns
    shape = preprocessing.description.sample.shape
    if not columns:
        raise BadInput(f"the model was not trained on a table: a sample is {shape}, in an .npz or an array")
    n = sum(column.n_inputs for column in columns)
    mean, std = (
        np.broadcast_to(np.array(values, np.float32), (n,)) for values in (preprocessing.mean, preprocessing.std)
    )
    x = inputs_of(table, preprocessing.reading, preprocessing.source.csv or CsvSpec(), mean, std)
    used = {column.name for column in columns}
    return Unseen(x, ignored=tuple(name for name in table.columns if name not in used))


def _frame(source: Any, decimal: str) -> Table:
    """A `DataFrame` or a map of columns as texts; what is None or NaN is a missing cell.

    Numbers get the decimal sign of the training table, in which texts are expected to be as well.
    """
    try:
        columns = {str(name): [_text(value, decimal) for value in source[name]] for name in source}
    except (TypeError, KeyError, IndexError):
        raise BadInput(f"a {type(source).__name__} is no table: give a path, a DataFrame or an array") from None
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise BadInput("a table needs at least one row, and columns of one length")
    return Table("the table", columns, range(1, 1 + lengths.pop()))


def _text(value: Any, decimal: str) -> str:
    if value is None or str(value) in ("NaT", "<NA>") or value != value:
        return ""
    text = str(value).strip()
    return text.replace(".", decimal) if isinstance(value, float | np.floating) else text


# ---- arrays


def _of_archive(path: Path, preprocessing: Preprocessing) -> npt.NDArray[Any]:
    found = read_npz(path, [*ARRAYS, *ARRAYS.values()])
    key = next((key for key in ARRAYS if key in found), None)
    if key is None:
        raise DataMalformed(f"{path.name} has neither {' nor '.join(ARRAYS)}, which hold samples")
    x, mask, what = found[key], found.get(ARRAYS[key]), f"{path.name}: {key}"
    return _array(x if mask is None else _with_mask(x, mask, what, preprocessing), what, preprocessing)


def _with_mask(
    x: npt.NDArray[Any], mask: npt.NDArray[Any], what: str, preprocessing: Preprocessing
) -> npt.NDArray[Any]:
    """Returns sequences with their mask, in the layout in which they are given."""
    sample, layout = preprocessing.description.sample, preprocessing.source.layout
    x = channels_last(plain(x, what).astype(np.int64 if sample.dtype == "int64" else np.float64), layout)
    x = masked(x, as_mask(mask, x, f"the mask of {what}"), sample.padding, what)
    return np.moveaxis(x, -1, 1) if layout == "channels_first" and x.ndim > 2 else x


def _array(x: Any, what: str, preprocessing: Preprocessing) -> npt.NDArray[Any]:
    """Returns samples in the dtype in which a data set stores them.

    Those of a table are numbers as they are, categories and indicators 0 or 1, in the order of its inputs. Series of
    numbers that were trained with masks have the mask as their last channel.
    """
    sample, layout, x = preprocessing.description.sample, preprocessing.source.layout, plain(x, what)
    if x.dtype.kind in "iuf" and preprocessing.scale is not None:
        x = _scaled(x, preprocessing.scale, what)
    x = images_channels_last(x, layout) if sample.images else channels_first(channels_last(x, layout), layout)
    shape: Sequence[int] = sample.shape
    dtype: Any = np.int64 if sample.dtype == "int64" else np.float32
    if sample.images:
        channels, height, width = sample.shape
        dtype, shape = np.uint8, (height, width) if channels == 1 and x.ndim == 3 else (height, width, channels)
    integers = np.issubdtype(x.dtype, np.integer)
    fits = x.dtype == np.uint8 if sample.images else integers or sample.dtype != "int64"
    if tuple(x.shape[1:]) != tuple(shape) or not fits or x.dtype.kind not in "iuf" or not len(x):
        raise BadInput(f"{what} is {x.dtype} {x.shape}; the model takes {np.dtype(dtype)} (n, {str(tuple(shape))[1:]}")
    with np.errstate(over="ignore"):
        found: npt.NDArray[Any] = x.astype(dtype)
    if not np.isfinite(found).all():
        raise DataMalformed(f"{what} holds NaN, infinity, or numbers beyond float32")
    if sample.vocabulary is not None and not 0 <= x.min() <= x.max() < sample.vocabulary:
        raise DataMalformed(f"{what} has indices {x.min()}..{x.max()}, the model knows 0..{sample.vocabulary - 1}")
    return found


def _scaled(x: npt.NDArray[Any], scale: Scale, what: str) -> npt.NDArray[np.float64]:
    try:
        return scale.of(x)
    except ValueError:
        raise BadInput(f"{what} has shape {x.shape}, a sample of the model {np.shape(scale.mean)}") from None


# ---- images


def _images(path: Path, preprocessing: Preprocessing) -> Unseen:
    sample, spec = preprocessing.description.sample, preprocessing.source
    if not sample.images:
        raise BadInput(f"the model takes {sample.what} {sample.shape}, not images")
    folder = path if path.is_dir() else path.parent
    paths = [path] if path.is_file() else _pictures(path)
    channels, height, width = sample.shape
    heads = {each: head_of(each, folder) for each in paths}
    deep = [each for each, head in heads.items() if head.mode in DEEP]
    black, white = preprocessing.reading.value_range or scale_of(deep, folder, spec.value_range if deep else None)
    side = spec.size if spec.file is not None else None
    pixels = Pixels(folder, "L" if channels == 1 else "RGB", side, black, white, spec.background or "white")
    found = np.empty((len(paths), height, width, *([] if channels == 1 else [channels])), np.uint8)
    for image, each in zip(found, paths, strict=True):
        head = heads[each]
        if side is None and head.size != (width, height):
            raise DataMalformed(
                f"{each.name} has {head.size[0]} x {head.size[1]} pixels, the model takes {width} x {height}"
            )
        if channels == 1 and head.mode not in GREY | DEEP:
            raise DataMalformed(f"{each.name} has colours ({head.mode}), the model takes grey images")
        image[...] = pixels.of(each)
    return Unseen(found, tuple(each.relative_to(folder).as_posix() for each in paths))


def _pictures(folder: Path) -> list[Path]:
    """The images of a folder and of those within, in order; hidden files are left out, any other is refused."""
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]
    for file in files:
        opened(file, folder).close()
    if not files:
        raise DataMalformed(f"{folder.name} has no images")
    return files
