"""The results folder: rounds that come fast are written together, and an error ends with its run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cloud_server.folder import ResultsFolder, RoundDone
from shared.blobs import StorageFailed
from shared.service import Worker


@pytest.fixture
async def results(tmp_path: Path) -> AsyncIterator[ResultsFolder]:
    worker = Worker()
    yield ResultsFolder(tmp_path, worker)
    worker.close()


def done(run: str, round_no: int) -> RoundDone:
    return RoundDone(Mock(run=run), Mock(), Mock(), Mock(round_no=round_no))


def noting(monkeypatch: pytest.MonkeyPatch, results: ResultsFolder, *, fails: int = 0) -> list[tuple[str, list[int]]]:
    """What is written, as (run, rounds) a time; the first few times fail."""
    found: list[tuple[str, list[int]]] = []

    def write(info: Any, lab: Any, table: Any, rounds: Any, model: Any) -> None:
        found.append((info.run, [detail.round_no for detail in rounds]))
        if len(found) <= fails:
            raise StorageFailed("the disk is full")

    monkeypatch.setattr(results, "_write", write)
    return found


async def test_rounds_that_come_fast_are_written_together_and_all_once_settled(
    results: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = noting(monkeypatch, results)
    for round_no in range(1, 6):
        await results.round_done(done("a", round_no))
    await results.settle()
    assert [round_no for _, rounds in found for round_no in rounds] == [1, 2, 3, 4, 5]
    assert len(found) < 5


async def test_what_an_error_left_unwritten_is_not_written_into_the_next_runs_folder(
    results: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = noting(monkeypatch, results, fails=1)

    async def late(*args: Any) -> None:
        await results.round_done(done("a", 2))  # while the first is being written
        results._write(*args)

    monkeypatch.setattr(results.worker, "run", lambda work, *args: late(*args))
    await results.round_done(done("a", 1))
    with pytest.raises(StorageFailed):
        await results.settle()
    monkeypatch.undo()
    found += noting(monkeypatch, results)
    again = noting(monkeypatch, results)
    await results.round_done(done("b", 1))
    await results.settle()
    assert (found, again) == ([("a", [1])], [("b", [1])])
