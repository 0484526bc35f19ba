"""Heterogeneous devices through the three tiers: simulated times and availability in the record of a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from edge_server.rounds.simulated_clock import EdgeClock
from shared.federation.messages import Outcome, Task
from shared.federation.population import run_seeds
from shared.federation.visit_estimates import samples_due
from shared.run_records.rounds import RoundDetail
from shared.run_records.visits import VisitRow
from shared.simulation import PROFILES, REFERENCE_FLOPS, free_share
from shared.simulation.cost_model import LinkUse
from tests.edge_server.test_round_handler import refuse_spec
from tests.federation import AGENT_PORT, Federation, small_spec
from tests.shared.algorithms.layouts import Ended, ran, resolved

NEAR: dict[str, Any] = {"latency_s": 0, "jitter_s": 0}


def spec_of(profile: dict[str, Any] | None = None, *, devices: dict[str, Any] | None = None, **more: Any) -> Any:
    """Returns a small spec whose devices have no latency by default."""
    own = {"profile": {**NEAR, **(profile or {})}, "edge_latency_s": 0, **(devices or {})}
    return small_spec(devices=own, quorum=1.0, **more)


def rows_of(done: Ended) -> dict[tuple[int, int], VisitRow]:
    return {(detail.round_no, row.seat): row for detail in done.rounds for row in detail.seats}


async def on_one_host(spec: dict[str, Any]) -> Ended:
    return await ran(spec, agent_devices=(6,))


# ---- the time of a visit


async def test_a_row_shows_the_seconds_of_receiving_training_and_sending() -> None:
    profile = {"compute_sps": 50, "up_bps": 1e6, "down_bps": 4e6, "j_per_flop": 1e-9}
    profile |= {"j_per_byte_up": 2e-6, "j_per_byte_down": 5e-7}
    done = await on_one_host(spec_of(profile, num_rounds=1, local_epochs=2))
    for row in rows_of(done).values():
        flops = 2 * row.n_samples * done.experiment.flops
        assert row.down_s == pytest.approx(8 * row.down_bytes / 4e6)
        assert row.compute_s == pytest.approx(flops / (50 * REFERENCE_FLOPS))
        assert row.up_s == pytest.approx(8 * row.up_bytes / 1e6)
        assert row.simulated_s == row.down_s + row.compute_s + row.up_s
        assert row.energy_j == pytest.approx(1e-9 * flops + 2e-6 * row.up_bytes + 5e-7 * row.down_bytes)
    (first,) = done.rounds
    assert first.energy_j == pytest.approx(sum(row.energy_j for row in first.seats))


async def test_free_compute_is_that_of_the_instant_at_which_an_edge_round_begins() -> None:
    """Also within a round: the second edge round begins when the first has ended."""
    load = {"name": "steps", "every_s": 0.001, "low": 0.2, "high": 1.0}
    done = await on_one_host(spec_of({"load": load}, num_rounds=2, num_devices=1, num_edges=1, edge_rounds=2))
    seat, spec = done.experiment.seat(0), done.experiment.spec
    seeds, shares = run_seeds(spec, "seat 0"), set()
    for detail, began_s in zip(done.rounds, (0.0, done.rounds[0].simulated_s), strict=True):
        first, second = sorted(detail.seats, key=lambda row: row.edge_round)
        at_edge_s = began_s + detail.edges[0].down_s
        for row, at_s in ((first, at_edge_s), (second, at_edge_s + first.simulated_s)):
            free = free_share(seat.profile.load, at_s, seeds)
            whole = row.n_samples * done.experiment.flops / (seat.profile.compute_sps * REFERENCE_FLOPS)
            assert row.compute_s == pytest.approx(whole / free)
            shares.add(free)
    assert len(shares) == 4


async def test_a_load_that_changes_during_tasks_gives_each_task_the_integral_of_its_free_share() -> None:
    """Also where a task is dropped or broken off: its energy is that of the work done by then."""
    load = {"name": "steps", "every_s": 0.001, "low": 0.2, "high": 1.0, "during_tasks": True}
    profile = {"load": load, "compute_sps": 5, "j_per_flop": 1e-9, "drop_rate": 0.3}
    done = await on_one_host(spec_of(profile, num_rounds=3, round_deadline_s=0.022))
    began_s, n_pieces, ends = 0.0, [], Counter[str]()
    for detail in done.rounds:
        for edge in detail.edges:
            for row in (row for row in detail.seats if row.edge == edge.edge):
                seeds = run_seeds(done.experiment.spec, f"seat {row.seat}")
                at_s = began_s + edge.down_s + row.down_s
                instants = at_s + (np.arange(4000) + 0.5) * row.compute_s / 4000
                free = [free_share(done.experiment.seat(row.seat).profile.load, each, seeds) for each in instants]
                worked = 5 * REFERENCE_FLOPS * float(np.mean(free)) * row.compute_s
                assert row.energy_j == pytest.approx(1e-9 * worked, rel=1e-2)
                if row.outcome == "used":
                    assert worked == pytest.approx(row.n_samples * done.experiment.flops, rel=1e-2)
                n_pieces.append(len(set(free)))
                ends[row.reason or row.outcome] += 1
        began_s += detail.simulated_s
    assert max(n_pieces) > 3
    assert min(ends["used"], ends["dropped"], ends["late"]) > 0, ends


async def test_twice_the_bandwidth_is_half_the_transfer_and_twice_the_compute_half_the_work() -> None:
    """Bodies contain the figures, which have equal lengths here: the numbers of bytes are equal."""
    figures = [{"compute_sps": 50, "up_bps": 1e6, "down_bps": 4e6}, {"compute_sps": 25, "up_bps": 2e6, "down_bps": 2e6}]
    one, other = [rows_of(await on_one_host(spec_of(own, num_rounds=1))) for own in figures]
    assert len(one) == 6
    for key, row in one.items():
        assert row.up_s == pytest.approx(2 * other[key].up_s)
        assert row.down_s == pytest.approx(other[key].down_s / 2)
        assert row.compute_s == pytest.approx(other[key].compute_s / 2)


@pytest.mark.whole
async def test_latency_is_added_in_each_direction_and_jitter_varies_around_it() -> None:
    quiet, shaky = [
        rows_of(await on_one_host(spec_of({"up_bps": 1e12, "down_bps": 1e12, **figures}, num_rounds=3)))
        for figures in ({"latency_s": 0.35}, {"latency_s": 0.35, "jitter_s": 0.2})
    ]
    for row in quiet.values():
        assert (row.down_s, row.up_s) == pytest.approx((0.35, 0.35), abs=1e-5)
    found = [seconds for row in shaky.values() for seconds in (row.down_s, row.up_s)]
    assert all(0.149 < seconds < 0.551 for seconds in found)
    assert min(found) < 0.25
    assert max(found) > 0.45


@pytest.mark.whole
@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"drop_rate": 0.3}, "dropped"),
        # Rounds of 1,000 s are far longer than the devices' on-times, so that visits are independent.
        ({"availability": {"name": "on_off", "mean_on_s": 7, "mean_off_s": 3}, "delay_s": 1000}, "unavailable"),
    ],
    ids=["drop rate", "on and off"],
)
async def test_the_share_of_failed_visits_is_that_of_the_spec(figures: dict[str, Any], reason: str) -> None:
    """Thrice in ten, within the bounds of a binomial distribution in which 99.9 % lie."""
    spec = spec_of(figures, num_devices=50, num_edges=1, num_rounds=5, eval_every=5)
    done = await ran(spec, n_edges=1, agent_devices=(50,))
    reasons = Counter(row.reason for detail in done.rounds for row in detail.seats)
    assert reasons.keys() == {None, reason}
    assert reasons.total() == 250
    low, high = stats.binom(250, 0.3).interval(0.999)
    assert low <= reasons[reason] <= high


async def test_each_part_of_a_mixture_has_its_share_and_its_own_speed() -> None:
    parts = [
        {"profile": {**NEAR, "name": name}, "share": share} for name, share in (("jetson", 1 / 3), ("gateway", 2 / 3))
    ]
    spec = small_spec(devices={"profiles": parts, "edge_latency_s": 0}, num_rounds=1)
    done = await on_one_host(spec)
    paces = Counter(
        round(row.n_samples * done.experiment.flops / row.compute_s / REFERENCE_FLOPS) for row in rows_of(done).values()
    )
    assert paces == {round(PROFILES["jetson"].compute_sps): 2, round(PROFILES["gateway"].compute_sps): 4}


async def test_a_round_lasts_as_long_as_its_slowest_edge_and_an_edge_as_its_slowest_seat() -> None:
    link = {"by_home": [{"name": "fibre"}, {"name": "dsl", "latency_s": 0.5, "jitter_s": 0.1}]}
    done = await on_one_host(spec_of({"jitter_s": 0.01, "latency_s": 0.1}, edge_link=link, edge_rounds=2))
    for detail in done.rounds:
        for edge in detail.edges:
            own = [row for row in detail.seats if row.edge == edge.edge]
            waves = [max(row.simulated_s for row in own if row.edge_round == number) for number in (0, 1)]
            assert edge.simulated_s == pytest.approx(edge.down_s + sum(waves) + edge.up_s)
        assert detail.simulated_s == max(edge.simulated_s for edge in detail.edges)
        near, far = detail.edges
        assert 0.4 < far.down_s - 8 * far.down_bytes / 24e6 < 0.6
        assert near.up_s == pytest.approx(0.002 + 8 * near.up_bytes / 1e9)
    assert done.info.simulated_s == pytest.approx(sum(detail.simulated_s for detail in done.rounds))


@pytest.mark.whole
async def test_visits_begin_with_their_wave_and_end_with_their_edge() -> None:
    done = await on_one_host(small_spec(devices={"profile": "phone_low"}, num_rounds=2, edge_rounds=2, quorum=1.0))
    for detail in done.rounds:
        for edge in detail.edges:
            rows = [row for row in detail.seats if row.edge == edge.edge]
            first, second = ([row for row in rows if row.edge_round == number] for number in (0, 1))
            assert [row.begin_s for row in first] == pytest.approx([edge.down_s] * len(first))
            ended = max(row.begin_s + row.simulated_s for row in first)
            assert [row.begin_s for row in second] == pytest.approx([ended] * len(second))
            ended = max(row.begin_s + row.simulated_s for row in second)
            assert ended == pytest.approx(edge.simulated_s - edge.up_s)


@pytest.mark.whole
async def test_stragglers_are_shown_and_take_longer(fed: Federation) -> None:
    ratio = {"straggler_ratio": 1 / 3, "straggler_slowdown": 8}
    info = await fed.run(spec_of(devices=ratio, num_rounds=1))
    seats, first = (await fed.seats(info.run)).seats, await fed.round(info.run, 1)
    slow = {seat.seat for seat in seats if seat.straggler}
    assert Counter(seat.compute_sps for seat in seats) == {500: 4, 62.5: 2}
    a_sample = {row.seat: row.compute_s / row.n_samples for row in first.seats}
    assert {seat: round(s / min(a_sample.values())) for seat, s in a_sample.items()} == {
        seat: 8 if seat in slow else 1 for seat in range(6)
    }


def test_a_seat_that_visits_another_edge_has_that_edges_latency() -> None:
    experiment = resolved(**spec_of(devices={"profile": {"latency_s": 0.25}, "edge_latency_s": 0.1}))
    assert experiment.seat(0).latency_s == (0.35, 0.35)
    experiment = resolved(**spec_of(devices={"profile": {"latency_s": 0.25}, "edge_latency_s": _DRAWN}))
    near, far = experiment.seat(0).latency_s
    assert near != far
    assert all(0.25 <= s <= 0.35 for s in (near, far))
    ctx = experiment.ctx(phase="train", round_no=1, n_clients=6, edge=0)
    outcome, use = Outcome[Any](seat=0, kind="train", n_trained=10), LinkUse(down_bytes=1, up_bytes=1)
    at_home, as_guest = [EdgeClock(experiment, home).cost(ctx, 0, use, outcome) for home in (0, 1)]
    assert as_guest.down_s - at_home.down_s == pytest.approx(far - near)
    assert as_guest.compute_s == at_home.compute_s


_DRAWN = {"name": "uniform", "low": 0, "high": 0.1}


# ---- dropped visits


async def test_a_dropped_visit_is_recorded_with_time_and_bytes_until_it_drops() -> None:
    done = await on_one_host(spec_of({"drop_rate": 0.3, "compute_sps": 1, "j_per_flop": 1e-9}, num_rounds=5))
    experiment, rows = done.experiment, rows_of(done)
    dropped = {key: row for key, row in rows.items() if row.reason == "dropped"}
    assert 2 <= len(dropped) <= 18  # of 30, within 99.9 %
    for (round_no, seat), row in dropped.items():
        ctx = experiment.ctx(phase="train", round_no=round_no, n_clients=6, edge=experiment.seat(seat).home_edge)
        work = Task(epochs=1, batch_size=32)
        share = EdgeClock(experiment, experiment.seat(seat).home_edge).faults(ctx, {seat: work}, 0.0, {}).dropped[seat]
        due = samples_due(ctx, work, experiment.seat(seat))
        assert (row.outcome, row.up_bytes, row.up_s) == ("failed", 0, 0)
        assert row.down_bytes == rows[round_no, next(s for s in range(6) if rows[round_no, s].up_bytes)].down_bytes
        assert row.compute_s == pytest.approx(share * due * experiment.flops / REFERENCE_FLOPS)
        assert row.energy_j == pytest.approx(1e-9 * share * due * experiment.flops)
    for detail in done.rounds:
        lost = {row.seat for row in detail.seats if row.reason == "dropped"}
        assert {(failure.seat, failure.reason) for failure in detail.failures} == {(seat, "dropped") for seat in lost}
        assert detail.n_used == 6 - len(lost)


@pytest.mark.whole
async def test_a_run_with_dropped_visits_equals_one_that_leaves_them_out() -> None:
    done = await on_one_host(spec_of({"drop_rate": 0.4}, num_rounds=3))
    losses = [
        {"round_no": detail.round_no, "seats": [row.seat for row in detail.seats if row.reason == "dropped"]}
        for detail in done.rounds
    ]
    assert any(loss["seats"] for loss in losses)
    quiet = await on_one_host(spec_of(num_rounds=3, losses=losses))
    assert quiet.info.model_sha256 == done.info.model_sha256


@pytest.mark.whole
async def test_a_seat_that_drops_keeps_the_state_of_its_previous_visit(counter_algorithm: str) -> None:
    done = await on_one_host(spec_of({"drop_rate": 0.4}, algorithm=counter_algorithm, num_rounds=5))
    visits = Counter[int]()
    for detail in done.rounds:
        for row in detail.seats:
            if row.reason != "dropped":
                visits[row.seat] += 1
                assert row.figures["visits"] == visits[row.seat]
    assert min(visits.values()) < 5


@pytest.mark.whole
async def test_held_updates_and_dropped_visits_can_be_combined(
    counter_algorithm: str, monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    info = await fed.run(refuse_spec(devices={"profile": {"drop_rate": 0.5}}, quorum=1.0))
    rows = [row for number in (1, 2) for row in (await fed.round(info.run, number)).seats]
    assert info.status == "completed"
    assert {"used", "refused", "failed"} == {row.outcome for row in rows}
    assert {row.reason for row in rows if row.outcome == "failed"} == {"dropped"}


# ---- availability


def trace(*intervals: tuple[float, float], **more: Any) -> dict[str, Any]:
    return {"availability": {"name": "trace", "intervals": intervals, **more}}


@pytest.mark.layout(n_edges=1)
async def test_an_unavailable_device_is_not_visited(fed: Federation) -> None:
    halves = {
        "availability": {"name": "trace", "traces": [[[0, 1e9]], []]}
    }  # even seats are available, odd ones are not
    info = await fed.run(spec_of(halves, num_edges=1, num_rounds=1))
    first = await fed.round(info.run, 1)
    agents = {seat.seat: seat.agent for seat in (await fed.seats(info.run)).seats}
    ports = {fed.agent_id(number): AGENT_PORT + number for number in range(6)}
    asked = Counter(port for port, path in fed.router.calls if path == "/visits")
    off = [row for row in first.seats if row.reason == "unavailable"]
    assert [row.seat for row in off] == [row.seat for row in first.seats if row.outcome == "failed"] == [1, 3, 5]
    assert all((row.simulated_s, row.energy_j, row.down_bytes, row.up_bytes) == (0, 0, 0, 0) for row in off)
    assert "the device is off at second" in first.failures[0].detail
    # the evaluation after the last round is not simulated: it visits all seats
    assert {seat: asked[ports[agent]] for seat, agent in agents.items() if agent} == {n: 2 - n % 2 for n in range(6)}


@pytest.mark.whole
async def test_availability_depends_on_the_simulated_clock() -> None:
    """Rounds take about 100 s: a device that is available for 150 s takes part in two of them."""
    slow = {"delay_s": 100, **trace((0, 150))}
    done = await on_one_host(spec_of(slow, num_rounds=3))
    assert [detail.n_used for detail in done.rounds] == [6, 6, 0]
    last = done.rounds[-1]
    assert {edge.outcome: edge.reason for edge in last.edges} == {"idle": "unavailable"}
    assert last.model_sha256 == done.rounds[-2].model_sha256
    assert last.simulated_s < 1


async def test_with_all_devices_unavailable_the_round_lasts_until_the_first_returns() -> None:
    later = {"availability": {"name": "trace", "traces": [[[500, 1e9]], [[800, 1e9]]]}}
    done = await on_one_host(spec_of(later, num_rounds=2))
    first, second = done.rounds
    assert (first.n_used, first.simulated_s) == (0, 500)
    assert {row.reason for row in first.seats} == {"unavailable"}
    assert {row.seat: row.outcome for row in second.seats} == {n: "failed" if n % 2 else "used" for n in range(6)}
    assert done.info.status == "completed"


async def test_an_edge_with_unavailable_devices_does_not_delay_others() -> None:
    halves = {"availability": {"name": "trace", "traces": [[[0, 1e9]], [[900, 1e9]]]}}
    done = await on_one_host(spec_of(halves, num_rounds=1))
    (first,) = done.rounds
    assert {edge.home: (edge.outcome, edge.reason) for edge in first.edges} == {
        0: ("used", None),
        1: ("idle", "unavailable"),
    }
    assert first.simulated_s < 10


# ---- any hosts


_PHONE = {"name": "phone_low", "drop_rate": 0.3, "delay_s": {"name": "normal", "mean": 5, "sd": 1}}
_LOAD = {"name": "random_walk", "every_s": 0.001, "during_tasks": True}
_JETSON = {"name": "jetson", "availability": {"name": "on_off", "mean_on_s": 20, "mean_off_s": 10}, "load": _LOAD}
MIXED = {"profiles": [{"profile": _PHONE, "share": 0.5}, {"profile": _JETSON, "share": 0.5}], "straggler_ratio": 0.3}


@pytest.mark.whole
async def test_the_record_depends_neither_on_hosts_nor_on_the_start_order_of_agents() -> None:
    spec = small_spec(devices=MIXED, edge_link={"name": "lte"}, num_rounds=3, edge_rounds=2)
    mixed = {"order": (3, 1, 0, 2), "profiles": ("phone_low", "jetson", "phone_low", "standard")}
    found = [await on_one_host(spec), await ran(spec, agent_devices=(2, 2, 1, 1), **mixed)]
    reasons = Counter(row.reason for detail in found[0].rounds for row in detail.seats)
    assert min(reasons["dropped"], reasons["unavailable"], reasons[None]) > 0, reasons
    one, other = found
    assert other.links() == one.links()
    assert other.info.model_sha256 == one.info.model_sha256
    assert [_figures(detail) for detail in other.rounds] == [_figures(detail) for detail in one.rounds]


def _figures(detail: RoundDetail) -> tuple[Any, ...]:
    edges = [edge.replace(edge="") for edge in detail.edges]
    return detail.simulated_s, detail.energy_j, detail.n_used, edges, detail.failures
