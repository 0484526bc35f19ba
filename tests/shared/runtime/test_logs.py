"""The log: one event per line, whatever names contain, with the ids that follow a round through the tiers."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cloud_server.runs.events import RunEvent, log_run_event
from shared.runtime import logs
from shared.runtime.compute_thread import ComputeThread
from shared.runtime.logs import (
    LineFormatter,
    log_context,
    log_context_of,
    log_event,
    log_events,
    plain,
    read,
    shown,
    unfolded,
)
from tests.federation import Federation, small_spec

HOSTILE = 'x\n{"at": "2026"}\r\x1b[2J\x07\u202e\u2028\x85"} run=r1 \\'


class Kept(logging.Handler):
    """Collects lines as a process would write them."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.setFormatter(LineFormatter("edge", "edge-1", form))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += self.format(record).split("\n")

    @property
    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@contextmanager
def captured(form: str) -> Iterator[Kept]:
    handler, root = Kept(form), logging.getLogger("strata")
    before, root.level = root.level, logging.INFO
    root.addHandler(handler)
    logging.getLogger("strata.events").setLevel(logging.INFO)
    yield handler
    logging.getLogger("strata.events").setLevel(logging.NOTSET)
    root.removeHandler(handler)
    root.setLevel(before)


@pytest.fixture
def as_json() -> Iterator[Kept]:
    with captured("json") as kept:
        yield kept


def test_a_line_has_its_ids_first_and_leaves_out_absent_fields(as_json: Kept) -> None:
    with log_context(run="r1", round=3):
        log_event("visit.ended", wall_s=0.25, seat=7, reason=None)
    log_event("listens", port=80)
    first, second = as_json.read
    assert list(first) == ["at", "level", "tier", "process", "event", "run", "round", "seat", "wall_s"]
    assert {**first, "at": ""} == {
        "at": "", "level": "info", "tier": "edge", "process": "edge-1", "event": "visit.ended",
        "run": "r1", "round": 3, "seat": 7, "wall_s": 0.25,
    }  # fmt: skip
    assert "run" not in second


async def test_a_decorated_function_or_coroutine_logs_with_the_ids_of_its_arguments(as_json: Kept) -> None:
    @log_context_of(lambda run, *, round_no: {"run": run, "round": round_no})
    def plainly(run: str, *, round_no: int) -> str:
        log_event("called")
        return f"{run} {round_no}"

    @log_context_of(lambda run: {"run": run})
    async def awaited(run: str) -> str:
        await asyncio.sleep(0)
        log_event("awaited")
        return plainly(run, round_no=2)

    assert [*await asyncio.gather(awaited("r1"), awaited("r2"))] == ["r1 2", "r2 2"]
    log_event("afterwards")
    found = [(line["event"], line.get("run"), line.get("round")) for line in as_json.read]
    assert sorted(found[:4]) == [
        (event, run, n) for event, n in (("awaited", None), ("called", 2)) for run in ("r1", "r2")
    ]
    assert found[4:] == [("afterwards", None, None)]


@pytest.mark.parametrize("form", ["json", "text"])
def test_names_messages_and_errors_cannot_add_lines_or_move_the_cursor(form: str) -> None:
    log = logging.getLogger("strata")
    with captured(form) as kept, log_context(run=HOSTILE, edge=HOSTILE):
        log_event("visit.begun", seat=1, detail=HOSTILE)
        log.warning("agent %s: %s", HOSTILE, HOSTILE)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.exception("it failed: %s", HOSTILE)
        log_run_event(HOSTILE, RunEvent("seat.moved", {"agent": HOSTILE, "from": HOSTILE, HOSTILE: HOSTILE}))
    assert len(kept.lines) == 4
    # Formatted here: pytest could not send its report of a line with half of a surrogate pair between its processes.
    half = logging.makeLogRecord({"name": "strata", "levelname": "INFO", "msg": "agent %s", "args": ("a\ud800b",)})
    for line in (*kept.lines, lone := kept.format(half)):
        assert line.isprintable()
        line.encode("utf-8")
    assert "agent a" in lone
    if form == "json":
        found = kept.read
        assert [line["run"] for line in found] == [HOSTILE] * 4
        assert found[0]["detail"] == HOSTILE
        for entry in found:
            assert shown(entry).isprintable()
            head, *below = unfolded(entry).split("\n")
            assert head.isprintable()
            assert all(part.startswith("    | ") and part.isprintable() for part in below)
        assert "ValueError" in unfolded(found[2])


def test_a_field_cannot_be_mistaken_for_another_in_text() -> None:
    line = {"at": "", "level": "info", "tier": "edge", "process": "p", "event": "e", "run": "r2", "detail": "x run=r1"}
    assert shown(line) == '? p        e run=r2 detail="x run=r1"'
    assert plain("a\tb\u202eé") == "a\\tb\\u202eé"


def test_a_plain_message_is_an_event_with_a_text_and_values_are_cut_and_finite(as_json: Kept) -> None:
    with log_context(run="r1"):
        logging.getLogger("strata").warning("agent %s is slow", "a-1")
    log_event("e", detail="x" * 10**6, loss=float("nan"), far=float("inf"))
    plainly, cut = as_json.read
    assert plainly.items() >= {"event": "log", "text": "agent a-1 is slow", "level": "warning", "run": "r1"}.items()
    assert len(cut["detail"]) == logs.MAX_CHARACTERS
    assert (cut["loss"], cut["far"]) == ("nan", "inf")


async def test_ids_reach_tasks_and_the_computing_thread_only(as_json: Kept) -> None:
    thread = ComputeThread()
    both = asyncio.Barrier(2)

    async def one(run: str) -> None:
        with log_context(run=run):
            await both.wait()
            task = asyncio.create_task(thread.run(log_event, f"worked for {run}"))
            await task
            log_event(f"after {run}")

    await asyncio.gather(one("a"), one("b"))
    await thread.run(log_event, "none")
    thread.close()
    assert {(line["event"], line.get("run")) for line in as_json.read} == {
        ("worked for a", "a"), ("worked for b", "b"), ("after a", "a"), ("after b", "b"), ("none", None),
    }  # fmt: skip


@pytest.mark.parametrize(
    "raw", ["", "x", "{", "[1]", "{}", '{"at": 1}', '{"event": "e"}', "{" * 10**5, '{"at":' * 10**5]
)
def test_lines_of_other_programs_are_not_parsed(raw: str) -> None:
    assert read(raw) is None


@pytest.mark.parametrize(
    ("variable", "value"), [("STRATA_LOG_FORMAT", "xml"), ("STRATA_LOG_LEVEL", "LOUD"), ("STRATA_LOG_LEVEL", "7")]
)
def test_an_unknown_setting_ends_the_process(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match=f"{variable}: '{value}' is not one of"):
        logs.configure("cloud", "cloud")


@pytest.mark.parametrize(
    ("given", "terminal", "form"),
    [("", False, "json"), ("", True, "text"), ("TEXT", False, "text"), ("json", True, "json")],
)
def test_text_format_is_used_for_terminals_and_on_request(
    monkeypatch: pytest.MonkeyPatch, given: str, terminal: bool, form: str
) -> None:
    configured = Mock()
    monkeypatch.setattr(logging, "basicConfig", configured)
    monkeypatch.setattr(logging, "captureWarnings", Mock())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("STRATA_LOG_FORMAT", given)
    logs.configure("edge", "edge-1")
    formatter = configured.call_args.kwargs["handlers"][0].formatter
    assert (formatter.form, formatter.process) == (form, "edge-1")


def test_lines_that_are_written_together_are_those_of_single_events(as_json: Kept) -> None:
    each: list[dict[str, Any]] = [{"seat": 1, "reason": None}, {"seat": 2, "reason": "of\ntwo lines"}]
    with log_context(run="r1", round=3):
        log_events("visit.failed", each, level=logging.WARNING)
        for fields in each:
            log_event("visit.failed", level=logging.WARNING, **fields)
    together, singly = as_json.read[:2], as_json.read[2:]
    assert [line["seat"] for line in together] == [1, 2]
    assert [{**line, "at": ""} for line in together] == [{**line, "at": ""} for line in singly]


def test_without_events_nothing_is_written(as_json: Kept) -> None:
    log_events("visit.failed", [])
    assert as_json.lines == []


async def test_one_round_is_followed_through_the_three_tiers(tmp_path: Path, as_json: Kept) -> None:
    async with Federation(tmp_path / "f", agent_devices=(2,), n_edges=1) as fed:
        losses = [{"round_no": 2, "seats": [1]}]
        info = await fed.run(small_spec(num_devices=2, num_edges=1, losses=losses))
        agent = fed.agent_id(0)
    lines = [line for line in as_json.read if line.get("run") == info.run]
    assert [line["status"] for line in lines if line["event"] == "run.status"] == [
        "pending", "starting", "running", "completed",
    ]  # fmt: skip

    def of_round(number: int) -> list[dict[str, Any]]:
        found = [line for line in lines if line.get("round") == number and line["event"] != "round.evaluated"]
        ends = next(n for n, line in enumerate(found) if line["event"] == "round.committed") + 1
        return [{k: v for k, v in line.items() if k not in logs.FIRST[:4] and k != "run"} for line in found[:ends]]

    first = of_round(1)
    assert [line["event"] for line in first] == [
        "round.started", "order.sent", "order.taken", "edge_round.begun",
        "visit.ended", "visit.ended", "update.sent",
        "wave.ended", "update.sent", "order.answered", "round.committed",
    ]  # fmt: skip
    assert first[1] == {**first[1], "home": 0, "edge": "edge-1", "kind": "train"}
    assert first[2]["bytes"] == first[1]["bytes"] > 0
    assert first[3] == {**first[3], "home": 0, "edge_round": 0, "seats": 2}
    assert [line["seat"] for line in first[4:6]] == [0, 1]
    assert first[4] == {**first[4], "home": 0, "edge_round": 0, "wave": 0, "kind": "train"}
    assert first[4]["wall_s"] > 0
    assert first[7] == {**first[7], "visits": 2, "used": 2}
    assert first[8]["bytes"] == first[9]["bytes"] > 0
    assert first[10]["n_used"] == 2
    second = of_round(2)
    lost = [line for line in lines if line["event"] == "contribution.lost"]
    logged = [(line["round"], line["seat"], line["reason"], line["level"]) for line in lost]
    assert logged == [(2, 1, "left_out", "warning")] * 2  # in its wave, and with the commit
    assert sum(line["event"] == "visit.ended" for line in second) == 1
    assert {line["round"] for line in lines if line["event"] == "round.evaluated"} == {1, 2}
    assert agent not in str(first)
