"""How tests are divided among workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import parts

TEXTS = {
    "waits_1.py": "pytestmark = pytest.mark.e2e",
    "waits_2.py": "@pytest.mark.e2e",
    "shares.py": '@pytest.fixture(scope="module")',
    "plain_1.py": "",
    "plain_2.py": "",
}


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_text", TEXTS.__getitem__)


def ids(**counts: int) -> list[str]:
    return [f"{name}.py::test_{n}" for name, count in counts.items() for n in range(count)]


def test_files_that_wait_or_share_a_fixture_stay_whole_and_others_come_in_parts() -> None:
    found = parts.parts_of(ids(waits_1=40, plain_1=20, plain_2=16, shares=33))
    assert [(part[0].partition(".")[0], len(part)) for part in found] == [
        ("waits_1", 40),
        *[("plain_1", 16), ("plain_1", 4), ("plain_2", 16)],
        ("shares", 33),
    ]


def test_what_waits_is_spread_evenly_and_no_test_is_lost() -> None:
    named = ids(waits_1=3, waits_2=2, plain_1=64, shares=20, plain_2=48)
    items: list[Any] = [SimpleNamespace(nodeid=each) for each in named]
    order = [item.nodeid for item in parts.spread(items)]
    assert sorted(order) == sorted(named)
    found = [part[0].partition(".")[0] for part in parts.parts_of(order)]
    assert len(found) == 10
    assert [place for place, name in enumerate(found) if name.startswith("waits")] == [2, 7]
