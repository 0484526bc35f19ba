"""The probe algorithms, whose states count."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe algorithms can be loaded."""
    monkeypatch.setenv("STRATA_ALGORITHMS", "tests.probes")
