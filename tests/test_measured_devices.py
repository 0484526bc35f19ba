"""Measured devices through the three tiers: times by their rows, and nothing of the file on the simulated links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shared.core.randomness import stream_seed
from shared.core.tensors import digest
from shared.federation.plan import plan_of
from shared.federation.population import population
from shared.run_records.visits import VisitRow
from shared.simulation import REFERENCE_FLOPS
from tests.federation import small_spec
from tests.shared.algorithms.layouts import Ended, ran, resolved

COLUMNS = "compute_sps,up_bps,down_bps,latency_s,availability"
ROWS = [(50.0, 1e6, 4e6, 0.2), (25.0, 3e6, 2e6, 0.4), (400.0, 8e6, 9e6, 0.0), (80.0, 5e5, 7e5, 0.1)]
STANDARD = f"{COLUMNS}\n500,2e7,1e8,0.02,always\n500,2e7,1e8,0.02,always\n"
SYNC = {"devices": {"mode": "asynchronous", "buffer": 2}, "edges": {"mode": "asynchronous"}}


def text_of(availability: str = "always") -> str:
    return "\n".join([COLUMNS, *(",".join(map(repr, row)) + f",{availability}" for row in ROWS)])


def with_file(text: str, **more: Any) -> dict[str, Any]:
    devices = {"file": {"path": "devices.csv", "csv": text}, "edge_latency_s": 0}
    return small_spec(devices=devices, quorum=1.0, **more)


def order_of(n: int, seed: int = 0) -> list[int]:
    """Returns the number of the row of each of n devices, n at most twice the rows."""
    turns = [stream_seed(f"{seed}|population|all|device rows {turn}") for turn in (0, 1)]
    return [int(row) for turn in turns for row in np.random.default_rng(turn).permutation(len(ROWS))][:n]


def rows_of(done: Ended) -> dict[tuple[int, int], VisitRow]:
    return {(detail.round_no, row.seat): row for detail in done.rounds for row in detail.seats}


async def test_a_task_takes_the_seconds_of_its_devices_row() -> None:
    done = await ran(with_file(text_of(), num_rounds=1, local_epochs=2), agent_devices=(6,))
    found, order = rows_of(done), order_of(6)
    assert sorted(order[:4]) == [0, 1, 2, 3]
    for (_, seat), row in found.items():
        compute_sps, up_bps, down_bps, latency_s = ROWS[order[seat]]
        assert row.profile == "measured"
        assert row.down_s == pytest.approx(latency_s + 8 * row.down_bytes / down_bps)
        assert row.compute_s == pytest.approx(
            2 * row.n_samples * done.experiment.flops / (compute_sps * REFERENCE_FLOPS)
        )
        assert row.up_s == pytest.approx(latency_s + 8 * row.up_bytes / up_bps)
    assert len(found) == 6


async def test_devices_are_on_in_the_intervals_of_their_rows() -> None:
    """The first round begins at 0 and lasts longer than half a second; when the second begins, all devices are off."""
    done = await ran(with_file(text_of("0-0.5 200-1e6"), num_rounds=3), agent_devices=(6,))
    trained = [[row.reason for row in detail.seats if row.outcome != "evaluated"] for detail in done.rounds]
    assert trained == [[None] * 6, ["unavailable"] * 6, [None] * 6]
    first, second, _ = done.rounds
    assert first.simulated_s > 0.5
    assert 200 <= first.simulated_s + second.simulated_s < 210, "a round without devices lasts until one is on again"


@pytest.mark.matrix(4)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm": {"name": "bofl", "params": {"phi": 1e6, "omega": 1e6}}, "round_deadline_s": 100},
        {"sync": SYNC},
        {"client": "edge", "edge_rounds": 2},
    ],
    ids=["FedAvg", "two exchanges", "asynchronous", "edges"],
)
async def test_rows_that_equal_the_standard_profile_change_no_bit_byte_or_second(more: dict[str, Any]) -> None:
    plain = await ran(small_spec(devices={"edge_latency_s": 0}, quorum=1.0, **more))
    measured = await ran(with_file(STANDARD, **more))
    assert digest(plain.model) == digest(measured.model)
    assert plain.links() == measured.links()
    keys = ("simulated_s", "bytes_up", "bytes_down")
    for one, other in zip(plain.rounds, measured.rounds, strict=True):
        assert [getattr(one, key) for key in keys] == [getattr(other, key) for key in keys]
        assert [(e.down_bytes, e.simulated_s) for e in one.edges] == [
            (e.down_bytes, e.simulated_s) for e in other.edges
        ]
        assert {row.profile for row in other.seats} - {"edge"} == {"measured"}


def test_the_plan_says_which_file_was_read_and_what_it_gives() -> None:
    experiment = resolved(**with_file(text_of()))
    file = experiment.spec.devices.file
    assert file is not None
    line = next(line for line in plan_of(experiment) if line.startswith("profiles: "))
    assert line == (
        f"profiles: {COLUMNS.replace(',', ', ')} of 6 devices from devices.csv (4 rows, sha256 "
        f"{file.digest[:12]}), drawn by seed, each row for 1 or 2 devices; "
        "all else is that of profile standard"
    )
    few = small_spec(devices={"file": {"path": "d.csv", "csv": "up_bps\n1\n2", "rows": "in_order"}}, num_devices=2)
    line = next(line for line in plan_of(resolved(**few)) if line.startswith("profiles: "))
    assert line.endswith("device n has row n; compute_sps, down_bps, latency_s are those of profile standard")


def test_another_row_is_another_population() -> None:
    """In both kinds of populations, whose digests tiers compare."""
    for partition in ("iid", {"name": "sampled", "samples": 20}):
        one, other = (
            resolved(**with_file(text, partition=partition)) for text in (STANDARD, STANDARD.replace("500", "501"))
        )
        assert one.population.digest != other.population.digest
        assert one.population.digest == population(one.spec, one.data).digest
