"""Judges the mutants of a sample that have no verdict yet; runs in the copy of the tree.

`python -m tests.mutants.session FOLDER N`: a line of JSON per verdict goes to `FOLDER/verdicts.jsonl`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutants import trial
from tests.mutants.coverage_map import CoverageMap
from tests.mutants.packages import Package
from tests.mutants.recorded import append_line, read_lines
from tests.mutants.report import SAMPLE, VERDICTS, known_survivors
from tests.mutants.sample import Mutant, sample
from tests.mutants.trial import BROKEN, KILLED, SURVIVED, TIMEOUT, Outcome

OUTPUT, CHECKED = "output.txt", "checked.jsonl"
"""Files of a session: what the last tests printed, and the tests that pass on the unchanged code."""
LINE_S, PACKAGE_S = 20.0, 90.0
"""Recorded seconds of tests: of the first that cover the mutant's line, and, if it survives, of the others that do as
well as of the package's that do not."""
FEW_S = 5.0
"""Recorded seconds of the first few tests."""
START_S, SLOWER = 40.0, 4.0
"""A mutant has this long, and this many times what its tests took when they were recorded."""
TEST_S = 30.0
"""The least that one test may take."""


class Session:
    """The verdicts so far, and how to come to further ones."""

    def __init__(self, root: Path, folder: Path, mutants: list[Mutant]) -> None:
        self.root, self.folder, self.mutants = root, folder, mutants
        self.known = known_survivors(root)
        self.coverage = CoverageMap(folder)
        self.verdicts: dict[str, dict[str, Any]] = {v["key"]: v for v in read_lines(folder / VERDICTS)}
        (folder / SAMPLE).write_text(json.dumps([mutant.key for mutant in mutants]), encoding="utf-8")

    def run(self) -> None:
        """First every mutant against the tests of its line, then the survivors against their packages' tests."""
        for stage in ("line", "package"):
            pending = [mutant for mutant in self.mutants if self._is_pending(mutant, stage)]
            self._judge_all(sorted(pending, key=lambda mutant: mutant.key in self.verdicts), stage)
        self._check_killers()

    def _is_pending(self, mutant: Mutant, stage: str) -> bool:
        """Whether a stage is still to come; a survivor meets both again once any of its tests is new or changed."""
        verdict = self.verdicts.get(mutant.key)
        if verdict is None or verdict["code"] != mutant.code or verdict["verdict"] == BROKEN:
            return stage == "line"
        if verdict["verdict"] != SURVIVED or any(entry.matches(verdict) for entry in self.known):
            return False
        of_line, of_package = self._tests(mutant)
        if stage == "line":
            return bool(verdict["tests"] != self.coverage.digest([*of_line, *of_package]))
        return bool(verdict["stage"] == "line" and of_package)

    def _tests(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """The tests of both stages."""
        covering = self.coverage.covering(mutant.file, mutant.place.line, mutant.place.statement)
        of_line = self.coverage.within(covering, mutant.package, LINE_S)
        rest = self.coverage.within(covering - set(of_line), mutant.package, PACKAGE_S)
        others = self.coverage.mirroring(mutant.package) - covering
        return of_line, rest + self.coverage.within(others, mutant.package, PACKAGE_S)

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
        outcome = self._outcome(mutant, tests) if tests else Outcome(SURVIVED, "no test runs the line", 0.0)
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

    def _outcome(self, mutant: Mutant, tests: list[str]) -> Outcome:
        """First a few tests of the package run: if they notice, the files of the others are not even imported."""
        own = [test for test in tests if test.startswith(mutant.package.tests)]
        few = self.coverage.within(own, mutant.package, FEW_S)
        seconds = 0.0
        with trial.in_place(self.root / mutant.file, mutant.change.text):
            for part in filter(None, (few, [test for test in tests if test not in few])):
                outcome = self._trial(part)
                seconds += outcome.seconds
                if outcome.verdict != SURVIVED:
                    break
        return outcome._replace(seconds=round(seconds, 1))

    def _trial(self, tests: list[str]) -> Outcome:
        seconds = [self.coverage.seconds.get(test, 0.0) for test in tests]
        limit_s, test_limit_s = START_S + SLOWER * sum(seconds), max(TEST_S, SLOWER * max(seconds))
        return trial.run(tests, limit_s, test_limit_s, self.folder / OUTPUT)

    def _check_killers(self) -> None:
        """A test that kills must pass on the unchanged code, run as mutants are; else it does not count any more."""
        checked = {line["test"] for line in read_lines(self.folder / CHECKED)}
        for package in dict.fromkeys(mutant.package for mutant in self.mutants):
            killers = {v["by"] for v in self._verdicts_of(package) if v["verdict"] == KILLED}
            tests = self.coverage.within(killers & self.coverage.seconds.keys() - checked, package)
            while tests and (outcome := self._trial(tests)).verdict != SURVIVED:
                failed = outcome.by if outcome.by in tests else tests[0]
                tests.remove(failed)
                self._withdraw(failed, package)
            for test in tests:
                append_line(self.folder / CHECKED, {"test": test})

    def _withdraw(self, test: str, package: Package) -> None:
        """The test is left out from now on; what it killed is judged again by the next call."""
        print(f"{test} fails on the unchanged code, too: what it killed is to be judged again", flush=True)
        self.coverage.leave_out(test)
        for verdict in self._verdicts_of(package):
            if verdict["by"] == test:
                append_line(self.folder / VERDICTS, verdict | {"verdict": BROKEN})

    def _verdicts_of(self, package: Package) -> list[dict[str, Any]]:
        known = (self.verdicts.get(mutant.key) for mutant in self.mutants if mutant.package == package)
        return [verdict for verdict in known if verdict is not None]

    @staticmethod
    def _line(verdict: dict[str, Any]) -> str:
        where = f"{verdict['file']}:{verdict['line']} {verdict['operator']}"
        return f"{verdict['verdict']:8} {verdict['seconds']:5.1f} s, {verdict['n_tests']} tests, {where}"

    def _score(self) -> str:
        judged = [self.verdicts[mutant.key] for mutant in self.mutants if mutant.key in self.verdicts]
        n_killed = sum(verdict["verdict"] in (KILLED, TIMEOUT) for verdict in judged)
        return f"{n_killed} of {len(judged)} killed ({n_killed / len(judged):.0%})"


def main(arguments: Iterable[str]) -> None:
    """Go on with the session of a folder."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the running mutant ends, too
    folder, n = arguments
    root = Path.cwd()
    session = Session(root, Path(folder), sample(root, int(n)))
    trial.preload()
    session.run()


if __name__ == "__main__":
    main(sys.argv[1:])
