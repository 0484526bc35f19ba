"""`edge_rounds` as a list: a number of edge rounds for each edge (Liu et al., ICC 2020: kappa_2, by edge)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.federation.expected_times import ExpectedTimes
from shared.federation.spec_parser import parse_spec
from tests.federation import small_spec
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import ended, federation, ran, resolved, tried

MODES: list[dict[str, Any]] = [
    {},
    {"algorithm": "scaffold"},
    {"algorithm": "fednova"},
    {"algorithm": "fedmix"},
    {"algorithm": "dtpfl", "client": "edge", "schedule": "equal"},
    {"server_optimizer": {"edges": "adam"}},
    {"client": "edge", "schedule": "equal", "average_every": "epoch"},
    {"vectorised": {"width": 3}},
]
ASYNCHRONOUS = {"devices": {"mode": "asynchronous", "buffer": 2}, "edges": {"mode": "asynchronous"}}
BY_EDGE = small_spec(num_rounds=3, edge_rounds=[1, 3], algorithm="scaffold")


@pytest.mark.matrix(len(MODES))
@pytest.mark.parametrize("more", MODES, ids=str)
def test_equal_numbers_in_a_list_are_the_number(more: dict[str, Any]) -> None:
    one, listed = [tried(**small_spec(**more, edge_rounds=n)) for n in (2, [2, 2])]
    assert flat.same_bits(one.model, listed.model)
    assert not flat.same_bits(one.model, tried(**small_spec(**more, edge_rounds=[2, 1])).model)


@pytest.mark.whole
@pytest.mark.parametrize("sync", [{}, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
async def test_a_round_of_a_list_is_recorded_as_that_of_the_number(sync: dict[str, Any]) -> None:
    one, listed = [await ran(small_spec(edge_rounds=n, sync=sync)) for n in (2, [2, 2])]
    assert flat.same_bits(one.model, listed.model)
    ends = [
        [(row.seat, row.edge_round, row.staleness) for detail in done.rounds for row in detail.seats]
        for done in (one, listed)
    ]
    assert ends[0] == ends[1]  # times differ by the spec's own bytes


@pytest.mark.whole
async def test_a_list_of_ones_forms_no_edge_models() -> None:
    one, listed = [await ran(small_spec(edge_rounds=n)) for n in (1, [1, 1])]
    assert flat.same_bits(listed.model, flat.fedavg(one.experiment, 2))


async def test_a_round_lasts_until_the_edge_with_most_edge_rounds_has_ended() -> None:
    devices = {"profile": {"delay_s": 1, "jitter_s": 0}, "edge_latency_s": 0}
    spec = small_spec(edge_rounds=[1, 3], devices=devices, num_rounds=1)
    (detail,) = (await ran(spec)).rounds
    assert {row.home: round(row.simulated_s) for row in detail.edges} == {0: 1, 1: 3}
    assert detail.simulated_s == max(row.simulated_s for row in detail.edges)
    experiment = resolved(**spec)
    expected_s, last = ExpectedTimes(experiment, experiment.spec).last
    assert last.home_edge == 1
    assert expected_s == pytest.approx(detail.simulated_s, rel=0.1)


@pytest.mark.whole
async def test_a_run_of_several_numbers_continues_after_all_tiers_were_restarted(tmp_path: Path) -> None:
    whole = await ran(BY_EDGE, agent_devices=(2, 4))
    async with federation(tmp_path, agent_devices=(2, 4)) as fed:
        run_id = await fed.start_and_pause(BY_EDGE, 1)
        await fed.restart(lambda: None)
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    assert done.info.model_sha256 == whole.info.model_sha256
    assert done.links() == whole.links()


@pytest.mark.parametrize(
    ("edge_rounds", "says"),
    [
        ([1, 2, 3], r"^edge_rounds has 3 numbers for 2 edges; a list has one for each edge$"),
        ([2], r"^edge_rounds has 1 number for 2 edges"),
        ([], r"^edge_rounds: must have 1 or more items"),
        ([1, 0], r"^edge_rounds\.1: must be at least 1"),
        ([1, 1.5], r"^edge_rounds\.1: must be a whole number"),
        (0, r"^edge_rounds: must be at least 1"),
        ("two", r"^edge_rounds: must be a whole number, or a list with one for each edge, such as \[1, 3\]$"),
    ],
    ids=str,
)
def test_what_is_no_number_for_each_edge_is_refused(edge_rounds: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        parse_spec(small_spec(edge_rounds=edge_rounds))
    assert str(refused.value.field).startswith("edge_rounds")


@pytest.mark.whole
async def test_a_list_for_other_edges_than_there_are_ends_the_run_with_that_reason(tmp_path: Path) -> None:
    async with federation(tmp_path, agent_devices=(6,)) as fed:
        info = await fed.run(small_spec(num_edges=None, edge_rounds=[1, 2, 1]))
    assert info.status == "failed"
    assert "edge_rounds has 3 numbers for 2 edges" in str(info.reason)
