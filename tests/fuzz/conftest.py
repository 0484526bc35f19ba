"""Real bodies, recorded once per session, and the duration of fuzzing."""

from __future__ import annotations

import asyncio

import pytest

from tests.fuzz.bodies import PROBES, Sample, record


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Bodies that three tiers exchanged in a round of several algorithms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATA_PLUGINS", PROBES)
        return asyncio.run(record(tmp_path_factory.mktemp("recorded")))
