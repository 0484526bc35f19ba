"""Requests that the OpenAPI documents allow or forbid give no server error and no undeclared answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.documents import documents


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1800)  # for each of the three tiers up to 500 s
def test_every_endpoint_of_every_tier_answers_as_documented(tmp_path: Path) -> None:
    tried = {found.tier: found for found in documents(tmp_path, n_examples=5, seed=1)}
    assert {tier: found.output for tier, found in tried.items() if found.status} == {}
    assert list(tried) == ["agent-1", "edge-1", "cloud"]
    assert tried["cloud"].n_cases > 500
    assert min(found.n_cases for found in tried.values()) > 50
