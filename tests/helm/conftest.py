"""What several tests of the chart share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm.cloud import local_results
from tests.helm.pods import check_tools


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What the quickstart gives in local processes, by the number of rounds."""
    check_tools()
    return local_results(tmp_path_factory.mktemp("local"))
