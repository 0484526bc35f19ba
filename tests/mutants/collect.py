"""Runs the unit tests once and records which test runs which lines of the code under mutation, and how long it takes.

`python -m tests.mutants.collect FOLDER`, in the copy of the tree. It writes the lines to `FOLDER/lines.sqlite`, with
the test as the context, and a line of JSON to `FOLDER/tests.jsonl` after each file of tests; run again, it goes on with
the files that are new or differ.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

from tests.mutants.packages import PACKAGES, all_code
from tests.mutants.recorded import RecordedFile, append_line, read_lines

LINES, TESTS = "lines.sqlite", "tests.jsonl"
MARKED = "not e2e and not compose and not slurm and not helm and not slow"
LEFT_OUT = ("benchmarks", "compose", "docs_site", "e2e", "helm", "mutants", "soak")
"""Folders of tests that have nothing to say about the code under mutation."""


class Recorder:
    """A pytest plugin: names the running test to `coverage`, and records each file of tests when it is through."""

    def __init__(self, tracer: coverage.Coverage, out: Path, root: Path) -> None:
        self.tracer, self.out, self.root = tracer, out, root
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Everything from a test's first fixture to its last belongs to the test."""
        self.tracer.switch_context(item.nodeid)
        result = yield
        self.tracer.switch_context("")
        if nextitem is None or nextitem.path != item.path:
            self._finish(item.path)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds up the time of set-up, call and tear-down."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def _finish(self, path: Path) -> None:
        """A test that failed or was skipped says nothing about a mutant, so it is not recorded."""
        self.tracer.save()
        passed = {test: round(seconds, 3) for test, seconds in self.seconds.items() if test not in self.failed}
        name = path.relative_to(self.root).as_posix()
        append_line(self.out / TESTS, RecordedFile(name, digest_of(path), passed)._asdict())
        self.seconds, self.failed = {}, set()


def digest_of(path: Path) -> str:
    """What changes with the file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def files_of_tests(root: Path) -> list[Path]:
    """Every file of unit tests that may cover the code; first those that mirror it, package by package."""
    mirrors = [folder for package in PACKAGES for folder in package.tests]

    def rank(path: Path) -> tuple[int, int, Path]:
        mirrored = [n for n, folder in enumerate(mirrors) if path.as_posix().startswith(folder)]
        return mirrored[0] if mirrored else len(mirrors), len(path.parts), path

    found = [path.relative_to(root) for path in (root / "tests").rglob("test_*.py")]
    return [root / path for path in sorted(found, key=rank) if path.parts[1] not in LEFT_OUT]


def main() -> int:
    """Record the files of tests that are not recorded yet."""
    root, out = Path.cwd(), Path(sys.argv[1])
    recorded = {file["file"]: file["digest"] for file in read_lines(out / TESTS)}
    missing = [
        str(path) for path in files_of_tests(root) if recorded.get(path.relative_to(root).as_posix()) != digest_of(path)
    ]
    if not missing:
        return 0
    tracer = coverage.Coverage(data_file=str(out / LINES), include=all_code(root), config_file=False, messages=False)
    tracer.set_option("run:relative_files", True)
    tracer.load()
    tracer.start()
    options = ["-q", "-m", MARKED, "-p", "no:cacheprovider", "--no-header"]
    status = pytest.main([*options, *missing], plugins=[Recorder(tracer, out, root)])
    tracer.stop()
    return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


if __name__ == "__main__":
    sys.exit(main())
