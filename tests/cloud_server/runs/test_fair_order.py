"""In which order pending runs begin: owners take turns, and with one owner the oldest is next."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_server.runs.fair_order import Turns, fair_order, wait_reasons
from shared.run_records.runs import RunInfo
from shared.storage import redis_keys
from tests.fakes.memory_store import MemoryStore
from tests.strata.samples import a_run


def runs(*owners: str, first: int = 1) -> list[RunInfo]:
    """A run of each owner, in the order of their creation; `-` is the administrator."""
    return [
        a_run(run=f"r{number}", sequence=10**13 + number, owner=None if owner == "-" else owner, status="pending")
        for number, owner in enumerate(owners, first)
    ]


def order(waiting: list[RunInfo], training: list[RunInfo] | None = None, **more: Any) -> list[str]:
    return [info.run for info in fair_order(waiting[::-1], training or [], more.pop("turns", {}), **more)]


def test_with_one_owner_the_oldest_is_next_whatever_else_is_known() -> None:
    for owner in ("-", "alice"):
        waiting = runs(*[owner] * 4)
        expected = ["r1", "r2", "r3", "r4"]
        assert order(waiting) == expected
        assert order(waiting, runs(owner, owner, first=8), turns={"admin": 7, "alice": 8}) == expected
        assert order(waiting, interrupted={"r3"}) == expected


def test_nobody_waits_for_more_than_one_run_of_each_other_owner() -> None:
    waiting = runs("alice", "alice", "alice", "bob", "bob", "-")
    assert order(waiting) == ["r1", "r4", "r6", "r2", "r5", "r3"]
    assert order(waiting, turns={"alice": 3, "bob": 1, "admin": 2}) == ["r4", "r6", "r1", "r5", "r2", "r3"]


def test_an_owner_of_whom_fewer_runs_train_is_first_whoever_had_the_last_turn() -> None:
    waiting = runs("alice", "bob", "bob")
    training = runs("alice", "alice", "bob", first=8)
    assert order(waiting, training, turns={"alice": 1, "bob": 2}) == ["r2", "r1", "r3"]


def test_owners_of_interrupted_runs_are_first() -> None:
    waiting = runs("bob", "alice", "alice")
    assert order(waiting, turns={"alice": 5, "bob": 1}) == ["r1", "r2", "r3"]
    assert order(waiting, turns={"alice": 5, "bob": 1}, interrupted={"r2"}) == ["r2", "r1", "r3"]


def test_owners_of_interrupted_runs_are_first_only_until_these_have_begun() -> None:
    waiting = runs("alice", "alice", "bob", "bob", "alice")
    assert order(waiting, interrupted={"r1", "r5"}) == ["r1", "r2", "r5", "r3", "r4"]
    assert order(waiting, interrupted={"r1"}) == ["r1", "r3", "r2", "r4", "r5"]


def test_a_wait_names_owners_where_there_are_any() -> None:
    waiting, training = runs("bob", "-", "bob", "bob"), runs("alice", "-", first=8)
    text = "waiting: as many runs train as may at a time, 1 of admin, 1 of alice"
    assert dict(wait_reasons(waiting, training, {"r1", "r2", "r4", "r9"})) == {
        "r1": text,
        "r2": f"{text}; to begin before this one: 1 of bob",
        "r4": f"{text}; to begin before this one: 1 of admin, 2 of bob",
    }


async def test_turns_survive_a_restart_and_are_written_only_where_owners_change() -> None:
    store, written = MemoryStore(), list[bytes | None]()
    turns = Turns(store)
    for owner in (None, None, "alice", "alice", None):
        await turns.taken(owner)
        written.append(await store.get(redis_keys.CLOUD_TURNS))
    assert written == [b'{"admin":1}'] * 2 + [b'{"admin":1,"alice":2}'] * 2 + [b'{"alice":2,"admin":3}']
    again = Turns(store)
    await again.load()
    assert again.last == {"alice": 2, "admin": 3}


async def test_turns_that_cannot_be_read_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await store.put(redis_keys.CLOUD_TURNS, b'{"alice": "soon"}')
    turns = Turns(store)
    await turns.load()
    assert turns.last == {}
    assert "all owners begin anew" in caplog.text
