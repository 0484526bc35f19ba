"""Writing of results folders: rounds wait for their evaluations, and errors of one run do not affect the next."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest

from cloud_server.runs.evaluation import Evaluator
from cloud_server.runs.results_writer import EVERY_S, ResultsFolder, RoundDone
from shared.core.errors import NotFound
from shared.results.folder import read_round, read_rounds
from shared.run_records.rounds import Evaluation
from shared.runtime.compute_thread import ComputeThread
from shared.storage.blobs import StorageFailed
from tests.fakes.simulated_time import in_simulated_time
from tests.federation import Federation, Gate, small_spec
from tests.strata.samples import a_round, a_run

pytestmark = pytest.mark.layout(agent_devices=(3, 3))

T = TypeVar("T")
SCORES = {"global": Evaluation(n=10, accuracy=0.25, loss=2.0)}


@pytest.fixture
async def results(tmp_path: Path) -> AsyncIterator[ResultsFolder]:
    thread = ComputeThread()
    yield ResultsFolder(tmp_path, thread)
    thread.close()


def done(run: str, round_no: int) -> RoundDone:
    return RoundDone(Mock(run=run), Mock(), Mock(), Mock(round_no=round_no, evaluation=None))


def record_writes(
    monkeypatch: pytest.MonkeyPatch, results: ResultsFolder, *, fails: int = 0
) -> list[tuple[str, dict[int, Any]]]:
    """Records each write as (run, evaluations by round); the first ones fail."""
    found: list[tuple[str, dict[int, Any]]] = []

    def write(info: Any, experiment: Any, placement: Any, rounds: Any, trained: Any = None) -> None:
        found.append((info.run, {detail.round_no: detail.evaluation for detail in rounds}))
        if len(found) <= fails:
            raise StorageFailed("the disk is full")

    monkeypatch.setattr(results, "_write", write)
    return found


async def test_fast_rounds_are_written_together_and_settle_writes_all(
    results: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = record_writes(monkeypatch, results)
    for round_no in range(1, 6):
        await results.round_done(done("a", round_no))
    await results.settle()
    assert [round_no for _, rounds in found for round_no in rounds] == [1, 2, 3, 4, 5]
    assert len(found) < 5


async def test_rounds_that_an_error_left_unwritten_do_not_enter_the_next_runs_folder(
    results: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = record_writes(monkeypatch, results, fails=1)

    async def late(*args: Any) -> None:
        await results.round_done(done("a", 2))  # during the first write
        results._write(*args)

    monkeypatch.setattr(results.thread, "run", lambda work, *args: late(*args))
    await results.round_done(done("a", 1))
    with pytest.raises(StorageFailed):
        await results.settle()
    monkeypatch.undo()
    found += record_writes(monkeypatch, results)
    again = record_writes(monkeypatch, results)
    await results.round_done(done("b", 1))
    await results.settle()
    assert (found, again) == ([("a", {1: None})], [("b", {1: None})])


# ---- evaluations


def waiting_round(round_no: int, *, due: bool = True) -> RoundDone:
    return RoundDone(a_run(), Mock(), Mock(), a_round(round_no, evaluation=None), due)


class NoThread(ComputeThread):
    """Computes in the event loop."""

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        return work(*args)


@in_simulated_time
async def test_a_round_is_written_once_with_its_evaluation_and_later_rounds_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = ResultsFolder(tmp_path, NoThread())
    found = record_writes(monkeypatch, results)
    await results.round_done(waiting_round(1, due=False))
    await results.round_done(waiting_round(2))
    await results.round_done(waiting_round(3, due=False))
    await results.round_done(waiting_round(4))
    await asyncio.sleep(3 * EVERY_S)
    assert found == [("r1", {1: None})]
    results.evaluated("other", 2, SCORES)
    results.evaluated("r1", 2, SCORES)
    await asyncio.sleep(3 * EVERY_S)
    assert found[1:] == [("r1", {2: SCORES, 3: None})]
    results.evaluated("r1", 4, None)  # the evaluation failed: the round need not wait
    await asyncio.sleep(3 * EVERY_S)
    assert found[2:] == [("r1", {4: None})]


async def test_settle_writes_rounds_that_wait_for_an_evaluation_at_once(
    results: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = record_writes(monkeypatch, results)
    await results.round_done(waiting_round(1))
    await results.close()
    assert found == [("r1", {1: None})]
    results.evaluated("r1", 1, SCORES)  # the next write of all rounds includes what the store has


@pytest.mark.parametrize("how", ["fails", "is dropped before it began"])
async def test_a_failed_or_dropped_evaluation_is_reported(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    evaluator = Evaluator(Mock(), Mock())
    reported: list[Any] = []

    async def fails(*args: Any) -> None:
        raise NotFound("its data is gone")

    monkeypatch.setattr(evaluator, "_evaluate", fails)
    await evaluator.submit("r1", Mock(), Mock(), Mock(), final=False, then=reported.append)
    if how == "fails":
        with pytest.raises(NotFound):
            await evaluator.finish("r1")
    else:
        await evaluator.drop()
    assert reported == [None]


def accuracies(folder: Path, run_id: str) -> dict[int, bool]:
    """Returns, for each training round in `rounds.csv`, whether it has an accuracy."""
    rows = [row for row in read_rounds(folder / "runs" / run_id) if row.kind == "train"]
    return {row.round_no: bool(row.evaluation and row.evaluation["global"].accuracy is not None) for row in rows}


async def test_during_a_run_its_folder_has_the_accuracies_of_earlier_rounds(fed: Federation) -> None:
    gate = Gate(fed, closed_at=3)  # round 3 hangs
    run_id = await fed.submit(small_spec(num_rounds=3))
    await fed.until(lambda: accuracies(fed.folder, run_id) == {1: True, 2: True})
    assert (await fed.info(run_id)).status == "running"
    gate.open.set()
    await fed.finish(run_id)


@pytest.mark.whole
async def test_a_cloud_that_returns_writes_the_accuracies_that_a_killed_one_left_out(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    """The evaluation of round 1 was stored but not written; that of round 2 was still due."""
    services = fed.cloud.runs.services
    evaluate, stuck = services.evaluator._evaluate, asyncio.Event()

    async def first_alone(run_id: str, experiment: Any, ctx: Any, committed: Any, final: bool) -> Any:
        if committed.round_no > 1:
            await stuck.wait()
        return await evaluate(run_id, experiment, ctx, committed, final)

    monkeypatch.setattr(services.evaluator, "_evaluate", first_alone)
    monkeypatch.setattr(ResultsFolder, "evaluated", lambda *args: None)
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=3), closed_at=3)
    while (await fed.round(run_id, 1)).evaluation is None:  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.02)
    assert (await fed.round(run_id, 2)).evaluation is None
    await fed.stop("cloud")
    assert accuracies(fed.folder, run_id) == {1: False, 2: False}
    monkeypatch.undo()
    await fed.start_cloud()
    await fed.until(lambda: accuracies(fed.folder, run_id) == {1: True, 2: True})
    assert (await fed.info(run_id)).status != "completed"
    gate.open.set()
    info = await fed.finish(run_id)
    assert (info.status, accuracies(fed.folder, run_id)[3]) == ("completed", True)


async def test_a_folder_removed_while_its_run_was_paused_is_written_anew_with_every_visit(fed: Federation) -> None:
    run_id = await fed.start_and_pause(small_spec(num_rounds=2), 1)
    await fed.until(lambda: not fed.cloud.runs.training)
    folder = fed.folder / "runs" / run_id
    shutil.rmtree(folder)
    await fed.control(run_id, "resume")
    assert (await fed.finish(run_id)).status == "completed"
    assert [len(read_round(folder, round_no).seats) for round_no in (1, 2)] == [6, 6]
