"""Real data sets for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real `.npz` sets: STRATA_DATA_DIR, else `../shared/data` beside the repository."""
    named = os.environ.get("STRATA_DATA_DIR")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no data sets: {folder} is missing (set STRATA_DATA_DIR)")
    return folder


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for the whole session, so that each data set is unpacked once."""
    return tmp_path_factory.mktemp("cache")
