"""Simulated time of visits with reports, compared with times computed by hand from bytes and profiles."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_server.rounds.wave import Cutoff
from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec
from shared.run_records.visits import VisitRow
from shared.simulation import REFERENCE_FLOPS
from shared.wire import codec
from tests.federation import small_spec
from tests.shared.algorithms.layouts import Ended, Recorder, ran, run

Times = dict[str, float]
JITTER_S, FAR_S = 0.05, 0.2
WIDE = {"phi": 1e6, "omega": 1e6}
"""All seats are admitted."""


@dataclass(frozen=True)
class Device:
    compute_sps: float
    up_bps: float
    down_bps: float

    @property
    def profile(self) -> dict[str, Any]:
        delay = {"name": "uniform", "low": 0, "high": 1}
        figures = {"compute_sps": self.compute_sps, "up_bps": self.up_bps, "down_bps": self.down_bps}
        return {**figures, "latency_s": 0.1, "jitter_s": JITTER_S, "link_delay_s": delay}


QUICK, WEAK, NARROW = Device(0.5, 4e5, 8e5), Device(0.02, 4e5, 4e5), Device(0.5, 3e4, 8e5)
"""WEAK reports last, NARROW's update comes last."""


def spec_of(**more: Any) -> dict[str, Any]:
    parts = [{"profile": device.profile, "share": 1 / 3} for device in (QUICK, WEAK, NARROW)]
    devices = {"profiles": parts, "edge_latency_s": 0.1}
    spec = {"num_devices": 3, "num_edges": 1, "num_rounds": 2, "seed": 3, "devices": devices}
    return small_spec(**{**spec, "algorithm": {"name": "bofl", "params": WIDE}, **more})


async def recorded_run(folder: Path, spec: dict[str, Any]) -> tuple[Ended, Recorder]:
    tape = Recorder()
    return await run(folder, spec, n_edges=1, agent_devices=(1, 1, 1), tamper=tape), tape


# ---- by hand


def stream(seat: int, round_no: int, purpose: str) -> float:
    """Returns a number in 0..1 from a visit's stream with seed 3."""
    digest = hashlib.sha256(f"3|seat {seat}|{round_no}|0|0|{purpose}".encode()).digest()
    return float((np.float64(int.from_bytes(digest[:8], "big") >> 12) + 0.5) / 2**52)


def transfer(n_bytes: int, bps: float, seat: int, round_no: int, purpose: str) -> float:
    jitter = JITTER_S * (2 * stream(seat, round_no, f"{purpose}") - 1)
    return FAR_S + jitter + 8 * n_bytes / bps


def sizes(tape: Recorder, path: str, round_no: int) -> dict[int, tuple[int, int]]:
    """Returns the bytes of order and answer of training visits by seat, with one agent per seat."""
    found = {}
    for where, body, n_answer in tape.orders:
        order = codec.read_header(body).record
        if where != path or order["stage"]["round_no"] != round_no:
            continue
        visits = order.get("visits", [])
        if not visits or visits[0]["task"]["kind"] == "train":
            found[visits[0]["seat"] if visits else order["seats"][0]] = (len(body), n_answer)
    return found


def device_of(done: Ended, seat: int) -> Device:
    profile = done.experiment.seat(seat).profile
    return Device(profile.compute_sps, profile.up_bps, profile.down_bps)


def first_exchange(done: Ended, tape: Recorder, round_no: int) -> dict[int, Times]:
    """Returns the seconds of order, work and report."""
    found = {}
    for seat, (down, up) in sizes(tape, "/visits", round_no).items():
        device, n = device_of(done, seat), len(done.experiment.seat(seat).train)
        found[seat] = {
            "down": transfer(down, device.down_bps, seat, round_no, "jitter down"),
            "compute": n * done.experiment.flops / (device.compute_sps * REFERENCE_FLOPS),
            "up": transfer(up, device.up_bps, seat, round_no, "jitter up") + stream(seat, round_no, "link delay"),
        }
    return found


def second_exchange(done: Ended, orders: dict[int, tuple[int, int]], round_no: int) -> dict[int, Times]:
    """Returns the seconds of upload order and update."""
    return {
        seat: {
            "down": transfer(down, device_of(done, seat).down_bps, seat, round_no, "upload jitter down"),
            "up": transfer(up, device_of(done, seat).up_bps, seat, round_no, "upload jitter up")
            + stream(seat, round_no, "upload link delay"),
        }
        for seat, (down, up) in orders.items()
    }


def whole(first: Times, decided_s: float, second: Times) -> tuple[float, ...]:
    wait = decided_s - sum(first.values())
    return first["down"] + second["down"], first["compute"], wait, first["up"] + second["up"]


def seconds_of(row: VisitRow) -> tuple[float, ...]:
    return row.down_s, row.compute_s, row.wait_s, row.up_s


def rows_of(done: Ended, round_no: int) -> dict[int, VisitRow]:
    return {row.seat: row for row in done.rounds[round_no - 1].seats}


def lasted_s(done: Ended, round_no: int) -> float:
    (edge,) = done.rounds[round_no - 1].edges
    return edge.simulated_s - edge.down_s - edge.up_s


def close(value: Any) -> Any:
    return pytest.approx(value, rel=0, abs=1e-9)


def seat_like(done: Ended, device: Device) -> int:
    return next(seat for seat in range(3) if device_of(done, seat) == device)


async def test_uploads_begin_when_the_slowest_report_has_arrived(tmp_path: Path) -> None:
    done, tape = await recorded_run(tmp_path, spec_of())
    for round_no in (1, 2):
        rows, first = rows_of(done, round_no), first_exchange(done, tape, round_no)
        second = second_exchange(done, sizes(tape, "/uploads", round_no), round_no)
        decided_s = max(sum(times.values()) for times in first.values())
        assert decided_s == sum(first[seat_like(done, WEAK)].values())
        for seat, row in rows.items():
            assert row.outcome == "used"
            assert seconds_of(row) == close(whole(first[seat], decided_s, second[seat]))
            assert row.simulated_s == row.down_s + row.compute_s + row.wait_s + row.up_s
        ends = [decided_s + sum(times.values()) for times in second.values()]
        assert sorted(row.simulated_s for row in rows.values()) == close(sorted(ends))
        assert lasted_s(done, round_no) == close(max(ends))
        assert max(ends) > decided_s + 1


async def before_the_last_report(tmp_path: Path) -> tuple[int, float]:
    """Returns the slowest seat, and an instant after all other reports and before its own."""
    free, tape = await recorded_run(tmp_path, spec_of(num_rounds=1))
    arrivals = sorted(sum(times.values()) for times in first_exchange(free, tape, 1).values())
    return seat_like(free, WEAK), float(np.mean(arrivals[-2:]))


@pytest.mark.whole
async def test_a_report_deadline_interrupts_a_report_and_the_others_start_uploading(tmp_path: Path) -> None:
    slow, deadline_s = await before_the_last_report(tmp_path)
    done, tape = await recorded_run(tmp_path, spec_of(num_rounds=1, report_deadline_s=deadline_s))
    rows, first = rows_of(done, 1), first_exchange(done, tape, 1)
    second = second_exchange(done, sizes(tape, "/uploads", 1), 1)
    assert sorted([*second, slow]) == [0, 1, 2]
    for seat, times in second.items():
        assert rows[seat].outcome == "used"
        assert seconds_of(rows[seat]) == close(whole(first[seat], deadline_s, times))
    late = rows[slow]
    assert (late.outcome, late.reason, late.label, late.up_bytes, late.report_bytes) == ("refused", "late", None, 0, 0)
    assert seconds_of(late) == close((first[slow]["down"], deadline_s - first[slow]["down"], 0, 0))
    assert lasted_s(done, 1) == close(max(deadline_s + sum(times.values()) for times in second.values()))


@pytest.mark.whole
async def test_if_the_edge_rounds_deadline_interrupts_a_report_no_update_is_in_time(tmp_path: Path) -> None:
    """The edge waits for the report until the deadline, so that requested updates arrive after it."""
    slow, deadline_s = await before_the_last_report(tmp_path)
    done, tape = await recorded_run(tmp_path, spec_of(num_rounds=1, round_deadline_s=deadline_s))
    assert sizes(tape, "/uploads", 1) == {}
    first = first_exchange(done, tape, 1)
    for seat, row in rows_of(done, 1).items():
        assert (row.outcome, row.reason, row.label is None) == ("refused", "late", seat == slow)
        times = {"down": 0.0, "up": 0.0}
        expected = (first[seat]["down"], deadline_s - first[seat]["down"], 0, 0)
        assert seconds_of(row) == close(expected if seat == slow else whole(first[seat], deadline_s, times))
    assert lasted_s(done, 1) == close(deadline_s)
    assert done.rounds[0].n_used == 0


async def test_a_deadline_interrupts_an_upload(tmp_path: Path) -> None:
    free, free_tape = await recorded_run(tmp_path, spec_of(num_rounds=1))
    narrow = seat_like(free, NARROW)
    ends = sorted(row.simulated_s for row in rows_of(free, 1).values())
    deadline_s = float(np.mean(ends[-2:]))
    done, tape = await recorded_run(tmp_path, spec_of(num_rounds=1, round_deadline_s=deadline_s))
    rows, first = rows_of(done, 1), first_exchange(done, tape, 1)
    fetched = sizes(tape, "/uploads", 1)
    assert sorted([*fetched, narrow]) == [0, 1, 2]
    # the late seat sends its bytes only if there is time; each order of this spec contains the deadline
    before = sizes(free_tape, "/uploads", 1)[narrow]
    other = next(iter(fetched))
    longer = fetched[other][0] - sizes(free_tape, "/uploads", 1)[other][0]
    asked = {**fetched, narrow: (before[0] + longer, before[1])}
    second = second_exchange(done, asked, 1)
    decided_s = max(sum(times.values()) for times in first.values())
    for seat in fetched:
        assert rows[seat].outcome == "used"
        assert seconds_of(rows[seat]) == close(whole(first[seat], decided_s, second[seat]))
    cut_s = deadline_s - decided_s - second[narrow]["down"]
    assert 0 < cut_s < second[narrow]["up"]
    late = rows[narrow]
    assert (late.outcome, late.reason, late.label is None) == ("refused", "late", False)
    assert seconds_of(late) == close(whole(first[narrow], decided_s, {**second[narrow], "up": cut_s}))
    assert late.up_bytes == late.report_bytes + round(before[1] * cut_s / second[narrow]["up"])
    assert lasted_s(done, 1) == close(deadline_s)


async def test_a_refused_seat_waits_for_the_decision_and_sends_nothing_more(tmp_path: Path) -> None:
    strict = {"name": "bofl", "params": {"margin": "literal", "phi": 0.0, "omega": 0.0}}
    done, tape = await recorded_run(tmp_path, spec_of(num_rounds=1, algorithm=strict))
    first = first_exchange(done, tape, 1)
    decided_s = max(sum(times.values()) for times in first.values())
    refused = [row for row in rows_of(done, 1).values() if row.outcome == "refused"]
    assert len(refused) == 2
    for row in refused:
        assert seconds_of(row) == close(whole(first[row.seat], decided_s, {"down": 0.0, "up": 0.0}))
        assert row.simulated_s == close(decided_s)
        assert row.up_bytes == row.report_bytes


@pytest.mark.whole
async def test_an_edges_own_worker_waits_too_and_has_no_link(counter_algorithm: str) -> None:
    devices = {"profile": {"delay_s": 50, "latency_s": 1}, "edge_latency_s": 0}
    spec = {"algorithm": "probe_refuse", "client": "edge", "num_edges": 1, "num_rounds": 2, "devices": devices}
    done = await ran(small_spec(**spec, schedule="equal"), n_edges=1)
    outcomes = set()
    for detail in done.rounds:
        rows = {done.experiment.seat(row.seat).role: row for row in detail.seats if row.outcome in ("used", "refused")}
        worker, others = rows["worker"], [row for row in detail.seats if row.down_bytes]
        assert (worker.down_s, worker.up_s, worker.down_bytes, worker.up_bytes) == (0, 0, 0, 0)
        decided_s = [row.simulated_s for row in others if row.outcome == "refused"]
        assert worker.compute_s + worker.wait_s == worker.simulated_s == close(decided_s[0])
        assert worker.wait_s > 50
        outcomes.add(worker.outcome)
    assert outcomes == {"used", "refused"}


async def test_with_overselection_the_edge_decides_when_enough_reports_have_arrived(tmp_path: Path) -> None:
    """Two of three seats are wanted and all selected: the third report is surplus; the first waits for the second."""
    more = {"select": "random", "fraction_train": 0.6, "overselection": 0.5, "num_rounds": 1}
    done, tape = await recorded_run(tmp_path, spec_of(**more))
    arrivals = {seat: sum(times.values()) for seat, times in first_exchange(done, tape, 1).items()}
    order = sorted(arrivals, key=lambda seat: arrivals[seat])
    rows = rows_of(done, 1)
    assert [(rows[seat].outcome, rows[seat].reason) for seat in order] == [("used", None)] * 2 + [
        ("refused", "surplus")
    ]
    assert rows[order[0]].wait_s == close(arrivals[order[1]] - arrivals[order[0]])
    assert rows[order[1]].wait_s == close(0)
    assert rows[order[2]].simulated_s == close(arrivals[order[1]])


@pytest.mark.whole
async def test_a_dropped_seat_is_awaited_before_the_edge_decides(tmp_path: Path) -> None:
    done, tape = await recorded_run(tmp_path, with_dropout(spec_of(num_rounds=4)))
    seen = 0
    for detail in done.rounds:
        first = first_exchange(done, tape, detail.round_no)
        rows = rows_of(done, detail.round_no)
        dropped = [row.simulated_s for row in rows.values() if row.reason == "dropped"]
        decided_s = max([*dropped, *(sum(times.values()) for times in first.values())], default=0.0)
        for seat, times in first.items():
            assert rows[seat].wait_s == close(decided_s - sum(times.values()))
        seen += bool(dropped) and decided_s == max(dropped) and bool(first)
    assert seen


def with_dropout(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the spec with devices that drop half of their visits."""
    parts = [{**part, "profile": {**part["profile"], "drop_rate": 0.5}} for part in spec["devices"]["profiles"]]
    return {**spec, "devices": {**spec["devices"], "profiles": parts}}


def test_a_cutoff_uses_the_earlier_report_deadline() -> None:
    gate = Cutoff(deadline_s=10.0, report_s=4.0)
    assert gate.closes_s == 4.0
    assert {seat: found.at_s for seat, found in gate.refusals({1: 3.0, 2: 4.0, 3: 5.0}).items()} == {3: 4.0}
    assert Cutoff(deadline_s=-1.0).closes_s == 0.0
    assert Cutoff().closes_s == math.inf


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"algorithm": "fedavg", "report_deadline_s": 5}, "report_deadline_s: devices of fedavg announce nothing"),
        ({"report_deadline_s": 5, "round_deadline_s": 5}, "report_deadline_s is not below round_deadline_s"),
        ({"report_deadline_s": 0}, "report_deadline_s: must be greater than 0"),
    ],
)
def test_a_report_deadline_needs_reports_and_time_for_updates(more: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_spec(spec_of(**more))
