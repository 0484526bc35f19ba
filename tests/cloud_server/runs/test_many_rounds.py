"""A run of many rounds: its records grow by a line a round, and what the tiers hold in memory does not grow."""

from __future__ import annotations

import gc
import pathlib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from cloud_server.runs.executor import RunExecutor
from shared.core.records import Record
from shared.results.folder import read_rounds
from tests.federation import Federation, small_spec

FIRST, LAST = 30, 90
ENTRY_BYTES = 300
"""The memory of an entry of the store besides its content."""
A_ROUND_BYTES = 4000
"""What a round may leave in memory on average, besides what the store has of it; its model has 31,400."""


def held_bytes(fed: Federation) -> int:
    """Returns the traced memory without what stands for Redis.

    The names of files are left out: the interpreter keeps a table of all, which doubles now and then.
    """
    entries = [entry.data for stream in fed.store._streams.values() for entry in stream]
    values = [value.data for value in fed.store._values.values()]
    stored = sum(len(data) + ENTRY_BYTES for data in [*entries, *values])
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, pathlib.__file__)])
    return sum(each.size for each in snapshot.statistics("filename")) - stored


@pytest.mark.slow
async def test_memory_does_not_grow_with_rounds_and_records_grow_by_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_bytes: dict[int, int] = {}
    n_objects: dict[int, int] = {}
    train = RunExecutor._train_round

    async def measured(self: RunExecutor, state: Any) -> None:
        await train(self, state)
        round_no = state.checkpoint.round_no
        if round_no in (FIRST, LAST):
            await self.services.evaluator.finish(self.info.run)
            await self._results.folder.settle()
            gc.collect()
            n_objects[round_no] = sum(isinstance(each, torch.Tensor | Record) for each in gc.get_objects())
            n_bytes[round_no] = held_bytes(fed)

    monkeypatch.setattr(RunExecutor, "_train_round", measured)
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1,)) as fed:
        tracemalloc.start()
        try:
            info = await fed.run(small_spec(num_edges=1, num_devices=1, num_rounds=LAST + 1, eval_every=10))
        finally:
            tracemalloc.stop()
    assert info.status == "completed", info.reason
    assert n_objects[LAST] - n_objects[FIRST] < (LAST - FIRST) / 2, n_objects
    assert n_bytes[LAST] - n_bytes[FIRST] < A_ROUND_BYTES * (LAST - FIRST), n_bytes
    folder = tmp_path / "f" / "runs" / info.run
    assert [row.round_no for row in read_rounds(folder) if row.kind == "train"] == list(range(1, LAST + 2))
