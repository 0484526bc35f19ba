"""Replays of crashed and of abandoned rounds end as if they had not been, also for seats that sat out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.storage.states import MemoryStateStore, StateOwner, StateStore, Version

SEATS = range(3)
CHOICE = st.lists(st.sets(st.sampled_from(SEATS), max_size=3), min_size=1, max_size=3)  # seats, for each wave


def visit(store: StateStore, seat: int, version: Version, base: tuple[Version, bytes] | None, where: str) -> None:
    """Append this visit to the seat's history: the state is the list of visits that led to it."""
    history = b"" if base is None else base[1]
    store.save(StateOwner("run", str(seat)), version, history + f"{version.text}{where} ".encode())


def final(store: StateStore, used: dict[int, Version | None] | None = None) -> list[bytes]:
    ends = [
        store.newest_at_or_before(StateOwner("run", str(s)), (used[s] if used else None) or Version(99)) for s in SEATS
    ]
    return [b"" if end is None or (used and used[s] is None) else end[1] for s, end in zip(SEATS, ends, strict=True)]


def attempt(store: StateStore, round_no: int, waves: list[set[int]], n_visits: int | None = None) -> None:
    """One attempt at a round: each visit starts strictly before itself; it crashes after `n_visits`."""
    visits = [(Version(round_no, 1, wave), seat) for wave, seats in enumerate(waves, 1) for seat in sorted(seats)]
    for version, seat in visits[:n_visits]:
        owner = StateOwner("run", str(seat))
        store.forget_before(owner, Version(round_no - 1, 99, 99))  # rounds before this one are committed
        visit(store, seat, version, store.newest_before(owner, version), "")


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(CHOICE, st.lists(st.integers(0, 9), max_size=2)), min_size=1, max_size=5))
def test_a_crashed_round_replayed_with_the_same_choices_leaves_no_trace(
    rounds: list[tuple[list[set[int]], list[int]]],
) -> None:
    undisturbed, crashed = MemoryStateStore(), MemoryStateStore()
    for round_no, (waves, crashes) in enumerate(rounds, 1):
        for n_visits in crashes:
            attempt(crashed, round_no, waves, n_visits)
        attempt(crashed, round_no, waves)
        attempt(undisturbed, round_no, waves)
    assert final(crashed) == final(undisturbed)


def named_attempt(
    store: StateStore, round_no: int, waves: list[set[int]], used: dict[int, Version | None], name: str
) -> dict[int, Version | None]:
    """One attempt whose messages name the newest version that counts; answers what counts after it."""
    used = dict(used)
    for wave, seats in enumerate(waves, 1):
        for seat in sorted(seats):
            owner, version, base = StateOwner("run", str(seat)), Version(round_no, 1, wave), used[seat]
            if base is not None and base.round_no < round_no:
                store.forget_before(owner, base)
            visit(store, seat, version, base and store.newest_at_or_before(owner, base), name)
            used[seat] = version
    return used


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(CHOICE, st.lists(CHOICE, max_size=2)), min_size=1, max_size=5))
def test_a_round_retried_with_other_choices_leaves_no_trace_where_the_message_names_the_base(
    rounds: list[tuple[list[set[int]], list[list[set[int]]]]],
) -> None:
    undisturbed, retried = MemoryStateStore(), MemoryStateStore()
    used: dict[int, Version | None] = dict.fromkeys(SEATS)
    used_undisturbed = dict(used)
    for round_no, (waves, abandoned) in enumerate(rounds, 1):
        for other in abandoned:
            named_attempt(retried, round_no, other, used, "abandoned")
        used = named_attempt(retried, round_no, waves, used, "")
        used_undisturbed = named_attempt(undisturbed, round_no, waves, used_undisturbed, "")
    assert final(retried, used) == final(undisturbed, used_undisturbed)
    assert not any(b"abandoned" in history for history in final(retried, used))


def test_without_a_named_base_a_retry_with_other_choices_would_continue_what_was_abandoned() -> None:
    store = MemoryStateStore()
    attempt(store, 1, [{0}])  # abandoned: the map changed
    attempt(store, 1, [{1}])  # its retry chose another seat, and counts
    attempt(store, 2, [{0}])
    assert store.load(StateOwner("run", "0"), Version(2, 1, 1)) == b"00000001-000001-000001 00000002-000001-000001 "
    store.forget_after(StateOwner("run", "0"), Version(0))
    attempt(store, 2, [{0}])
    assert store.load(StateOwner("run", "0"), Version(2, 1, 1)) == b"00000002-000001-000001 "
