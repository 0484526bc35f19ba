"""The data set that a spec names: checked and opened."""

from __future__ import annotations

from pathlib import Path

from shared.core.errors import BadInput
from shared.training.data import digit_domains
from shared.training.data.dataset import Dataset, DataSpec, load
from shared.training.data.sources import check_name


def check_data(spec: DataSpec) -> None:
    """Checks the name and the options of a data set.

    Raises:
        UnknownName, BadInput: the name or an option is wrong; the error has the field.
    """
    if spec.name == digit_domains.NAME:
        digit_domains.check_domains(spec)
        return
    for field in ("domains", "size", "split"):
        if getattr(spec, field) is not None:
            raise BadInput(f"{field} goes with data: {digit_domains.NAME}, not with {spec.name}", field=f"data.{field}")
    check_name(spec.name, also=(digit_domains.NAME,))


def open_data(spec: DataSpec, *, data_dir: Path | None, cache_dir: Path) -> Dataset:
    """Opens the data set of a spec, memory-mapped.

    Raises:
        DataUnavailable, DataMalformed: as for `load`, for each data set that the spec combines.
        BadInput: there is too little memory to combine them.
    """
    if spec.name == digit_domains.NAME:
        return digit_domains.open_domains(spec, data_dir=data_dir, cache_dir=cache_dir)
    return load(spec.name, data_dir=data_dir, cache_dir=cache_dir)
