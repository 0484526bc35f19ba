"""The client of the REST API reads lists that come in pages."""

from __future__ import annotations

import pytest

from shared.run_records import rounds
from strata.api.client import Client
from tests.strata.fake_cloud import FakeCloud


def test_the_client_reads_the_rounds_page_by_page(cloud: FakeCloud, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_PAGE_BYTES", 1)
    with Client(url) as client:
        assert [row.round_no for row in client.rounds("r1").rounds] == [1, 2, 3]
    assert sum(path == "/runs/r1/rounds" for _, path in cloud.seen) == 3
