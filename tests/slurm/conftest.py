"""One cluster for all tests of Slurm."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes in network namespaces; nothing of them is left at the end."""
    why = why_not()
    if why:
        pytest.skip(f"no Slurm can be started here: {why}")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, Cluster(Path(folder)) as found:
        yield found
