"""What each file of tests costs: CPU seconds of the process that runs it, and of the children that this waited for.

With `TEST_COST=costs.ndjson` each process of a test session appends a line of JSON for each file. A child counts
where it is waited for: that of a fixture of a module to this module, what ends with the session, such as a fork server,
to `(end)`. To `(start)` belong imports and collection.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest


def _spent_s() -> tuple[float, float]:
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


class Costs:
    """What the files of one process have cost so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = (0.0, 0.0)
        self._of_file: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._tests: Counter[str] = Counter()

    def charge(self, what: str) -> None:
        """Charge what was spent since the last call to a file."""
        now = _spent_s()
        for place in (0, 1):
            self._of_file[what][place] += now[place] - self._last[place]
        self._last = now

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Charge a test, with its fixtures, to its file."""
        self.charge("(start)" if not self._tests else "(between)")
        name = item.nodeid.partition("::")[0]
        self._tests[name] += 1
        result = yield
        self.charge(name)
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_worker_begins(self) -> None:
        """Count from here on; what was spent before the fork is the session's."""
        self._last = _spent_s()
        self._of_file.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_worker_ends(self) -> None:
        """Write the lines of a worker."""
        self._write()

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Write the lines; the children of a session with workers are these, which have written their own."""
        self.charge("(end)")
        if config.option.workers:
            self._of_file["(end)"][1] = 0.0
        self._write()

    def _write(self) -> None:
        self.charge("(end)")
        lines = [
            json.dumps({"file": name, "self_s": own, "children_s": theirs, "tests": self._tests[name]})
            for name, (own, theirs) in self._of_file.items()
        ]
        with self._path.open("a", encoding="utf-8") as out:
            out.write("".join(f"{line}\n" for line in lines))


def count_costs(config: pytest.Config) -> None:
    """Count, where this is asked for."""
    if path := os.environ.get("TEST_COST"):
        config.pluginmanager.register(Costs(Path(path)), "test costs")
