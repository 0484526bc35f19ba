"""The list of runs: newest first, without those that are deleted while it is read."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_server.runs.repository import RunRepository
from shared.core.errors import NotFound
from shared.run_records.runs import RunInfo
from shared.storage import redis_keys
from tests.fakes.memory_store import MemoryStore
from tests.strata.samples import a_run


@pytest.fixture
async def repository(monkeypatch: pytest.MonkeyPatch) -> RunRepository:
    """Four runs, two of which were created in the same second; `gone` is deleted while the list is read."""
    store = MemoryStore()
    created = {"a": b"2026-01-01T00:00:02", "gone": b"2026-01-01T00:00:03", "b": b"2026-01-01T00:00:02", "c": b"2026"}
    for run_id, at in created.items():
        await store.put(redis_keys.cloud_runs(run_id), at)
    nothing: Any = None
    found = RunRepository(store, nothing, nothing, 10, nothing)

    async def info(run_id: str) -> RunInfo:
        if run_id == "gone":
            raise NotFound("deleted meanwhile")
        return a_run().replace(run=run_id)

    monkeypatch.setattr(found, "info", info)
    return found


async def test_the_newest_runs_come_first_and_of_equally_new_ones_the_greater_id(repository: RunRepository) -> None:
    assert await repository.run_ids() == ["gone", "b", "a", "c"]


async def test_a_run_that_is_deleted_while_the_list_is_read_hides_no_other(repository: RunRepository) -> None:
    page = await repository.page()
    assert [info.run for info in page.runs] == ["b", "a", "c"]
    assert [info.run for info in (await repository.page(2)).runs] == ["b"]
