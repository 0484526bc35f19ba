"""Which tests run a line, in the order in which a mutant of the line should meet them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import coverage

from tests.mutants.collect import LINES, TESTS
from tests.mutants.packages import Package
from tests.mutants.recorded import append_line, read_lines


class CoverageMap:
    """What `collect` recorded in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {file["file"]: file for file in read_lines(folder / TESTS)}
        self.seconds: dict[str, float] = {test: s for file in self._files.values() for test, s in file["tests"].items()}
        self._data = coverage.CoverageData(str(folder / LINES))
        self._data.read()
        self._lines: dict[str, dict[int, list[str]]] = {}

    def covering(self, file: str, line: int, statement: int) -> set[str]:
        """Tests that run the line, or if it has none of its own, the first one of its statement."""
        if file not in self._lines:
            contexts = self._data.contexts_by_lineno(file)
            self._lines[file] = {line: list(tests or ()) for line, tests in contexts.items()}
        lines = self._lines[file]
        return {test for test in lines.get(line) or lines.get(statement, []) if test in self.seconds}

    def mirroring(self, package: Package) -> set[str]:
        """All tests of the package's own folders."""
        return {test for test in self.seconds if test.startswith(package.tests)}

    def within(self, tests: Iterable[str], package: Package, limit_s: float = math.inf) -> list[str]:
        """As many as take the given time, at least one: the package's own first, then of each file its fastest in turn.

        Tests of different files look at a line from different sides, so one of them notices sooner.
        """
        by_speed = sorted(tests, key=lambda test: (self.seconds[test], test))
        nth = dict.fromkeys((test.split("::")[0] for test in by_speed), 0)
        ranked: list[tuple[bool, int, float, str]] = []
        for test in by_speed:
            file = test.split("::")[0]
            nth[file] += 1
            ranked.append((not test.startswith(package.tests), nth[file], self.seconds[test], test))
        return list(self._until([test for *_, test in sorted(ranked)], limit_s))

    def _until(self, tests: list[str], limit_s: float) -> Iterator[str]:
        spent = 0.0
        for test in tests:
            if spent and spent + self.seconds[test] > limit_s:
                return
            spent += self.seconds[test]
            yield test

    def leave_out(self, test: str) -> None:
        """Forgets a test that cannot be relied on, until its file changes."""
        file = self._files[test.split("::")[0]]
        del file["tests"][test], self.seconds[test]
        append_line(self._folder / TESTS, file)

    def digest(self, tests: Iterable[str]) -> str:
        """Changes with the content of the tests' files."""
        files = sorted({test.split("::")[0] for test in tests})
        return hashlib.sha256("".join(file + self._files[file]["digest"] for file in files).encode()).hexdigest()[:16]
