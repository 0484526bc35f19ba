"""The data set that a spec names: checked and opened."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shared.core.errors import BadInput
from shared.core.os_errors import refusals
from shared.training.data import digit_domains
from shared.training.data.dataset import READERS, Dataset, file_digest, folder_digest, load, open_unpacked, unpack_once
from shared.training.data.files import read_file
from shared.training.data.plugged import DATA_SOURCES, open_plugged
from shared.training.data.reading import Read
from shared.training.data.sources import Arrays, DataMalformed, DataUnavailable
from shared.training.specs import DataSpec
from shared.training.table_specs import TABLES, is_table


def check_data(spec: DataSpec) -> None:
    """Checks the name and the options of a data set.

    Raises:
        UnknownName, BadInput: the name or an option is wrong; the error has the field.
    """
    if spec.name == digit_domains.NAME:
        digit_domains.check_domains(spec)
        if spec.params:
            raise BadInput(f"data.params: {spec.name} has no parameters", field="data.params")
        return
    for field in ("domains", "size", "split"):
        if getattr(spec, field) is not None and not (field == "size" and spec.file is not None):
            raise BadInput(f"{field} goes with data: {digit_domains.NAME}, not with {spec.name}", field=f"data.{field}")
    if spec.file is not None:
        if spec.params:
            raise BadInput("data.params: a file has no parameters", field="data.params")
        return
    DATA_SOURCES.get(spec.name).parse(spec.params, "data.params")


def open_data(spec: DataSpec, *, data_dir: Path | None, cache_dir: Path) -> Dataset:
    """Opens the data set of a spec, memory-mapped.

    Raises:
        DataUnavailable, DataMalformed: as for `load`, for each data set that the spec combines.
        BadInput: there is too little memory to combine them.
        SystemRefused: the cache cannot be written, or a file cannot be read.
    """
    with refusals(cache_dir):
        if spec.name == digit_domains.NAME:
            return digit_domains.open_domains(spec, data_dir=data_dir, cache_dir=cache_dir)
        if spec.file is not None:
            return _open_file(spec, spec.file, data_dir, cache_dir)
        if spec.name in DATA_SOURCES.plugged():
            return open_plugged(spec, cache_dir)
        return load(spec.name, data_dir=data_dir, cache_dir=cache_dir)


def _open_file(spec: DataSpec, file: str, data_dir: Path | None, cache_dir: Path) -> Dataset:
    """Opens a data set of a file or folder; the first process unpacks it, all others map the same arrays."""
    path = _path_of(file, data_dir)
    cache_dir.mkdir(parents=True, exist_ok=True)
    content = folder_digest(path) if path.is_dir() else file_digest(path, cache_dir)
    key = f"{READERS}|{content}|{spec.model_dump_json(exclude={'name', 'n_train', 'n_test', 'faults'})}"
    folder = cache_dir / f"{spec.name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"

    def read() -> Arrays | Read:
        return read_file(path, spec)

    try:
        unpack_once(folder, read, None, spec.kind, spec.layout, standardise=spec.standardise_target, where=file)
    except DataMalformed as error:
        raise DataMalformed(error.detail, field="data.file") from error
    return open_unpacked(spec.name, folder, None)


def _path_of(file: str, data_dir: Path | None) -> Path:
    """Returns the path of a data set's file or folder below the folder of data.

    Raises:
        DataUnavailable: it is not there; BadInput: it is neither an `.npz`, nor a table, nor a folder.
    """
    path = None if data_dir is None else (data_dir / file).resolve()
    if path is None or data_dir is None or not path.exists():
        where = data_dir or "the folder that STRATA_DATA_DIR names"
        raise DataUnavailable(f"put {file} into {where}, on each machine that trains", field="data.file")
    if not path.is_relative_to(data_dir.resolve()):
        cause = f"{file} is a link that leads out of {data_dir}, where nothing is read"
        raise DataUnavailable(f"{cause}: put the file itself there, or mount its folder", field="data.file")
    if not path.is_dir() and path.suffix != ".npz" and not is_table(path.name):
        tables = f"{', '.join(TABLES)}, also with .gz"
        raise BadInput(f"{file} is neither an .npz, nor a table ({tables}), nor a folder of images", field="data.file")
    return path
