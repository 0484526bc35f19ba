"""Runs are exported to trackers while they train: neither an export nor a failing tracker changes a run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from cloud_server.runs import tracking
from shared.results.tracking.live import TrackedRun
from shared.results.tracking.scalars import Step, read_tracked
from shared.results.tracking.tracker_notes import TrackerNote, read_notes, tracked_lines
from tests.federation import Federation, PassOn, small_spec
from tests.mlflow_server import Mlflow

pytestmark = pytest.mark.layout(agent_devices=(3, 3))

MODEL_SEED = {"seed": 3, "num_rounds": 3}


class Network:
    """A network with an MLflow server that may be unreachable; all other requests are passed on."""

    def __init__(self, fed: Federation, *, away: bool = False) -> None:
        self.server, self.is_down, self.hangs, self.bodies = Mlflow(), away, False, list[bytes]()
        fed.router.apps[80] = FastAPI()  # the port is open; `server` gives the answers
        fed.router.tamper = self._tamper

    async def _tamper(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.host != "mlflow.test":
            self.bodies.append(request.content)
            return await pass_on()
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_down:
            raise httpx2.ConnectError("refused", request=request)
        return self.server(request)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.test")
    monkeypatch.setattr(tracking, "EVERY_S", 0.05)
    monkeypatch.setattr(tracking, "SHARE", 1.0)


async def notes_of(fed: Federation, run: str, **wanted: Any) -> dict[str, TrackerNote]:
    """Waits until the notes of a run's trackers have these fields; returns the notes."""
    folder = fed.folder / "runs" / run

    def is_noted() -> bool:
        notes = read_notes(folder)
        return bool(notes) and all(
            getattr(note, name) == value for note in notes.values() for name, value in wanted.items()
        )

    await fed.until(is_noted)
    return read_notes(folder)


async def test_a_tracked_run_has_the_same_result_and_is_exported(fed: Federation) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    net = Network(fed)
    plain = await fed.run(small_spec(**MODEL_SEED))
    tracked = await fed.run(small_spec(**MODEL_SEED, tracking=["tensorboard", "mlflow"]))
    notes = await notes_of(fed, tracked.run, status="completed")
    assert (plain.tracking, tracked.tracking) == ((), ("tensorboard", "mlflow"))
    for name in ("model_sha256", "bytes_up", "bytes_down", "simulated_s", "accuracy", "spec"):
        assert getattr(plain, name) == getattr(tracked, name), name
    asked, others = [
        [body for body in net.bodies if (b'"spec"' in body[:8]) is first and b"num_rounds" in body]
        for first in (True, False)
    ]
    assert [b"tracking" in body for body in asked] == [False, True]
    assert others
    assert not any(b"tracking" in body for body in others)  # no order to another tier
    folder = fed.folder / "runs"
    assert {note.rounds for note in notes.values()} == {3}
    assert (notes["mlflow"].where, notes["tensorboard"].where) == (
        "http://mlflow.test",
        str(folder / "tensorboard" / tracked.run),
    )
    wanted = read_tracked(folder / tracked.run)
    (exported,) = net.server.runs.values()
    assert exported["status"] == "FINISHED"
    assert exported["tags"]["strata.model_sha256"] == tracked.model_sha256
    sent = {(key, step, value) for key, step, _, value in exported["metrics"]}
    assert sent >= {(name, step.round_no, value) for step in wanted.steps for name, value in step.figures.items()}
    assert {("accuracy/global", number) for number in (1, 2, 3)} <= {(key, step) for key, step, _ in sent}
    board = EventAccumulator(str(folder / "tensorboard" / tracked.run))
    board.Reload()
    assert [event.step for event in board.Scalars("accuracy/global")] == [1, 2, 3]
    assert not await fed.events(tracked.run, "tracking.failed")


@pytest.mark.whole
async def test_rounds_are_exported_during_the_run(fed: Federation) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    net = Network(fed)
    run = await fed.submit(small_spec(num_rounds=200, tracking=["tensorboard", "mlflow"]))
    await fed.until(lambda: "accuracy/global" in net.server.metrics())
    await fed.control(run, "pause")
    paused = await fed.until_status(run, "paused")
    notes = await notes_of(fed, run, status=paused.status)
    board = EventAccumulator(str(fed.folder / "runs" / "tensorboard" / run))
    board.Reload()
    steps = [event.step for event in board.Scalars("time/round_s")]
    assert steps == list(range(1, paused.rounds + 1))
    assert notes["tensorboard"].rounds == paused.rounds


async def test_a_tracker_that_was_unreachable_gets_everything_later(fed: Federation) -> None:
    net = Network(fed, away=True)
    run = await fed.submit(small_spec(tracking="mlflow"))
    await fed.until(lambda: bool(read_notes(fed.folder / "runs" / run)))
    assert "does not answer" in (read_notes(fed.folder / "runs" / run)["mlflow"].reason or "")
    net.is_down = False
    info = await fed.finish(run)
    assert info.status == "completed"
    await notes_of(fed, run, status="completed", rounds=2, reason=None)
    (failed,) = await fed.events(run, "tracking.failed")
    assert failed.data["tracker"] == "mlflow"
    assert "http://mlflow.test does not answer" in failed.data["reason"]
    assert len(await fed.events(run, "tracking.resumed")) == 1
    (exported,) = net.server.runs.values()
    assert exported["status"] == "FINISHED"


@pytest.mark.whole
async def test_a_store_that_fails_during_an_export_loses_no_export(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    monkeypatch.setattr(tracking, "TRIES", 10**6)
    net = Network(fed, away=True)
    info = await fed.run(small_spec(tracking="mlflow"))
    whole = Mlflow.runs_update

    def fail_afterwards(self: Mlflow, request: httpx2.Request, body: Any) -> Any:
        fed.store_error = "Redis is away"  # before the tracker's return can be recorded
        return whole(self, request, body)

    monkeypatch.setattr(Mlflow, "runs_update", fail_afterwards)
    net.is_down = False
    await fed.until(lambda: bool(fed.refused_calls))
    monkeypatch.setattr(Mlflow, "runs_update", whole)
    fed.store_error = None
    await notes_of(fed, info.run, status="completed", rounds=2, reason=None)


@pytest.mark.whole
@pytest.mark.parametrize("how", ["away", "hangs", "refuses"])
async def test_a_tracker_that_never_answers_is_given_up_and_named(
    how: str, monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    monkeypatch.setattr(tracking, "TRIES", 3)
    if how == "hangs":
        monkeypatch.setattr(tracking, "LIMIT_S", 0.2)
    net = Network(fed, away=how == "away")
    net.hangs = how == "hangs"
    if how == "refuses":
        monkeypatch.setattr(Mlflow, "experiments_get_by_name", lambda *_: httpx2.Response(403, json={"message": "no"}))
    info = await fed.run(small_spec(tracking="mlflow"))
    assert info.status == "completed"
    (note,) = (await notes_of(fed, info.run, status="completed")).values()
    why = {"away": "does not answer", "hangs": "took longer than 0.2 s", "refuses": "refused"}[how]
    assert why in (note.reason or "")
    assert f"`strata export {info.run} --to mlflow` exports it" in (note.reason or "")
    assert [event.data["reason"] for event in await fed.events(info.run, "tracking.failed")][-1] == note.reason


@pytest.mark.whole
async def test_a_run_whose_creation_was_not_answered_is_not_created_again(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    """The answer is lost, and the server's list of runs lags behind."""
    monkeypatch.setattr(tracking, "TRIES", 3)
    create, search = Mlflow.runs_create, Mlflow.runs_search

    def lost(self: Mlflow, request: httpx2.Request, body: Any) -> Any:
        create(self, request, body)
        raise httpx2.ReadError("the connection broke", request=request)

    monkeypatch.setattr(Mlflow, "runs_create", lost)
    monkeypatch.setattr(Mlflow, "runs_search", lambda *_: {"runs": []})
    net = Network(fed)
    info = await fed.run(small_spec(tracking="mlflow"))
    (note,) = (await notes_of(fed, info.run, status="completed")).values()
    assert (info.status, len(net.server.runs)) == ("completed", 1)
    assert f"look there for the tag strata.run = {info.run}" in (note.reason or "")
    [line] = tracked_lines(fed.folder / "runs" / info.run, ["mlflow"])
    assert line.count("strata export") == 1
    monkeypatch.setattr(Mlflow, "runs_search", search)  # it catches up
    later = await fed.run(small_spec(tracking="mlflow"))
    (note,) = (await notes_of(fed, later.run, status="completed", rounds=2)).values()
    assert (note.reason, len(net.server.runs)) == (None, 2)


@pytest.mark.whole
async def test_an_end_that_a_lost_cloud_did_not_export_is_exported_by_the_next(fed: Federation) -> None:
    net = Network(fed)
    net.hangs = True
    info = await fed.run(small_spec(tracking="mlflow"))
    await fed.stop("cloud")
    assert not net.server.runs
    net.hangs = False
    await fed.start_cloud()
    await notes_of(fed, info.run, status="completed", rounds=2)
    (exported,) = net.server.runs.values()
    assert exported["status"] == "FINISHED"


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_an_unusable_tracker_is_refused_at_submission(monkeypatch: pytest.MonkeyPatch, fed: Federation) -> None:
    async def refused(**fields: Any) -> dict[str, Any]:
        answer = await fed.client.post("/runs", json={"spec": small_spec(**fields)})
        assert answer.status_code == 422, answer.text
        return dict(answer.json())

    assert (await refused(tracking="wandb"))["field"].startswith("tracking")
    assert (await refused(tracking=["mlflow", "mlflow"]))["field"] == "tracking"
    assert "did you mean 'tracking'" in (await refused(traking="mlflow"))["detail"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///m.db")
    assert "not the address of a server" in (await refused(tracking="mlflow"))["detail"]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    problem = await refused(tracking="mlflow")
    assert (problem["field"], "MLFLOW_TRACKING_URI is not set" in problem["detail"]) == ("tracking", True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "stratafl[tensorboard]" in (await refused(tracking="tensorboard"))["detail"]
    assert (await fed.client.get("/runs")).json()["runs"] == []


def test_only_new_figures_are_exported() -> None:
    tracked, first = TrackedRun(), Step(1, "train", 5.0, {"loss/train": 1.0})
    assert tracked.new_steps([first]) == (first,)
    tracked.note([first])
    assert tracked.new_steps([first]) == ()
    later = Step(1, "train", 5.0, {"loss/train": 1.0, "accuracy/global": 0.5})
    again = Step(1, "evaluate", 6.0, {"loss/train": 1.0})
    assert tracked.new_steps([later, again]) == (Step(1, "train", 5.0, {"accuracy/global": 0.5}), again)


def test_unreadable_notes_count_as_absent(tmp_path: Path) -> None:
    (tmp_path / "tracking.json").write_text(json.dumps({"mlflow": {"status": 3}}))
    assert read_notes(tmp_path) == {}
