"""Faults between the cloud and an edge: a round continues while its quorum is met, and the record names the losses."""

from __future__ import annotations

import math
import struct

import httpx2
import pytest

from shared.service.client import GARBLED_TIMES
from tests.faults import at, broken, ending_in, flipped, garbage, half, half_order, together
from tests.federation import AGENT_PORT, EDGE_PORT, Federation, PassOn, small_spec
from tests.shared.algorithms.layouts import ran
from tests.test_faults import lost_seats

FAULTS = [
    (garbage, "wire"),
    (half, "garbled"),
    (broken, "internal"),
    (ending_in(struct.pack("<d", math.nan)), "not_finite"),
]


@pytest.mark.layout(n_edges=5)
async def test_failing_edges_are_named_and_the_round_continues_with_the_other(fed: Federation) -> None:
    fed.router.tamper = together(
        *(
            at(EDGE_PORT + edge, "/rounds", reply, times=GARBLED_TIMES if reason == "garbled" else 1)
            for edge, (reply, reason) in enumerate(FAULTS)
        )
    )
    info = await fed.run(small_spec(num_edges=5, quorum=0.1))
    assert info.status == "completed"
    first, second = await fed.round(info.run, 1), await fed.round(info.run, 2)
    named = [(f"edge-{number}", reason) for number, (_, reason) in enumerate(FAULTS, 1)]
    assert sorted((f.edge, f.reason) for f in first.failures) == named
    ends = [(edge, "failed", reason) for edge, reason in named]
    assert [(row.edge, row.outcome, row.reason) for row in first.edges] == [*ends, ("edge-5", "used", None)]
    assert (first.n_used, second.n_used) == (1, 6)
    assert second.failures == ()


async def test_an_edge_that_fails_costs_the_quorum_its_devices_and_is_named(fed: Federation) -> None:
    fed.router.tamper = at(EDGE_PORT + 1, "/rounds", broken)
    info = await fed.run(small_spec(quorum=0.9))
    assert info.status == "failed"
    assert info.reason == "round 1: quorum of 6 of 6 tasks missed: edge-2: it is broken"


@pytest.mark.whole
async def test_occasionally_garbled_bodies_cost_nothing(fed: Federation) -> None:
    """Those of three agents and of both edges, each as often as it may be."""
    undisturbed = await ran(small_spec())
    places = [(AGENT_PORT + n, "/visits", reply) for n, reply in enumerate((half, half_order, flipped), 2)]
    places += [(EDGE_PORT + n, "/rounds", reply) for n, reply in enumerate((flipped, half_order))]
    fed.router.tamper = together(*(at(*place, times=GARBLED_TIMES - 1) for place in places))
    info = await fed.run(small_spec())
    assert info.model_sha256 == undisturbed.info.model_sha256
    assert lost_seats(await fed.round(info.run, 1)) == {}


@pytest.mark.whole
async def test_a_broken_connection_to_an_edge_is_opened_again(fed: Federation) -> None:
    undisturbed = (await ran(small_spec())).info

    async def break_after_work(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        await pass_on()
        raise httpx2.ReadError("reset", request=request)

    fed.router.tamper = at(EDGE_PORT, "/rounds", break_after_work, times=1)
    info = await fed.run(small_spec())
    assert info.model_sha256 == undisturbed.model_sha256
    assert (await fed.round(info.run, 1)).failures == ()
