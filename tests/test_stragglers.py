"""What a server does about stragglers, through the three tiers: who is late, who is one too many, what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_server.arrivals import Gate
from edge_server.wave import Refusal
from shared.api import RoundDetail, SeatRow
from tests.algorithms.ways import Ended, run
from tests.edge_server.test_states import refuse_spec
from tests.federation import small_spec

SLOW: dict[str, Any] = {"delay_s": {"name": "uniform", "low": 0, "high": 100}, "latency_s": 0}
LAYOUTS: list[dict[str, Any]] = [
    {"rooms": (6,)},
    {"rooms": (2, 2, 1, 1)},
    {"rooms": (1, 2, 1, 2), "order": (3, 1, 0, 2), "profiles": ("slow", "fast", "slow", "standard")},
]


def spec_of(profile: dict[str, Any] | None = None, **more: Any) -> Any:
    """A small run of devices each of whose visits takes up to 100 s."""
    devices = {"profile": {**SLOW, **(profile or {})}, "edge_latency_s": 0}
    return small_spec(devices=devices, **more)


def rows_of(done: Ended) -> dict[tuple[int, int], SeatRow]:
    return {(detail.round_no, row.seat): row for detail in done.rounds for row in detail.seats}


def with_reason(detail: RoundDetail, reason: str) -> list[int]:
    return sorted(row.seat for row in detail.seats if row.reason == reason)


def lasted(detail: RoundDetail) -> dict[int, float]:
    """Seconds of the visits at each home, without its link."""
    return {edge.home: edge.simulated_s - edge.down_s - edge.up_s for edge in detail.edges}


async def same_everywhere(folder: Path, spec: dict[str, Any]) -> Ended:
    """Run a spec in several layouts and orders of arrival; all must tell the same."""
    first, *others = [await run(folder, spec, **layout) for layout in LAYOUTS]
    for other in others:
        assert other.links() == first.links()
        assert other.info.model_sha256 == first.info.model_sha256
        assert [detail.figures for detail in other.rounds] == [detail.figures for detail in first.rounds]
    return first


# ---- the deadline


async def test_who_answers_after_the_deadline_is_late_wherever_it_sits(tmp_path: Path) -> None:
    free = rows_of(await run(tmp_path, spec_of(num_rounds=3)))
    done = await same_everywhere(tmp_path, spec_of(num_rounds=3, round_deadline_s=60))
    slow = {key for key, row in free.items() if row.simulated_s > 60}
    assert 3 < len(slow) < 15
    rows = rows_of(done)
    assert {key for key, row in rows.items() if row.reason == "late"} == slow
    for key, row in rows.items():
        if key in slow:
            assert (row.outcome, row.simulated_s, row.up_bytes, row.up_s) == ("refused", 60, 0, 0)
            assert row.compute_s == 60 - row.down_s
            assert (row.train_loss, row.n_samples) == (None, free[key].n_samples)
        else:
            assert row.outcome == "used"
            assert row.simulated_s == pytest.approx(free[key].simulated_s, abs=0.1)


async def test_an_edge_round_lasts_as_long_as_its_slowest_admitted_seat_or_its_deadline(tmp_path: Path) -> None:
    done = await run(tmp_path, spec_of(num_rounds=4, round_deadline_s=80))
    seen = set()
    for detail in done.rounds:
        for edge in detail.edges:
            own = [row for row in detail.seats if row.edge == edge.edge]
            late = any(row.reason == "late" for row in own)
            expected = 80 if late else max(row.simulated_s for row in own)
            assert lasted(detail)[edge.home] == pytest.approx(expected)
            seen.add(late)
    assert seen == {True, False}


async def test_a_run_with_late_seats_equals_one_that_leaves_them_out(tmp_path: Path) -> None:
    done = await run(tmp_path, spec_of(num_rounds=3, round_deadline_s=60))
    losses = [{"round_no": detail.round_no, "seats": with_reason(detail, "late")} for detail in done.rounds]
    quiet = await run(tmp_path, spec_of(num_rounds=3, losses=losses))
    assert done.info.model_sha256 == quiet.info.model_sha256
    assert [detail.failures for detail in done.rounds] == [()] * 3


async def test_a_deadline_that_nobody_misses_changes_no_bit_of_the_model(tmp_path: Path) -> None:
    free = await run(tmp_path, spec_of(edge_rounds=2))
    done = await run(tmp_path, spec_of(edge_rounds=2, round_deadline_s=1000))
    assert done.info.model_sha256 == free.info.model_sha256
    assert {row.outcome for row in rows_of(done).values()} == {"used"}


async def test_what_a_late_seat_has_sent_by_the_deadline_counts_and_no_more(tmp_path: Path) -> None:
    """Sending takes 100 times as long as the deadline: of the update a hundredth is there."""
    narrow = {"delay_s": 0, "up_bps": 1e4, "compute_sps": 1e9, "j_per_byte_up": 1e-3, "j_per_flop": 0}
    free = rows_of(await run(tmp_path, spec_of(narrow, num_rounds=1)))
    whole_s = min(row.simulated_s for row in free.values())
    done = await run(tmp_path, spec_of(narrow, num_rounds=1, round_deadline_s=whole_s / 100))
    for key, row in rows_of(done).items():
        assert (row.outcome, row.reason) == ("refused", "late")
        assert row.up_bytes == pytest.approx(free[key].up_bytes / 100, rel=0.1)
        assert row.up_s == pytest.approx(8 * row.up_bytes / 1e4, rel=0.1)
        assert row.energy_j == pytest.approx(1e-3 * row.up_bytes)
    assert done.rounds[0].n_used == 0
    assert done.info.status == "completed"


async def test_each_edge_round_has_its_own_deadline(tmp_path: Path) -> None:
    done = await run(tmp_path, spec_of({"delay_s": 50}, num_rounds=1, edge_rounds=3, round_deadline_s=60))
    (first,) = done.rounds
    assert {(row.edge_round, row.outcome) for row in first.seats} == {(n, "used") for n in range(3)}


async def test_a_dropped_visit_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    done = await run(tmp_path, spec_of({"delay_s": 5, "drop_rate": 0.3}, num_rounds=4, round_deadline_s=90))
    for detail in done.rounds:
        for edge in detail.edges:
            dropped = any(row.reason == "dropped" for row in detail.seats if row.edge == edge.edge)
            assert lasted(detail)[edge.home] == pytest.approx(90 if dropped else 5, abs=0.2)
    assert any(with_reason(detail, "dropped") for detail in done.rounds)


# ---- states and verdicts of those who are late


async def test_a_late_seat_keeps_the_state_of_its_visit_where_the_algorithm_says_so(
    tmp_path: Path, counting: str
) -> None:
    done = await run(tmp_path, spec_of(num_rounds=3, round_deadline_s=60, algorithm=counting, eval_every=9))
    visits = {key: row.figures["visits"] for key, row in rows_of(done).items() if row.outcome == "used"}
    assert visits
    assert all(count == round_no for (round_no, _), count in visits.items())


async def test_a_late_seat_goes_back_where_the_algorithm_reverts_and_admit_does_not_hear_of_it(
    tmp_path: Path, counting: str
) -> None:
    """The probe refuses odd bids (round + seat) and reverts: a state counts the visits that were used."""
    spec = refuse_spec(devices={"profile": SLOW, "edge_latency_s": 0}, num_rounds=4, round_deadline_s=60)
    done = await same_everywhere(tmp_path, spec)
    used = dict.fromkeys(range(6), 0)
    reasons = set()
    for (round_no, seat), row in sorted(rows_of(done).items()):
        reasons.add(row.reason)
        if row.reason == "late":
            assert (row.outcome, row.label, row.figures) == ("refused", None, {})
            continue
        assert row.figures["told"] == used[seat] + 1
        assert row.outcome == ("used" if (round_no + seat) % 2 == 0 else "refused")
        used[seat] += row.outcome == "used"
    assert {None, "late"} < reasons


async def test_an_update_that_comes_too_late_after_its_report_is_late_and_named_with_its_class(
    tmp_path: Path, counting: str
) -> None:
    narrow = {"delay_s": 0, "up_bps": 1e4, "compute_sps": 1e9}
    spec = refuse_spec(devices={"profile": narrow, "edge_latency_s": 0}, num_rounds=1, round_deadline_s=3)
    done = await run(tmp_path, spec)
    for (_, seat), row in rows_of(done).items():
        even = (1 + seat) % 2 == 0
        assert (row.outcome, row.label) == ("refused", "even" if even else "odd")
        assert (row.reason == "late", row.simulated_s == 3) == (even, even)
        assert row.report_bytes < row.up_bytes if even else row.report_bytes == row.up_bytes


async def test_who_is_asked_again_after_the_deadline_is_not_visited(tmp_path: Path, counting: str) -> None:
    params = {"name": "probe_refuse", "params": {"adjust": True}}
    slow = {"delay_s": {"name": "normal", "mean": 40, "sd": 1}, "latency_s": 0}
    more = {"devices": {"profile": slow, "edge_latency_s": 0}, "num_rounds": 1, "algorithm": params}
    free = await run(tmp_path, small_spec(**more))
    done = await run(tmp_path, small_spec(**more, round_deadline_s=60))
    again = [row for row in free.rounds[0].seats if row.wave == 1]
    late = [row for row in done.rounds[0].seats if row.wave == 1]
    assert [(row.seat, row.outcome) for row in again] == [(0, "idle"), (2, "idle"), (4, "idle")]
    assert [(row.seat, row.reason) for row in late] == [(0, "late"), (2, "late"), (4, "late")]
    assert all(15 < row.simulated_s < 25 for row in late)  # what the first wave left of the 60 s
    assert lasted(done.rounds[0])[0] == pytest.approx(60)  # the home of all three


async def test_after_the_deadline_nobody_is_asked_again(tmp_path: Path, counting: str) -> None:
    more: dict[str, Any] = {"algorithm": {"name": "probe_refuse", "params": {"adjust": True}}}
    done = await run(tmp_path, spec_of(num_rounds=4, round_deadline_s=70, **more))
    closed = 0
    for detail in done.rounds:
        for edge in detail.edges:
            own = [row for row in detail.seats if row.edge == edge.edge]
            if not any(row.reason == "late" for row in own if row.wave == 0):
                continue
            closed += 1
            assert lasted(detail)[edge.home] == pytest.approx(70)
            for row in (row for row in own if row.wave == 1):
                assert (row.outcome, row.reason) == ("refused", "late")
                assert (row.simulated_s, row.down_bytes, row.up_bytes, row.energy_j) == (0, 0, 0, 0)
    assert closed > 1


# ---- more seats than are wanted


async def test_the_first_to_answer_are_admitted_of_more_than_are_wanted(tmp_path: Path) -> None:
    """Of three seats a home two are chosen; with half of that beyond all three are, and the slowest is surplus."""
    more: dict[str, Any] = {"select": "random", "fraction_train": 0.6}
    free = rows_of(await run(tmp_path, spec_of(num_rounds=3)))
    done = await same_everywhere(tmp_path, spec_of(num_rounds=3, overselection=0.5, **more))
    for detail in done.rounds:
        for edge in detail.edges:
            own = {row.seat: row for row in detail.seats if row.edge == edge.edge}
            order = sorted(own, key=lambda seat: free[detail.round_no, seat].simulated_s)
            assert [own[seat].outcome for seat in order] == ["used", "used", "refused"]
            second, third = own[order[1]], own[order[2]]
            assert third.reason == "surplus"
            assert third.simulated_s == pytest.approx(second.simulated_s)
            assert lasted(detail)[edge.home] == pytest.approx(second.simulated_s)


def test_of_equals_the_lower_seat_is_first() -> None:
    gate = Gate(n_wanted=2)
    assert gate.refusals({7: 3.0, 2: 3.0, 5: 3.0}) == {7: Refusal("surplus", 3.0)}
    assert gate.refusals({5: 3.0, 7: 3.0, 2: 4.0}) == {2: Refusal("surplus", 3.0)}


def test_an_answer_at_the_deadline_is_in_time() -> None:
    assert Gate(10.0).refusals({1: 10.0, 2: 10.000001}) == {2: Refusal("late", 10.0)}
    assert Gate(10.0, n_wanted=2).refusals({1: 10.0, 2: 11.0}) == {2: Refusal("late", 10.0)}


async def test_where_too_few_answer_all_that_do_are_admitted(tmp_path: Path) -> None:
    more: dict[str, Any] = {"select": "random", "fraction_train": 0.6, "overselection": 0.5}
    done = await run(tmp_path, spec_of(num_rounds=5, round_deadline_s=40, **more))
    by_home = [[r for r in d.seats if r.edge == e.edge] for d in done.rounds for e in d.edges]
    counts = {(sum(r.outcome == "used" for r in own), frozenset(r.reason for r in own)) for own in by_home}
    assert all(n_used <= 2 for n_used, _ in counts)
    assert any(n_used == 2 and "surplus" in reasons for n_used, reasons in counts)
    assert any(n_used < 2 and "late" in reasons and "surplus" not in reasons for n_used, reasons in counts)
    assert not any({"late", "surplus"} <= reasons for _, reasons in counts)
