"""The page that compares runs: one comparison at a time, and the newest choice is what is shown."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloud_server.dashboard import comparison_view
from cloud_server.dashboard.comparison_view import ComparisonView
from shared.results.comparison import Comparison
from shared.run_records.metrics import ACCURACY, MetricInfo
from shared.run_records.runs import RunInfo
from tests.strata.samples import a_run
from tests.waits import HANG_S

RMSE = MetricInfo(label="rmse", higher_is_better=False)


class Repository:
    async def info(self, run_id: str) -> RunInfo:
        return a_run(run=run_id)


async def test_a_choice_during_a_comparison_is_compared_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def compare(_: list[Path], target: float | None, metric: str | None) -> Comparison:
        if metric is None:
            entered.set()
            assert go_on.wait(HANG_S)
        return Comparison((), RMSE if metric == "rmse" else ACCURACY, target, ())

    monkeypatch.setattr(comparison_view, "compare", compare)
    cloud = SimpleNamespace(repository=Repository(), results=SimpleNamespace(folder=Path))
    view = ComparisonView(cast("Any", SimpleNamespace(cloud=cloud)), cast("Any", None), ["r1", "r2"])
    first = asyncio.create_task(view._compare())
    assert await asyncio.to_thread(entered.wait, HANG_S)
    view.chosen, view.wanted = "rmse", 0.5
    second = asyncio.create_task(view._compare())
    await asyncio.wait({second}, timeout=0.2)
    assert not second.done(), "one comparison at a time"
    go_on.set()
    assert all(await asyncio.gather(first, second)), "both compared"
    assert (view.compared, view.chosen) == (Comparison((), RMSE, 0.5, ()), "rmse")
    assert not await view._compare(), "nothing has changed"
