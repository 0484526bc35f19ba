"""Judges the mutants of a sample that have no verdict yet; runs in the copy of the tree.

`python -m tests.mutants.session FOLDER N`: a line of JSON per verdict goes to `FOLDER/verdicts.jsonl`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutants import trial
from tests.mutants.coverage_map import CoverageMap
from tests.mutants.recorded import append_line, read_lines
from tests.mutants.sample import Mutant, sample

VERDICTS, OUTPUT = "verdicts.jsonl", "output.txt"
LINE_S, PACKAGE_S = 60.0, 60.0
"""Recorded seconds of tests: of those that cover the mutant's line, and, if it survives, of the package's others."""
START_S, SLOWER = 40.0, 4.0
"""A mutant has this long, and this many times what its tests took when they were recorded."""
TEST_S = 15.0
"""The least that one test may take."""


class Session:
    """The verdicts so far, and how to come to further ones."""

    def __init__(self, root: Path, folder: Path, mutants: list[Mutant]) -> None:
        self.root, self.folder, self.mutants = root, folder, mutants
        self.coverage = CoverageMap(folder)
        self.verdicts: dict[str, dict[str, Any]] = {v["key"]: v for v in read_lines(folder / VERDICTS)}

    def run(self) -> None:
        """First every mutant against the tests of its line, then the survivors against their packages' tests."""
        self._judge_all(self._pending("line"), "line")
        self._judge_all(self._pending("package"), "package")

    def _pending(self, stage: str) -> list[Mutant]:
        return [mutant for mutant in self.mutants if self._is_pending(mutant, stage)]

    def _is_pending(self, mutant: Mutant, stage: str) -> bool:
        verdict = self.verdicts.get(mutant.key)
        if verdict is None or verdict["code"] != mutant.code:
            return True
        if verdict["verdict"] != "survived":
            return False
        of_line, of_package = self._tests(mutant)
        if stage == "line":
            return bool(verdict["tests"] != self.coverage.digest([*of_line, *of_package]))
        return bool(verdict["stage"] == "line" and of_package)

    def _tests(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """The tests of both stages."""
        covering = self.coverage.covering(mutant.file, mutant.place.line, mutant.place.statement)
        of_line = self.coverage.within(covering, mutant.package, LINE_S)
        others = self.coverage.mirroring(mutant.package) - set(of_line)
        return of_line, self.coverage.within(others, mutant.package, PACKAGE_S)

    def _judge_all(self, mutants: list[Mutant], stage: str) -> None:
        began = time.monotonic()
        for n, mutant in enumerate(mutants, 1):
            verdict = self._judge(mutant, stage)
            append_line(self.folder / VERDICTS, verdict)
            self.verdicts[mutant.key] = verdict
            left_min = (time.monotonic() - began) / n * (len(mutants) - n) / 60
            print(
                f"{n}/{len(mutants)} {stage}: {self._line(verdict)}; {self._score()}, {left_min:.0f} min left",
                flush=True,
            )

    def _judge(self, mutant: Mutant, stage: str) -> dict[str, Any]:
        of_line, of_package = self._tests(mutant)
        tests = of_line if stage == "line" else of_package
        outcome = trial.Outcome("survived", "no test runs the line", 0.0)
        if tests:
            seconds = [self.coverage.seconds[test] for test in tests]
            limit_s, test_limit_s = START_S + SLOWER * sum(seconds), max(TEST_S, SLOWER * max(seconds))
            with trial.in_place(self.root / mutant.file, mutant.change.text):
                outcome = trial.run(tests, limit_s, test_limit_s, self.folder / OUTPUT)
        return {
            "key": mutant.key,
            "package": mutant.package.name,
            "file": mutant.file,
            "code": mutant.code,
            "function": mutant.place.function,
            "line": mutant.place.line,
            "operator": mutant.place.operator,
            "was": mutant.change.was,
            "becomes": mutant.change.becomes,
            "stage": stage,
            "n_tests": len(tests),
            "tests": self.coverage.digest([*of_line, *of_package]),
            **outcome._asdict(),
        }

    @staticmethod
    def _line(verdict: dict[str, Any]) -> str:
        where = f"{verdict['file']}:{verdict['line']} {verdict['operator']}"
        return f"{verdict['verdict']:8} {verdict['seconds']:5.1f} s, {verdict['n_tests']} tests, {where}"

    def _score(self) -> str:
        judged = [self.verdicts[mutant.key] for mutant in self.mutants if mutant.key in self.verdicts]
        n_killed = sum(verdict["verdict"] in ("killed", "timeout") for verdict in judged)
        return f"{n_killed} of {len(judged)} killed ({n_killed / len(judged):.0%})"


def main(arguments: Iterable[str]) -> None:
    """Go on with the session of a folder."""
    folder, n = arguments
    root = Path.cwd()
    session = Session(root, Path(folder), sample(root, int(n)))
    trial.preload()
    session.run()


if __name__ == "__main__":
    main(sys.argv[1:])
