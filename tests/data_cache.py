"""One folder of unpacked data for all tests of a session, and each data set mapped once: both take time."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from shared.core.records import canonical
from shared.federation.experiment import ExperimentCache
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.data.sources import DATASETS


@cache
def data_cache() -> Path:
    """The folder of this process, empty at first; it is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="strata-tests-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_DATA: dict[str, Dataset] = {}
_open = ExperimentCache.data_of


def data_of(cache: ExperimentCache, spec: ExperimentSpec) -> Dataset:
    """The data set of a spec, as `ExperimentCache.data_of` opens it; one without a file of its own is kept."""
    if cache.data_dir is not None or cache.cache_dir != data_cache():
        return _open(cache, spec)
    key = canonical(spec.data)
    if spec.data.name not in DATASETS:  # of a plug-in, whose code a test may change
        return _open(cache, spec)
    if key not in _DATA:
        _DATA[key] = _open(cache, spec)
    return _DATA[key]
