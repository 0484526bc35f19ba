"""Runs tests against a mutant in a forked process, which has torch and pytest but none of our own modules yet."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

PRELOADED = (
    "torch", "fastapi", "httpx2", "hypothesis", "matplotlib.pyplot", "nicegui", "numpy", "pydantic_settings",
    "prometheus_client", "redis.asyncio", "rich.live", "safetensors.torch", "schemathesis.pytest.plugin", "scipy.stats",
    "sklearn.datasets", "typer", "uvicorn", "uvloop", "yaml",
)  # fmt: skip
"""Slow to import, and no part of the code under mutation."""
MEMORY = 8 << 30
"""Bytes of address space of a mutant's process; torch alone takes two to three GiB."""
TESTS_FAILED = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR)
"""The last two: a file of tests, or a test among parameters, does not even come about."""
PAUSE_S, PAUSED = 10.0, -1000
"""Seconds without a look at the running tests after which their result does not count; the exit status then."""
KILLED, TIMEOUT, SURVIVED, BROKEN = "killed", "timeout", "survived", "broken"
"""How a mutant fared; broken if pytest itself failed."""


class Outcome(NamedTuple):
    """The verdict on a mutant."""

    verdict: str
    by: str
    """The first test that failed, or the error that kept tests from running."""
    seconds: float


class _FirstFailure:
    """A pytest plugin that writes the name of what failed first to a pipe."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(f"{report.nodeid} (import)")

    def _write(self, name: str) -> None:
        os.write(self.pipe, (json.dumps(name) + "\n").encode())


def preload() -> None:
    """Import what every mutant's process needs; one thread each, as in `tests/conftest.py`."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["MPLBACKEND"] = "Agg"
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)


@contextmanager
def in_place(path: Path, text: str) -> Iterator[None]:
    """The file has the text meanwhile, and a later time of change, by which Python sees that its bytecode is stale."""
    original, times = path.read_bytes(), path.stat()
    path.write_text(text, encoding="utf-8")
    os.utime(path, (times.st_atime, times.st_mtime + 10))
    try:
        yield
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def run(tests: Sequence[str], limit_s: float, test_limit_s: float, output: Path) -> Outcome:
    """Runs the tests until the first failure; what the process prints goes to the file."""
    began = time.monotonic()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _child(tests, test_limit_s, output, writer)
    os.close(writer)
    try:
        status = _waited(pid, limit_s)
    finally:  # also if the session is interrupted; and what tests left running ends with them
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    with os.fdopen(reader, "rb") as pipe:
        named = [json.loads(line) for line in pipe.read(65536).splitlines()[:1]]
    seconds = round(time.monotonic() - began, 1)
    if status == PAUSED:
        return Outcome(BROKEN, "paused", seconds)
    if status is None:
        return Outcome(TIMEOUT, f"more than {limit_s:.0f} s", seconds)
    if status == pytest.ExitCode.OK:
        return Outcome(SURVIVED, "", seconds)
    if named or status in TESTS_FAILED or status < 0:
        return Outcome(KILLED, named[0] if named else f"exit status {status}", seconds)
    return Outcome(BROKEN, f"exit status {status}", seconds)


def _waited(pid: int, limit_s: float) -> int | None:
    """The exit status, negative for a signal; None if the process was killed for its time.

    If this process does not run for long, because it was stopped or the machine slept, tests may have failed for their
    time alone.
    """
    began = last = time.monotonic()
    paused = False
    while True:
        time.sleep(0.02)
        now = time.monotonic()
        paused, last = paused or now - last > PAUSE_S, now
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done and (paused or now - began > limit_s):
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return PAUSED if paused else None
        if done:
            return PAUSED if paused else os.waitstatus_to_exitcode(status)


def _child(tests: Sequence[str], test_limit_s: float, output: Path, writer: int) -> None:
    """Becomes the process that runs the tests, in a group of its own, which is killed as one."""
    status = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        sys.dont_write_bytecode = True
        options = ["-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", f"--timeout={test_limit_s:.0f}"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = int(pytest.main([*options, *tests], plugins=[_FirstFailure(writer)]))
    finally:
        os._exit(status)
