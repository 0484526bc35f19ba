"""Different ids have different keys, and deleting a run deletes all its keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.storage import redis_keys
from shared.storage.key_value import Batch
from shared.storage.states import Version
from tests.fakes.memory_store import MemoryStore

ARGUMENTS: dict[str, Any] = {
    **{"run_id": "r1", "edge_id": "e1", "agent_id": "a1", "seat": "7", "edge": 0, "digest": "d", "round_no": 3},
    **{"idempotency_key": "i", "version": Version(3, 1, 1), "uri": "strata://edge/e1", "serial": "a1", "name": "n1"},
}


def key_functions() -> list[Callable[..., str]]:
    found = inspect.getmembers(redis_keys, inspect.isfunction)
    ours = [function for _, function in found if function.__module__ == redis_keys.__name__]
    return [function for function in ours if function.__name__.startswith(("cloud_", "edge_"))]


def is_prefix(function: Callable[..., str]) -> bool:
    return (function.__doc__ or "").startswith("Prefix")


def built(function: Callable[..., str], **changes: Any) -> str:
    arguments = ARGUMENTS | changes
    return function(**{name: arguments[name] for name in inspect.signature(function).parameters})


def test_every_key_is_unique_has_its_owners_prefix_and_documents_owner_and_expiry() -> None:
    for function in key_functions():
        assert built(function).startswith("cloud:" if function.__name__.startswith("cloud_") else "edge:e1:")
        text = function.__doc__ or ""
        ends = any(word in text for word in ("Deleted", "Kept", "Expiry"))
        assert is_prefix(function) or ("Owner:" in text and ends)
    assert len({built(function) for function in key_functions()}) == len(key_functions())


async def test_deleting_a_run_deletes_all_its_keys_and_no_others() -> None:
    store, batch = MemoryStore(), Batch()
    keys = [function for function in key_functions() if not is_prefix(function)]
    for run_id in ("r1", "r10", "r"):
        for function in keys:
            batch.put(built(function, run_id=run_id), b"1")
    await store.commit(batch)
    before = await store.keys("")
    for prefix in (*redis_keys.all_of_run("r1"), *redis_keys.all_of_run_at_edge("e1", "r1")):
        await store.delete_prefix(prefix)
    of_run = {built(function) for function in keys if "run_id" in inspect.signature(function).parameters}
    of_run -= {redis_keys.cloud_deleted("r1")}  # marks the run as deleted
    some = {redis_keys.cloud_run("r1"), redis_keys.cloud_runs("r1"), redis_keys.edge_placement("e1", "r1", "d")}
    assert some < of_run
    assert set(before) - set(await store.keys("")) == of_run


@settings(max_examples=25)
@given(st.text(max_size=20), st.text(max_size=20))
def test_unusual_ids_give_separate_keys(one: str, other: str) -> None:
    assert redis_keys.last_part(redis_keys.cloud_edge(one)) == one
    assert redis_keys.run_of_index(redis_keys.cloud_runs(one)) == one
    assert (redis_keys.cloud_run(one) == redis_keys.cloud_run(other)) == (one == other)
    if one != other:
        assert redis_keys.edge_placement("e", "r", one) != redis_keys.edge_placement("e", "r", other)
        assert not redis_keys.cloud_events(other).startswith(tuple(redis_keys.all_of_run(one)))
        at_edge = tuple(redis_keys.all_of_run_at_edge("e", one))
        assert not redis_keys.edge_placement("e", other, "d").startswith(at_edge)
    assert not set("*?[]\\ \n") & set(redis_keys.cloud_run(one))


def test_keys_of_a_run_sort_by_round_and_version_and_one_of_any_length_is_short() -> None:
    assert redis_keys.cloud_evaluation("r", 9) < redis_keys.cloud_evaluation("r", 10)
    versions = [Version(2, 9, 1), Version(2, 10, 0), Version(9), Version(10)]
    states = [redis_keys.edge_state("e", "r", 0, version) for version in versions]
    assert states == sorted(states)
    for key in ("a" * 10_000, "", "ä:*"):
        assert len(redis_keys.cloud_idempotency(key)) == len("cloud:idempotency:") + 64
