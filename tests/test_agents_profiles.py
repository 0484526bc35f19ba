"""`devices: {profile: agent}`: a seat has the profile of the agent that hosts it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shared.errors import BadInput
from shared.profiles import PROFILES
from shared.spec import parse_spec
from tests.algorithms.ways import federation, run
from tests.federation import Federation, small_spec

AGENTS: dict[str, Any] = {"profile": "agent", "edge_latency_s": 0}


async def test_containers_are_slow_by_name_and_the_record_is_the_same_in_whatever_order_they_start(
    tmp_path: Path,
) -> None:
    """Four of one class and two of another; which of them registers first decides nothing."""
    spec = small_spec(devices=AGENTS, num_rounds=3)
    slow = "phone_low"
    layouts: list[dict[str, Any]] = [
        {"profiles": ("standard",) * 4 + (slow,) * 2},
        {"profiles": (slow,) + ("standard",) * 4 + (slow,), "order": (3, 0, 5, 1, 4, 2)},
    ]
    first, second = [await run(tmp_path, spec, rooms=(1,) * 6, **layout) for layout in layouts]
    assert first.links() == second.links()
    assert first.info.model_sha256 == second.info.model_sha256
    by_sps = Counter(round(row.compute_s / row.n_samples, 9) for detail in first.rounds for row in detail.seats)
    unit_s = first.lab.flops / 24_680_448
    expected = {round(unit_s / PROFILES[name].compute_sps, 9): 3 * n for name, n in (("standard", 4), (slow, 2))}
    assert by_sps == expected


async def test_seats_show_their_agents_profile_slowed_down_where_they_are_stragglers(tmp_path: Path) -> None:
    slowed = {**AGENTS, "straggler_ratio": 1 / 3, "straggler_slowdown": 4}
    async with federation(tmp_path, rooms=(3, 3), profiles=("jetson", "gateway")) as fed:
        info = await fed.run(small_spec(devices=slowed, num_rounds=1))
        seats = (await fed.seats(info.run)).devices
    assert Counter(seat.profile for seat in seats) == {"jetson": 3, "gateway": 3}
    for seat in seats:
        found = PROFILES[seat.profile]
        assert seat.compute_sps == found.compute_sps / (4 if seat.straggler else 1)
        assert (seat.up_bps, seat.latency_s) == (found.up_bps, found.latency_s)
    assert sum(seat.straggler for seat in seats) == 2


async def test_an_agent_of_an_unknown_profile_fails_the_run_with_its_name(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f", rooms=(3, 3), profiles=("jetson", "jetsn")) as fed:
        info = await fed.run(small_spec(devices=AGENTS))
        assert info.status == "failed"
        assert f"agent {fed.agent_id(1)} has the profile 'jetsn'; did you mean 'jetson'?" in (info.reason or "")


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ({"profile": {"name": "agent", "compute_sps": 5}}, "it takes no other figures"),
        ({"profiles": [{"profile": "agent", "share": 1}]}, "no part of a mixture"),
    ],
)
def test_agent_is_a_profile_for_all_devices_and_as_it_is(devices: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_spec(small_spec(devices=devices))
