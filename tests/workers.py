"""Tests divided among processes that are forked once everything is imported and collected: `pytest --workers N`.

Imports and collection take five times the import of torch, which each process would otherwise repeat. The numbers of
the files lie in a pipe; a process takes the next one when it is done with its last, so that a file stays with one
process. Reports come back as JSON. A test of which none comes, since its process died, has failed.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

_NUMBER_BYTES = 2


class WorkerHooks:
    """What plugins may do in a worker."""

    def pytest_before_workers(self, config: pytest.Config, items: Sequence[pytest.Item], count: int) -> None:
        """Called before so many workers are forked for these tests."""

    def pytest_after_workers(self) -> None:
        """Called in the session when all workers are forked."""

    def pytest_worker_begins(self, config: pytest.Config, number: int) -> None:
        """Called in a worker before its first test; workers are numbered from 0."""

    def pytest_worker_ends(self, config: pytest.Config) -> None:
        """Called in a worker after its last test."""


def by_file(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests of each file, in the order in which the files first appear."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    return list(files.values())


class Workers:
    """Runs the tests of a session in forked processes.

    Args:
        count: the number of processes, at most one for each file.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    @pytest.hookimpl
    def pytest_addhooks(self, pluginmanager: pytest.PytestPluginManager) -> None:
        """Add the hooks of workers."""
        pluginmanager.add_hookspecs(WorkerHooks)

    @pytest.hookimpl
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the tests; a session that has nothing to run goes on without workers."""
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None
        files = by_file(session.items)
        count = min(self._count, len(files))
        session.config.hook.pytest_before_workers(config=session.config, items=session.items, count=count)
        _check_forkable()
        numbers = _dealt(len(files))
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # of which each has a folder
        session.config.pluginmanager.getplugin("capturemanager").read_global_capture()
        running: dict[Connection, int] = {}
        for number in range(count):
            ours, theirs = Pipe(duplex=False)
            pid = os.fork()
            if not pid:
                _work(session.config, files, numbers, theirs, number)
            theirs.close()
            running[ours] = pid
        session.config.hook.pytest_after_workers()
        try:
            _Results(session).collect(running)
        finally:
            for pid in running.values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
                os.waitpid(pid, 0)
            os.close(numbers)
        return True


class _Results:
    """What the session learns from its workers."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._config = session, session.config
        self._missing = {item.nodeid: item.location for item in session.items}
        self._ends: list[str] = []

    def collect(self, running: dict[Connection, int]) -> None:
        """Report what workers report, until all have ended; each is then removed from `running`."""
        while running:
            for connection in wait([*running]):
                assert isinstance(connection, Connection)
                try:
                    self._take(json.loads(connection.recv_bytes()))
                except EOFError:
                    _, status = os.waitpid(running.pop(connection), 0)
                    if code := os.waitstatus_to_exitcode(status):
                        self._ends.append(f"signal {-code}" if code < 0 else f"exit status {code}")
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        why = f"no report came of this test: processes ended with {', '.join(self._ends) or 'no error'}"
        for nodeid, location in self._missing.items():
            self._report(pytest.TestReport(nodeid, location, {}, "failed", why, "call"))

    def _take(self, message: dict[str, Any]) -> None:
        if "error" in message:
            self._ends.append(message["error"])
            return
        if "warning" in message:
            text = warnings.WarningMessage(Warning(message.pop("warning")), Warning, message.pop("file"), 0)
            self._config.hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": text, **message})
            return
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=message["report"])
        if isinstance(report.longrepr, list):  # file, line and reason of a skip, which JSON has as a list
            report.longrepr = tuple(report.longrepr)
        if report.when == "teardown":
            del self._missing[report.nodeid]
        self._report(report)

    def _report(self, report: pytest.TestReport) -> None:
        self._config.hook.pytest_runtest_logreport(report=report)
        if report.failed:  # the session ends minutes later
            self._config.get_terminal_writer().line(f"\nfailed: {report.nodeid}")


class _Reports:
    """Sends what a worker has to report."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send({"report": data})

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        """Send a warning, which is shown by its text."""
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        self._send(
            {"warning": text, "file": warning_message.filename, "when": when, "nodeid": nodeid, "location": None}
        )

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(message, default=str).encode())


def _check_forkable() -> None:
    """Check that a fork copies all of this process.

    Raises:
        pytest.UsageError: another thread runs, which would be missing from the copies.
    """
    tasks = Path("/proc/self/task")
    if tasks.is_dir() and (threads := len(list(tasks.iterdir()))) != 1:
        raise pytest.UsageError(f"{threads} threads run after the collection: `--workers` cannot fork (use no workers)")


def _dealt(count: int) -> int:
    """A pipe with the numbers of so many files; returns the end from which they are read."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in range(count)))
    os.close(writer)
    return reader


def _work(config: pytest.Config, files: list[list[pytest.Item]], numbers: int, out: Connection, number: int) -> None:
    """Be a worker: run tests until no file is left, then end the process."""
    atexit._clear()  # what the session has to do at its end
    status = 1
    try:
        _begin(config, out, number)
        _run(_taken(files, numbers))
        config.hook.pytest_worker_ends(config=config)
        status = 0
    except KeyboardInterrupt:
        files[0][0].session._setupstate.teardown_exact(None)
    except Exception:  # not of a test, but of a plugin
        out.send_bytes(json.dumps({"error": traceback.format_exc()}).encode())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _begin(config: pytest.Config, out: Connection, number: int) -> None:
    """Give a worker a folder, captured output and reports of its own, in place of those of the session."""
    plugins = config.pluginmanager
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    config.get_terminal_writer()._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    plugins.register(_Reports(config, out))
    folder = config._tmp_path_factory.getbasetemp() / f"worker-{number}"  # type: ignore[attr-defined]
    folder.mkdir()
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    config.hook.pytest_worker_begins(config=config, number=number)


def _taken(files: list[list[pytest.Item]], numbers: int) -> Iterator[pytest.Item]:
    while number := os.read(numbers, _NUMBER_BYTES):
        yield from files[int.from_bytes(number, "big")]


def _run(items: Iterator[pytest.Item]) -> None:
    """Run tests, of which each is told the next one, whose fixtures may be the same."""
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
