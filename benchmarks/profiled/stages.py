"""Profile of a tier: functions of the product are wrapped by timers, in processes that the benchmark starts.

The product contains no profiling code. The time of a stage is the CPU time of its thread, so that other work on the
machine hardly changes it, and excludes the stages within it. A waiting stage is a coroutine: its time is wall-clock
time, during which other stages run.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "BENCH_STAGES"

COMMON = {
    "receive an order": "shared.service.bodies:read_body",
    "hash bodies": "shared.wire.codec:digest_of",
    "hash bodies ": "shared.wire.codec:Body.digest",
    "encode": "shared.wire.codec:encode",
    "decode": "shared.wire.codec:decode",
}
STAGES: dict[str, dict[str, str]] = {
    "cloud_server": {
        **COMMON,
        "make orders": "cloud_server.runs.round:CloudRound._build_order",
        "wait for edges": "shared.service.client:Caller.post_record",
        "check sums": "cloud_server.runs.round:CloudRound._checked",
        "add sums": "shared.federation.aggregation.accumulator:Accumulator.merge",
        "aggregate": "cloud_server.runs.round:CloudRound._aggregate",
        "write files": "shared.storage.blobs:Blobs.put",
        "record of the round": "cloud_server.runs.round_record:Recorder.detail",
        "commit": "cloud_server.runs.repository:RunRepository.commit",
        "results folder": "cloud_server.runs.results_writer:ResultsFolder._write",
    },
    "edge_server": {
        **COMMON,
        "plan": "edge_server.rounds.round:EdgeRound._plan",
        "wait for agents": "shared.service.client:Caller.post_record",
        "take answers": "edge_server.rounds.exchange:Exchange.take_visits",
        "check and add sums": "shared.federation.aggregation.accumulator:Accumulator.merge",
        "record of visits": "edge_server.rounds.round_log:RoundLog.record_wave",
        "metrics": "edge_server.metrics:EdgeMetrics.noted",
        "write files": "shared.storage.blobs:Blobs.put",
    },
    "device_agent": {
        **COMMON,
        "begin a visit": "shared.federation.visits.open_visit:begin_visit",
        "train": "shared.federation.visits.trainer:LocalTrainer.fit",
        "train at once": "shared.federation.visits.stacks:fit_stack",
        "end a visit": "shared.federation.visits.open_visit:OpenVisit.end",
        "load states": "shared.storage.states.files:FileStateStore.load",
        "save states": "shared.storage.states.files:FileStateStore.save",
        "forget states": "shared.storage.states.files:FileStateStore.forget_before",
        "size if sent alone": "shared.federation.visits.uploads:answer_bytes",
        "add updates up": "shared.federation.visits.uploads:UploadBuilder.take",
        "log lines": "shared.runtime.logs:log_events",
        "visits, the rest": "device_agent.device_host:DeviceHost._run_and_encode",
    },
}
"""By tier: name of a stage -> the function that performs it."""


class Span(NamedTuple):
    """One call: its begin (monotonic seconds), and its own CPU seconds or, if it waits, its duration."""

    stage: str
    began: float
    seconds: float
    waits: bool


class Clock:
    """Collects spans; the time of a nested stage is subtracted from the outer one."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._open = threading.local()

    def timed(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with its calls recorded."""

        @functools.wraps(work)
        def call(*args: Any, **kwargs: Any) -> Any:
            began, cpu_s, outer = time.monotonic(), time.thread_time(), getattr(self._open, "inner_s", 0.0)
            self._open.inner_s = 0.0
            try:
                return work(*args, **kwargs)
            finally:
                took = time.thread_time() - cpu_s
                self.spans.append(Span(stage, began, took - self._open.inner_s, False))
                self._open.inner_s = outer + took

        return call

    def waited(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same coroutine function, with its calls recorded."""

        @functools.wraps(work)
        async def call(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return await work(*args, **kwargs)
            finally:
                self.spans.append(Span(stage, began, time.monotonic() - began, True))

        return call


def run_timed(tier: str) -> None:
    """Run a tier as `python -m` does, and write its spans when it ends."""
    clock = Clock()
    for stage, place in STAGES[tier].items():
        _wrap(clock, stage.strip(), place)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # uvicorn raises it again at its end
    try:
        runpy.run_module(tier, run_name="__main__", alter_sys=True)
    finally:
        Path(os.environ[FOLDER], f"{tier}-{os.getpid()}.json").write_text(json.dumps(clock.spans), encoding="utf-8")


def _wrap(clock: Clock, stage: str, place: str) -> None:
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    work = getattr(owner, name)
    timed = clock.waited if work.__code__.co_flags & 0x80 else clock.timed  # 0x80: a coroutine function
    wrapped = timed(stage, work)
    setattr(owner, name, wrapped)
    for user in [known for known in list(sys.modules.values()) if getattr(known, name, None) is work]:
        setattr(user, name, wrapped)  # modules that imported it by name before


def read_spans(folder: Path, tier: str) -> list[list[Span]]:
    """The spans of each process of a tier."""
    files = sorted(folder.glob(f"{tier}-*.json"))
    return [[Span(*span) for span in json.loads(file.read_text(encoding="utf-8"))] for file in files]
