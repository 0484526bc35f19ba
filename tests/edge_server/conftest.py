"""Makes the probe algorithms, whose states count visits and rounds, available to all tests of this folder."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the probe algorithms loadable."""
    monkeypatch.setenv("STRATA_PLUGINS", "tests.probes")
