"""Replays of crashed and abandoned rounds give the results of undisturbed ones, also for seats that did not train."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.storage.states import StateOwner, StateStore, Version
from tests.fakes.memory_state_store import MemoryStateStore

SEATS = range(3)
CHOICE = st.lists(st.sets(st.sampled_from(SEATS), max_size=3), min_size=1, max_size=3)  # seats, for each wave
Newest = dict[int, Version | None]
"""Seat -> the version of its newest visit that counts."""


def attempt(
    store: StateStore, round_no: int, waves: list[set[int]], counted: Newest, name: str, n_visits: int | None = None
) -> Newest:
    """One attempt at a round, which crashes after `n_visits`: a state is the list of the visits that led to it."""
    newest = dict(counted)
    visits = [(Version(round_no, 1, wave), seat) for wave, seats in enumerate(waves, 1) for seat in sorted(seats)]
    for version, seat in visits[:n_visits]:
        owner, base = StateOwner("run", str(seat)), newest[seat]
        if base is not None and base.round_no < round_no:  # rounds before this one are committed
            store.forget_before(owner, base)
        history = b"" if base is None else store.load(owner, base)
        assert history is not None, "no replay needs a state that was dropped"
        store.save(owner, version, history + f"{version.text}{name} ".encode())
        newest[seat] = version
    return newest


def final(store: StateStore, counted: Newest) -> list[bytes | None]:
    return [version and store.load(StateOwner("run", str(seat)), version) for seat, version in counted.items()]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(CHOICE, st.lists(st.integers(0, 9), max_size=2), st.lists(CHOICE, max_size=2)), min_size=1, max_size=5
    )
)
def test_other_attempts_leave_no_trace(rounds: list[tuple[list[set[int]], list[int], list[list[set[int]]]]]) -> None:
    undisturbed, disturbed = MemoryStateStore(), MemoryStateStore()
    counted: Newest = dict.fromkeys(SEATS)
    counted_undisturbed = dict(counted)
    for round_no, (waves, crashes, abandoned) in enumerate(rounds, 1):
        for other in abandoned:
            attempt(disturbed, round_no, other, counted, "abandoned")
        for n_visits in crashes:
            attempt(disturbed, round_no, waves, counted, "", n_visits)
        counted = attempt(disturbed, round_no, waves, counted, "")
        counted_undisturbed = attempt(undisturbed, round_no, waves, counted_undisturbed, "")
    assert final(disturbed, counted) == final(undisturbed, counted_undisturbed)
    assert not any(b"abandoned" in (history or b"") for history in final(disturbed, counted))
