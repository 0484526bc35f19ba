"""How tests are divided among the workers of pytest-xdist: files that wait are spread among files that compute.

Files with real processes mostly wait. They stay whole, as do files whose tests share a fixture; others go to workers in
parts, whose tests share what a worker caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

PART = 16
"""Most tests of a part."""
ROOT = Path(__file__).parents[1]


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def waits(file: str) -> bool:
    """Whether tests of this file, relative to the repository, start real processes."""
    return "pytest.mark.e2e" in _text(file)


def stays_whole(file: str) -> bool:
    """Whether one worker has to run all tests of this file."""
    return waits(file) or 'scope="module"' in _text(file)


def parts_of(ids: Iterable[str]) -> list[list[str]]:
    """The tests in the parts that go to a worker at once, in order."""
    parts: list[list[str]] = []
    last = ""
    for each in ids:
        file = each.partition("::")[0]
        if file != last or (len(parts[-1]) == PART and not stays_whole(file)):
            parts.append([])
        parts[-1].append(each)
        last = file
    return parts


def spread(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests with the parts that wait at even distances among those that compute."""
    by_id = {item.nodeid: item for item in items}
    parts = parts_of(by_id)
    waiting: list[list[str]] = []
    computing: list[list[str]] = []
    for part in parts:
        (waiting if waits(part[0].partition("::")[0]) else computing).append(part)
    placed = [((n + 0.5) / len(those), part) for those in (waiting, computing) for n, part in enumerate(those)]
    return [by_id[each] for _, part in sorted(placed, key=lambda pair: pair[0]) for each in part]


class InParts(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives a worker a part at a time, in the order of the tests."""

    @cached_property
    def _numbers(self) -> dict[str, str]:
        found = enumerate(parts_of(self.collection or ()))
        return {each: str(number) for number, part in found for each in part}

    def _split_scope(self, nodeid: str) -> str:
        return self._numbers[nodeid]
