"""How many visits and edges a round needs, counted over all its edges."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloud_server.runs.quorum import QuorumMissed, RoundQuorum
from cloud_server.runs.round_map import RoundMap
from cloud_server.runs.round_record import EdgeReplies
from shared.core.number_sets import NumberSet
from shared.federation.experiment import ExperimentCache
from shared.federation.messages import Failure
from shared.federation.placements import Host
from shared.federation.spec_parser import parse_spec
from shared.run_records.visits import VisitRecord
from tests.faults import broken
from tests.federation import AGENT_PORT, Federation, small_spec

USED, LOST, OFF, DROPPED = ("used", None), ("failed", "wire"), ("failed", "unavailable"), ("failed", "dropped")
Outcome = tuple[str, str | None]
SEATS: dict[int, tuple[int, ...]] = {0: (0, 2, 4), 1: (1, 3, 5)}
"""Seats by edge."""


def lines(edge: int, *outcomes: Outcome, edge_round: int = 0, down_bytes: int = 9) -> list[VisitRecord]:
    """The visits of an edge's seats, with these outcomes."""
    return [
        VisitRecord(seat=seat, edge_round=edge_round, outcome=outcome, reason=reason, down_bytes=down_bytes)
        for seat, (outcome, reason) in zip(SEATS[edge], outcomes, strict=True)
    ]


def missed(
    answered: Mapping[int, Sequence[VisitRecord]], *, trains: bool = True, absent: Sequence[int] = (), **spec: Any
) -> str | None:
    """Why the quorum of a round is missed if these edges answer with these visits and the others fail."""
    experiment = ExperimentCache(None, Path(tempfile.gettempdir())).of(parse_spec(small_spec(max_devices=6, **spec)))
    hosts = {
        edge: tuple(
            Host(agent=f"a{n}", url="", seats=NumberSet([n]), presence="absent" if n in absent else "present")
            for n in seats
        )
        for edge, seats in SEATS.items()
    }
    found = RoundMap("r1", {0: "edge-1", 1: "edge-2"}, {}, hosts)
    ctx = experiment.ctx(phase="train", round_no=3, n_clients=6)
    replies = {
        edge: SimpleNamespace(
            answer=SimpleNamespace(
                lines=visits,
                failures=[
                    Failure(seat=visit.seat, edge=edge, reason=str(visit.reason), detail="broke")
                    for visit in visits
                    if visit.outcome == "failed"
                ],
            )
        )
        for edge, visits in answered.items()
    }
    failed = {edge: Failure(edge=edge, reason="lost", detail=f"edge {edge} is lost") for edge in {0, 1} - {*answered}}
    try:
        RoundQuorum(experiment, ctx, found, {}).require(EdgeReplies(cast("Any", replies), failed), trains=trains)
    except QuorumMissed as error:
        return error.detail
    return None


@pytest.mark.parametrize(
    ("answered", "why"),
    [
        ({0: lines(0, USED, USED, USED), 1: lines(1, LOST, LOST, LOST)}, None),
        ({0: lines(0, USED, LOST, LOST), 1: lines(1, USED, USED, LOST)}, None),
        (
            {0: lines(0, USED, LOST, LOST), 1: lines(1, USED, LOST, LOST)},
            "quorum of 3 of 6 tasks missed: device 2: wire (broke); device 3: wire (broke); device 4: wire (broke); "
            "device 5: wire (broke)",
        ),
        ({0: lines(0, USED, USED, USED)}, None),
        ({0: lines(0, USED, USED, LOST)}, "quorum of 3 of 6 tasks missed: edge 1 is lost; device 4: wire (broke)"),
        ({}, "quorum of 1 of 2 edges missed: edge 0 is lost; edge 1 is lost"),
    ],
)
def test_a_round_needs_its_share_of_visits_over_all_edges(
    answered: Mapping[int, Sequence[VisitRecord]], why: str | None
) -> None:
    assert missed(answered) == (None if why is None else f"round 3: {why}")


def test_visits_that_the_simulation_prevented_and_agents_that_were_gone_count_on_neither_side() -> None:
    visits = {0: lines(0, USED, OFF, DROPPED), 1: lines(1, LOST, OFF, DROPPED)}
    assert missed(visits) is None
    assert "quorum of 2 of 2 tasks" in str(missed(visits, quorum=0.6))
    assert missed(visits, quorum=1.0, absent=[1]) is None
    assert missed({0: lines(0, USED, USED, USED)}, quorum=1.0, absent=SEATS[1]) is None


def test_a_visit_that_was_too_late_before_it_began_is_no_answer() -> None:
    late = ("refused", "late")
    unsent = {0: lines(0, late, late, late, down_bytes=0), 1: lines(1, USED, LOST, LOST)}
    assert "quorum of 2 of 3 tasks" in str(missed(unsent))
    assert missed({**unsent, 0: lines(0, late, late, late)}) is None


def test_each_edge_round_needs_the_quorum() -> None:
    first = {edge: lines(edge, USED, USED, USED) for edge in SEATS}
    second = {edge: lines(edge, USED, LOST, LOST, edge_round=1) for edge in SEATS}
    assert "quorum of 3 of 6 tasks" in str(missed({edge: first[edge] + second[edge] for edge in SEATS}))


def test_a_failed_edge_has_lost_the_visits_that_the_selection_wants_of_it() -> None:
    some: dict[str, Any] = {"select": "random", "fraction_train": 0.34}  # one of three seats
    answered = {0: lines(0, USED, USED, USED)[:1]}
    assert missed(answered, **some) is None
    assert "quorum of 2 of 2 tasks" in str(missed(answered, **some, quorum=0.6))


def test_where_edges_are_the_clients_and_in_an_evaluation_edges_are_counted() -> None:
    few = {0: lines(0, USED, LOST, LOST), 1: lines(1, USED, LOST, LOST)}
    assert missed(few, client="edge") is None
    assert missed(few, trains=False) is None
    why = "round 3: quorum of 2 of 2 edges missed: edge 1 is lost"
    assert missed({0: few[0]}, client="edge", quorum=0.6) == why


# ---- real tiers


@pytest.mark.whole
@pytest.mark.parametrize(("lost", "n_used"), [((0, 2, 4, 1, 3), 5), ((0, 2, 4, 1, 3, 5), None)])
@pytest.mark.layout(agent_devices=(1,) * 10)
async def test_a_round_is_committed_by_the_visits_of_all_edges_together(
    lost: Sequence[int], n_used: int | None, fed: Federation
) -> None:
    """Of ten devices at two edges half must answer: two of five here and three there are enough, two there are not.

    A refused round leaves no trace: resumed, it trains as if nothing had been lost.
    """
    spec = small_spec(num_devices=10, num_rounds=1)

    async def lose(request: Any, pass_on: Any) -> Any:
        tampered = request.url.path == "/visits" and (request.url.port or 0) - AGENT_PORT in ports
        return await broken(request, pass_on) if tampered else await pass_on()

    whole = await fed.run(spec)
    seats = {seat.agent: seat.seat for seat in (await fed.seats(whole.run)).seats}
    ports = {n for n in range(10) if seats[fed.agent_id(n)] in lost}
    fed.router.tamper = lose
    info = await fed.run(spec)
    if n_used is not None:
        assert (info.status, info.n_used) == ("completed", n_used)
        return
    assert (info.status, info.rounds) == ("failed", 0)
    assert str(info.reason).startswith("round 1: quorum of 5 of 10 tasks missed: device 0")
    fed.router.tamper = None
    await fed.client.post(f"/runs/{info.run}/resume")
    again = await fed.finish(info.run)
    assert (again.status, again.n_used, again.model_sha256) == ("completed", 10, whole.model_sha256)
