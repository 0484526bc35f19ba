"""Policies for stragglers through the three tiers: late and surplus seats, and their costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from edge_server.rounds.stale_updates import LateUpdate, LateUpdateBuffer
from edge_server.rounds.wave import Cutoff, Refusal
from shared.core.errors import BadInput, NotFinite
from shared.federation.spec_parser import parse_spec
from shared.federation.visits.open_visit import begin_visit
from shared.run_records.rounds import RoundDetail
from shared.run_records.visits import VisitRow
from shared.wire import codec
from tests.edge_server.rounds.test_reply_checks import single
from tests.edge_server.test_round_handler import refuse_spec
from tests.federation import EDGE_PORT, Federation, PassOn, small_spec
from tests.shared.algorithms.layouts import Ended, ended, federation, ran, run

SLOW: dict[str, Any] = {"delay_s": {"name": "uniform", "low": 0, "high": 100}, "latency_s": 0}


def spec_of(profile: dict[str, Any] | None = None, **more: Any) -> Any:
    """Returns a small spec of devices whose visits take up to 100 s."""
    devices = {"profile": {**SLOW, **(profile or {})}, "edge_latency_s": 0}
    return small_spec(devices=devices, **more)


def rows_of(done: Ended) -> dict[tuple[int, int], VisitRow]:
    return {(detail.round_no, row.seat): row for detail in done.rounds for row in detail.seats}


def with_reason(detail: RoundDetail, reason: str) -> list[int]:
    return sorted(row.seat for row in detail.seats if row.reason == reason)


def lasted(detail: RoundDetail) -> dict[int, float]:
    """Returns the seconds of the visits at each home, without the link to the cloud."""
    return {edge.home: edge.simulated_s - edge.down_s - edge.up_s for edge in detail.edges}


async def on_one_host(spec: dict[str, Any]) -> Ended:
    """Run a spec on one agent, which sends sums; the specs of `ANYWHERE` have the same record on others."""
    return await ran(spec, agent_devices=(6,))


def one_slow(delay_s: float = 70, **more: Any) -> dict[str, Any]:
    """Six devices of 50 samples; seat 3 is late with its visits, which take 40 s at the others."""
    quick = {"profile": {"name": "standard", "latency_s": 0, "delay_s": 40}, "share": 5 / 6}
    slow = {"profile": {"name": "standard", "latency_s": 0, "delay_s": delay_s}, "share": 1 / 6}
    devices = {"profiles": [quick, slow], "edge_latency_s": 0}
    return small_spec(devices=devices, round_deadline_s=60, **{"late": "next_round", "seed": 1, **more})


CHOICE: dict[str, Any] = {"select": "power_of_choice", "fraction_train": 1 / 3, "fraction_candidates": 1.0}
SOME: dict[str, Any] = {"select": "random", "fraction_train": 0.6, "overselection": 0.5}
QUICK = {"delay_s": {"name": "uniform", "low": 0, "high": 90}, "jitter_s": 0.01, "latency_s": 0.1}
LONG = {"delay_s": {"name": "uniform", "low": 200, "high": 300}}
ALL_SLOW = {"profile": SLOW, "edge_latency_s": 0}
BOFL = {"name": "bofl", "params": {"delta": 2}}
ANYWHERE: dict[str, dict[str, Any]] = {
    "used late": one_slow(num_rounds=4, staleness_discount=0.25),
    "refused": refuse_spec(devices=ALL_SLOW, num_rounds=4, report_deadline_s=60),
    "surplus": spec_of(num_rounds=3, **SOME),
    "late": spec_of(num_rounds=3, round_deadline_s=60),
    "in time": spec_of(QUICK, edge_rounds=2, round_deadline_s=99.0),
    "held out": spec_of(num_rounds=2, held_out_fraction=0.34, round_deadline_s=60),
    "bofl": spec_of(algorithm=BOFL, num_rounds=3, report_deadline_s=70),
    "busy": spec_of(LONG, num_rounds=3, round_deadline_s=60, late="next_round"),
    "edge rounds": one_slow(num_rounds=2, edge_rounds=2),
    "fastest": one_slow(num_rounds=3, select="fastest", fraction_train=0.6, late="drop"),
    "power of choice": small_spec(
        num_rounds=8, partition={"name": "dirichlet", "alpha": 0.3}, devices={"profile": "standard"}, **CHOICE
    ),
}


@pytest.mark.whole
@pytest.mark.matrix(3)
@pytest.mark.parametrize("what", ANYWHERE)
async def test_the_record_of_a_run_depends_neither_on_hosts_nor_on_their_order(
    what: str, counter_algorithm: str
) -> None:
    profiles = ("phone_low", "jetson", "phone_low", "standard")
    first = await on_one_host(ANYWHERE[what])
    other = await ran(ANYWHERE[what], agent_devices=(1, 2, 1, 2), order=(3, 1, 0, 2), profiles=profiles)
    assert other.links() == first.links()
    assert other.info.model_sha256 == first.info.model_sha256
    assert [detail.figures for detail in other.rounds] == [detail.figures for detail in first.rounds]


# ---- the deadline


async def test_a_seat_that_answers_after_the_deadline_is_late_on_any_host() -> None:
    free = rows_of(await on_one_host(spec_of(num_rounds=3)))
    done = await on_one_host(ANYWHERE["late"])
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


@pytest.mark.whole
async def test_an_edge_round_lasts_as_long_as_its_slowest_admitted_seat_or_its_deadline() -> None:
    done = await on_one_host(spec_of(num_rounds=4, round_deadline_s=80))
    seen = set()
    for detail in done.rounds:
        for edge in detail.edges:
            own = [row for row in detail.seats if row.edge == edge.edge]
            late = any(row.reason == "late" for row in own)
            expected = 80 if late else max(row.simulated_s for row in own)
            assert lasted(detail)[edge.home] == pytest.approx(expected)
            seen.add(late)
    assert seen == {True, False}


@pytest.mark.whole
async def test_a_run_with_late_seats_equals_one_that_leaves_them_out() -> None:
    done = await on_one_host(spec_of(num_rounds=3, round_deadline_s=60))
    losses = [{"round_no": detail.round_no, "seats": with_reason(detail, "late")} for detail in done.rounds]
    quiet = await on_one_host(spec_of(num_rounds=3, losses=losses))
    assert done.info.model_sha256 == quiet.info.model_sha256
    assert [detail.failures for detail in done.rounds] == [()] * 3


@pytest.mark.whole
async def test_a_deadline_that_all_meet_changes_neither_model_nor_bytes_nor_seconds() -> None:
    """Agents hold updates, but simulated devices send at once, with and without a deadline.

    Orders carry the spec: `99.0` is as long as the `null` of no deadline.
    """
    free = await ran(spec_of(QUICK, edge_rounds=2), agent_devices=(1,) * 6)
    done = await on_one_host(ANYWHERE["in time"])
    assert done.info.model_sha256 == free.info.model_sha256
    assert done.links() == free.links()
    assert [lasted(detail) for detail in done.rounds] == [lasted(detail) for detail in free.rounds]
    assert {(row.outcome, row.report_bytes, row.wait_s) for row in rows_of(done).values()} == {("used", 0, 0)}


async def test_a_deadline_that_no_seat_can_meet_ends_a_run_without_an_update() -> None:
    done = await on_one_host(spec_of(num_rounds=2, round_deadline_s=1e-9))
    for detail in done.rounds:
        assert with_reason(detail, "late") == list(range(6))
        assert max(row.simulated_s for row in detail.seats) <= 1e-9
        assert all(row.compute_s == row.up_bytes == 0 for row in detail.seats)
        assert lasted(detail) == {0: pytest.approx(1e-9), 1: pytest.approx(1e-9)}
    said = "round 1: no update was used, 6 came after round_deadline_s 1e-09: a later deadline, partial_work, or late: "
    assert done.info.notes == (f"{said}next_round would use them",)


@pytest.mark.whole
async def test_a_late_seats_bytes_count_up_to_the_deadline() -> None:
    """Sending takes 100 times as long as the deadline: a hundredth of the update is sent."""
    narrow = {"delay_s": 0, "up_bps": 1e4, "compute_sps": 1e9, "j_per_byte_up": 1e-3, "j_per_flop": 0}
    free = rows_of(await on_one_host(spec_of(narrow, num_rounds=1)))
    whole_s = min(row.simulated_s for row in free.values())
    done = await on_one_host(spec_of(narrow, num_rounds=1, round_deadline_s=whole_s / 100))
    for key, row in rows_of(done).items():
        assert (row.outcome, row.reason) == ("refused", "late")
        assert row.up_bytes == pytest.approx(free[key].up_bytes / 100, rel=0.1)
        assert row.up_s == pytest.approx(8 * row.up_bytes / 1e4, rel=0.1)
        assert row.energy_j == pytest.approx(1e-3 * row.up_bytes)
    assert done.rounds[0].n_used == 0
    assert done.info.status == "completed"


@pytest.mark.whole
async def test_each_edge_round_has_its_own_deadline() -> None:
    done = await on_one_host(spec_of({"delay_s": 50}, num_rounds=1, edge_rounds=3, round_deadline_s=60))
    (first,) = done.rounds
    assert {(row.edge_round, row.outcome) for row in first.seats} == {(n, "used") for n in range(3)}


@pytest.mark.whole
async def test_a_dropped_visit_is_awaited_until_the_deadline() -> None:
    done = await on_one_host(spec_of({"delay_s": 5, "drop_rate": 0.3}, num_rounds=4, round_deadline_s=90))
    for detail in done.rounds:
        for edge in detail.edges:
            dropped = any(row.reason == "dropped" for row in detail.seats if row.edge == edge.edge)
            assert lasted(detail)[edge.home] == pytest.approx(90 if dropped else 5, abs=0.2)
    assert any(with_reason(detail, "dropped") for detail in done.rounds)


@pytest.mark.whole
async def test_no_seat_works_after_the_edge_has_stopped_waiting() -> None:
    """Some seats would drop after the deadline: they are interrupted like late ones."""
    slow = {"delay_s": 100, "drop_rate": 0.5, "j_per_flop": 1e-9}
    free = rows_of(await on_one_host(spec_of(slow, num_rounds=3)))
    done = await on_one_host(spec_of(slow, num_rounds=3, round_deadline_s=40))
    dropped = {key: row for key, row in rows_of(done).items() if row.reason == "dropped"}
    cut = [key for key in dropped if free[key].simulated_s > 40]
    assert 2 < len(cut) < len(dropped)
    for key, row in dropped.items():
        assert row.simulated_s == pytest.approx(min(free[key].simulated_s, 40), abs=0.01)
        share = row.compute_s / free[key].compute_s
        assert row.energy_j == pytest.approx(share * free[key].energy_j)


@pytest.mark.whole
async def test_a_failure_is_awaited_no_longer_than_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_or_fail(experiment: Any, order: Any, visit: Any, *more: Any) -> Any:
        if visit.seat == 2 and visit.task.kind == "train":
            raise NotFinite("a device that fails")
        return begin_visit(experiment, order, visit, *more)

    monkeypatch.setattr("shared.federation.visits.visit.begin_visit", run_or_fail)
    done = await run(tmp_path, spec_of({"delay_s": 100}, num_rounds=1, round_deadline_s=60))
    row = rows_of(done)[1, 2]
    assert (row.outcome, row.reason) == ("failed", "not_finite")
    assert row.simulated_s == pytest.approx(60)
    assert lasted(done.rounds[0])[0] == pytest.approx(60)


async def test_held_out_seats_are_tested_without_a_wait() -> None:
    done = await on_one_host(ANYWHERE["held out"])
    for detail in done.rounds:
        tested = [row for row in detail.seats if row.outcome == "evaluated"]
        assert len(tested) == 2
        assert all((row.work_share, row.compute_s) == (1, 0) for row in tested)
        for edge in detail.edges:
            own = [row for row in detail.seats if row.edge == edge.edge and row.outcome != "evaluated"]
            assert lasted(detail)[edge.home] == pytest.approx(max(row.simulated_s for row in own))
        assert detail.failures == ()
    assert {row.reason for row in rows_of(done).values()} == {None, "late"}


# ---- states and verdicts of late seats


@pytest.mark.whole
async def test_a_late_seat_keeps_the_state_of_its_visit_where_the_algorithm_says_so(counter_algorithm: str) -> None:
    done = await on_one_host(spec_of(num_rounds=3, round_deadline_s=60, algorithm=counter_algorithm, eval_every=9))
    visits = {key: row.figures["visits"] for key, row in rows_of(done).items() if row.outcome == "used"}
    assert visits
    assert all(count == round_no for (round_no, _), count in visits.items())


@pytest.mark.whole
async def test_a_late_seat_reverts_its_state_where_the_algorithm_says_so_and_admit_does_not_see_it(
    counter_algorithm: str,
) -> None:
    """The probe refuses odd bids (round + seat) and reverts: a state counts the visits that were used."""
    done = await on_one_host(ANYWHERE["refused"])
    used = dict.fromkeys(range(6), 0)
    reasons = set()
    for (round_no, seat), row in sorted(rows_of(done).items()):
        reasons.add(row.reason)
        if row.reason == "late":
            assert (row.outcome, row.label, row.figures) == ("refused", None, {})
            continue
        assert row.figures["reported"] == used[seat] + 1
        assert row.outcome == ("used" if (round_no + seat) % 2 == 0 else "refused")
        used[seat] += row.outcome == "used"
    assert {None, "late"} < reasons


async def test_an_update_that_arrives_late_after_its_report_is_recorded_as_late_with_its_class(
    counter_algorithm: str,
) -> None:
    narrow = {"delay_s": 0, "up_bps": 1e4, "compute_sps": 1e9}
    spec = refuse_spec(devices={"profile": narrow, "edge_latency_s": 0}, num_rounds=1, round_deadline_s=3)
    done = await on_one_host(spec)
    for (_, seat), row in rows_of(done).items():
        even = (1 + seat) % 2 == 0
        assert (row.outcome, row.label) == ("refused", "even" if even else "odd")
        assert (row.reason == "late", row.simulated_s == pytest.approx(3)) == (even, even)
        assert row.report_bytes < row.up_bytes if even else row.report_bytes == row.up_bytes


@pytest.mark.whole
async def test_bofl_judges_the_reports_that_arrived_in_time() -> None:
    """The leader is the most accurate seat in time; a late seat has no class and no counted refusal."""
    done = await on_one_host(ANYWHERE["bofl"])
    late = 0
    for detail in done.rounds:
        for edge in detail.edges:
            own = [row for row in detail.seats if row.edge == edge.edge]
            heard = [row for row in own if row.reason != "late"]
            late += len(own) - len(heard)
            assert all(row.label is None and row.figures == {} for row in own if row.reason == "late")
            leaders = [row for row in heard if row.label == "leader"]
            assert len(leaders) == (1 if heard else 0)
            assert all(row.outcome == "used" for row in leaders)
            if heard:
                assert leaders[0].figures["accuracy"] == max(row.figures["accuracy"] for row in heard)
    assert late > 2


@pytest.mark.whole
async def test_a_further_visit_that_misses_the_deadline_is_late(counter_algorithm: str) -> None:
    params = {"name": "probe_refuse", "params": {"adjust": True}}
    slow = {"delay_s": {"name": "normal", "mean": 40, "sd": 1}, "latency_s": 0}
    more = {"devices": {"profile": slow, "edge_latency_s": 0}, "num_rounds": 1, "algorithm": params}
    free = await on_one_host(small_spec(**more))
    done = await on_one_host(small_spec(**more, round_deadline_s=60))
    again = [row for row in free.rounds[0].seats if row.wave == 1]
    late = [row for row in done.rounds[0].seats if row.wave == 1]
    assert [(row.seat, row.outcome) for row in again] == [(0, "idle"), (2, "idle"), (4, "idle")]
    assert [(row.seat, row.reason) for row in late] == [(0, "late"), (2, "late"), (4, "late")]
    assert all(15 < row.simulated_s < 25 for row in late)  # the rest of the 60 s after the first wave
    assert lasted(done.rounds[0])[0] == pytest.approx(60)  # the home of all three


@pytest.mark.whole
async def test_after_the_deadline_no_further_wave_starts(counter_algorithm: str) -> None:
    more: dict[str, Any] = {"algorithm": {"name": "probe_refuse", "params": {"adjust": True}}}
    done = await on_one_host(spec_of(num_rounds=4, round_deadline_s=70, **more))
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


# ---- overselection


async def test_with_overselection_the_first_answers_are_admitted() -> None:
    """Two of three seats per home are wanted; with 50 % more all three are selected, and the slowest is surplus."""
    free = rows_of(await on_one_host(spec_of(num_rounds=3)))
    done = await on_one_host(ANYWHERE["surplus"])
    for detail in done.rounds:
        for edge in detail.edges:
            own = {row.seat: row for row in detail.seats if row.edge == edge.edge}
            order = sorted(own, key=lambda seat: free[detail.round_no, seat].simulated_s)
            assert [own[seat].outcome for seat in order] == ["used", "used", "refused"]
            second, third = own[order[1]], own[order[2]]
            assert third.reason == "surplus"
            assert third.simulated_s == pytest.approx(second.simulated_s)
            assert lasted(detail)[edge.home] == pytest.approx(second.simulated_s)


def test_among_equals_the_lower_seat_is_first() -> None:
    gate = Cutoff(n_wanted=2)
    assert gate.refusals({7: 3.0, 2: 3.0, 5: 3.0}) == {7: Refusal("surplus", 3.0)}
    assert gate.refusals({5: 3.0, 7: 3.0, 2: 4.0}) == {2: Refusal("surplus", 3.0)}


def test_an_answer_at_the_deadline_is_in_time() -> None:
    assert Cutoff(10.0).refusals({1: 10.0, 2: 10.000001}) == {2: Refusal("late", 10.0)}
    assert Cutoff(10.0, n_wanted=2).refusals({1: 10.0, 2: 11.0}) == {2: Refusal("late", 10.0)}


async def test_a_single_seat_is_never_surplus() -> None:
    more: dict[str, Any] = {"select": "random", "fraction_train": 0.5, "overselection": 5.0, "num_devices": 2}
    done = await ran(spec_of(num_rounds=2, **more), agent_devices=(1, 1))
    assert {key: row.outcome for key, row in rows_of(done).items()} == {(n, s): "used" for n in (1, 2) for s in (0, 1)}


@pytest.mark.whole
async def test_if_too_few_answer_all_answers_are_admitted() -> None:
    done = await on_one_host(spec_of(num_rounds=5, round_deadline_s=40, **SOME))
    by_home = [[r for r in d.seats if r.edge == e.edge] for d in done.rounds for e in d.edges]
    counts = {(sum(r.outcome == "used" for r in own), frozenset(r.reason for r in own)) for own in by_home}
    assert all(n_used <= 2 for n_used, _ in counts)
    assert any(n_used == 2 and "surplus" in reasons for n_used, reasons in counts)
    assert any(n_used < 2 and "late" in reasons and "surplus" not in reasons for n_used, reasons in counts)
    assert not any({"late", "surplus"} <= reasons for _, reasons in counts)


# ---- late updates used in later rounds


async def test_a_late_update_is_used_in_the_next_round_with_less_weight() -> None:
    """One seat is slow: its update of round 1 from 50 samples has a quarter of that weight in round 2."""
    done = await on_one_host(ANYWHERE["used late"])
    found = [[(r.outcome, r.reason, r.n_samples) for r in d.seats if r.seat == 3] for d in done.rounds]
    late, busy = ("refused", "late", 50), ("failed", "busy", 0)
    used = [("used_late", f"late in round {round_no}", 12) for round_no in (1, 3)]
    assert found == [[late], [busy, used[0]], [late], [busy, used[1]]]
    assert [detail.n_used for detail in done.rounds] == [5, 6, 5, 6]
    rows = {(d.round_no, r.seat): r for d in done.rounds[:1] for r in d.seats}
    assert rows[1, 3].simulated_s > 70
    assert rows[1, 3].up_bytes > 0.99 * rows[1, 2].up_bytes


@pytest.mark.whole
async def test_the_weight_of_a_late_update_applies_in_the_mean() -> None:
    """A reference in numpy: the late update equals that of a run with enough time, from the same model."""
    spec = one_slow(num_rounds=2, staleness_discount=0.5, num_edges=1)
    done = await ran(spec, n_edges=1, agent_devices=(3, 3))
    first = await ran({**spec, "num_rounds": 1}, n_edges=1, agent_devices=(3, 3))
    others = [0, 1, 2, 4, 5]
    alone = await ran(with_losses(spec, 1, others), n_edges=1, agent_devices=(6,))
    second = await ran(with_losses({**spec, "num_rounds": 2, "late": "drop"}, None, []), n_edges=1, agent_devices=(6,))
    for name, before in done.experiment.initial.items():
        made_late = alone.model[name].double() - before.double()
        fresh = second.model[name].double() - first.model[name].double()  # the mean of 250 samples
        expected = first.model[name].double() + (250 * fresh + 25 * made_late) / 275
        assert torch.allclose(done.model[name].double(), expected, atol=1e-6), name
        assert not torch.allclose(done.model[name].double(), second.model[name].double(), atol=1e-5)


async def test_a_device_is_busy_until_its_late_update_arrives() -> None:
    """Its visit takes about 200 s: it is late in round 1 (60 s) and busy during the others' rounds (40 s each)."""
    done = await ran(one_slow(num_rounds=6, delay_s=200), agent_devices=(2, 4))
    found = [(d.round_no, r.outcome, r.reason, r.n_samples) for d in done.rounds for r in d.seats if r.seat == 3]
    assert found == [
        (1, "refused", "late", 50),
        *((number, "failed", "busy", 0) for number in (2, 3, 4, 5)),
        (5, "used_late", "late in round 1", 3),  # 50 / 2 ** 4
        (6, "refused", "late", 50),
    ]


@pytest.mark.whole
async def test_with_all_devices_busy_the_round_lasts_until_the_first_is_free() -> None:
    done = await on_one_host(ANYWHERE["busy"])
    first, second, third = done.rounds
    assert (first.n_used, second.n_used) == (0, 0)
    assert with_reason(second, "busy") == list(range(6))
    assert third.n_used > 0
    assert any(row.outcome == "used_late" for row in third.seats)
    assert first.simulated_s + second.simulated_s > 200


@pytest.mark.whole
async def test_late_updates_count_where_the_edge_forms_a_model() -> None:
    done = await on_one_host(ANYWHERE["edge rounds"])
    assert [r.seat for r in done.rounds[1].seats if r.outcome == "used_late"] == [3]
    dropped = await on_one_host({**one_slow(num_rounds=2, edge_rounds=2), "late": "drop"})
    assert done.info.model_sha256 != dropped.info.model_sha256


async def run_round_after_restarts(fed: Federation, run_id: str) -> Ended:
    """Complete a run, restart both edges, and run one more round."""
    await fed.finish(run_id)
    for number in (0, 1):
        await fed.stop(f"edge-{number}")
        await fed.start_edge(number)
    await fed.until(lambda: fed.n_agents() == 6)
    await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 1})
    return await ended(fed, run_id)


@pytest.mark.whole
async def test_a_late_update_survives_a_restart_of_its_edge(tmp_path: Path) -> None:
    plain = await on_one_host(one_slow(num_rounds=2))
    async with federation(tmp_path) as fed:
        run_id = await fed.submit(one_slow(num_rounds=1))
        again = await run_round_after_restarts(fed, run_id)
    assert again.links() == plain.links()
    assert again.info.model_sha256 == plain.info.model_sha256


@pytest.mark.whole
async def test_late_updates_wait_for_their_edge_while_devices_visit_another(tmp_path: Path) -> None:
    """The edge of seat 3 is lost in round 2 and returns in round 5, when it uses the late update of round 1."""
    async with federation(tmp_path) as fed:
        gone = list[asyncio.Task[None]]()
        reached, back = asyncio.Event(), asyncio.Event()

        async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
            if request.url.path == "/rounds":
                asked = request.url.port, codec.read_header(await request.aread()).record["round_no"]
                if asked == (EDGE_PORT + 1, 2) and not gone:
                    gone.append(asyncio.create_task(fed.lose("edge-1")))
                    raise httpx2.ReadError("gone", request=request)
                if asked == (EDGE_PORT, 4):
                    reached.set()
                    await back.wait()
            return await pass_on()

        fed.router.tamper = tamper
        run_id = await fed.submit(one_slow(num_rounds=5))
        await reached.wait()
        await fed.start_edge(1)
        await fed.until(lambda: fed.cloud.registry.edge_is_live("edge-2"))
        back.set()
        done = await ended(fed, run_id)
        await asyncio.gather(*gone)
    found = [[(r.edge, r.outcome, r.reason, r.n_samples) for r in d.seats if r.seat == 3] for d in done.rounds]
    assert found == [
        [("edge-2", "refused", "late", 50)],
        [("edge-2", "failed", "lost", 0)],
        [("edge-1", "refused", "late", 50)],
        [("edge-1", "failed", "busy", 0), ("edge-1", "used_late", "late in round 3", 25)],
        [("edge-2", "refused", "late", 50), ("edge-2", "used_late", "late in round 1", 3)],  # 50 / 2 ** 4
    ]


def test_late_updates_of_retired_seats_are_not_used() -> None:
    made = [LateUpdate[Any](round_no=1, arrives_s=9.0, contribution=single(seat)) for seat in (0, 1, 2)]
    stock = LateUpdateBuffer({item.contribution.seat: item for item in made})
    assert [item.contribution.seat for item in stock.take_arrived(10.0, 2, {0, 1}, {1})] == [0]
    assert sorted(stock.late) == [2]  # whose seat visits another edge now


@pytest.mark.parametrize(
    ("name", "why"), [("probe_refuse", "it decides by reports"), ("probe_counter", r"collected per client \(visits\)")]
)
def test_algorithms_that_cannot_use_late_updates_refuse_them(name: str, why: str, counter_algorithm: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        parse_spec(spec_of(algorithm=name, round_deadline_s=60, late="next_round"))
    assert caught.value.field == "late"


# ---- partial work


async def test_a_seat_gets_the_work_that_it_can_finish_by_the_deadline() -> None:
    """A third of the devices is four times slower: of 4 epochs they have time for one but not for two."""
    devices = {"profile": {"compute_sps": 0.01, "latency_s": 0}, "edge_latency_s": 0}
    devices |= {"straggler_ratio": 1 / 3, "straggler_slowdown": 4, "straggler_slows": "compute"}
    spec = small_spec(devices=devices, local_epochs=4, batch_size=10, num_rounds=2, model="mlp")
    whole_s = max(row.simulated_s for row in rows_of(await on_one_host(spec)).values())
    late = await on_one_host({**spec, "round_deadline_s": whole_s / 3})
    done = await on_one_host({**spec, "round_deadline_s": whole_s / 3, "partial_work": True})
    slow = {key for key, row in rows_of(late).items() if row.reason == "late"}
    assert len(slow) == 4  # two seats in two rounds
    for key, row in rows_of(done).items():
        assert row.outcome == "used"
        assert row.simulated_s <= whole_s / 3
        assert 0.2 < row.work_share < 1 / 3 if key in slow else row.work_share == 1
        assert round(row.work_share * 4 * 50) % 10 == 0  # whole steps
    assert all(detail.n_used == 6 for detail in done.rounds)


async def test_a_seat_without_enough_time_does_one_step_and_is_late() -> None:
    spec = spec_of({"delay_s": 90}, num_rounds=1, batch_size=10, round_deadline_s=60, partial_work=True)
    done = await on_one_host(spec)
    assert {(row.reason, row.work_share) for row in rows_of(done).values()} == {("late", 0.2)}


@pytest.mark.whole
async def test_with_enough_time_partial_work_is_all_of_the_work() -> None:
    free = await on_one_host(spec_of())
    done = await on_one_host(spec_of(round_deadline_s=1000, partial_work=True))
    assert done.info.model_sha256 == free.info.model_sha256
    assert {row.work_share for row in rows_of(done).values()} == {1}


# ---- selection


@pytest.mark.whole
async def test_fastest_leaves_out_slow_seats() -> None:
    done = await on_one_host(ANYWHERE["fastest"])
    chosen = [sorted(row.seat for row in detail.seats) for detail in done.rounds]
    assert chosen == [[0, 1, 2, 5]] * 3  # at home 0 the lowest of equals, at home 1 those that are not seat 3
    assert max(detail.simulated_s for detail in done.rounds) < 41


@pytest.mark.whole
async def test_power_of_choice_uses_the_losses_of_the_last_visits() -> None:
    """All seats are candidates, and one of three is selected: first each once, then always the one of highest loss."""
    done = await on_one_host(ANYWHERE["power of choice"])
    known: dict[int, float] = {}
    for detail in done.rounds:
        for home in (0, 1):
            (row,) = (row for row in detail.seats if row.seat % 2 == home)
            mine = [seat for seat in range(6) if seat % 2 == home]
            assert row.seat == min(mine, key=lambda seat: (-known.get(seat, float("inf")), seat))
            assert row.train_loss is not None
            known[row.seat] = row.train_loss
    assert sorted(known) == list(range(6))
    assert len({tuple(row.seat for row in detail.seats) for detail in done.rounds[3:]}) > 1


@pytest.mark.whole
async def test_losses_survive_a_restart_of_the_edge(tmp_path: Path) -> None:
    plain = await on_one_host(small_spec(**{**CHOICE, "num_rounds": 4}))
    async with federation(tmp_path) as fed:
        run_id = await fed.submit(small_spec(**{**CHOICE, "num_rounds": 3}))
        again = await run_round_after_restarts(fed, run_id)
    assert again.info.model_sha256 == plain.info.model_sha256


def with_losses(spec: dict[str, Any], round_no: int | None, seats: list[int]) -> dict[str, Any]:
    """Returns the spec with enough time for all seats and some declared losses."""
    if round_no is None:
        return spec
    quiet = {**spec, "num_rounds": 1, "late": "drop", "round_deadline_s": 1000}
    return {**quiet, "losses": [{"round_no": round_no, "seats": seats}], "quorum": 0.1}
