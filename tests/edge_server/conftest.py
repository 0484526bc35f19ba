"""Makes the probe algorithms, whose states count visits and rounds, available to all tests here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe algorithms can be loaded."""
    monkeypatch.setenv("STRATA_ALGORITHMS", "tests.probes")
