"""Every pair of modes of both tiers through the three tiers: nothing but simulated time decides, and sums stay fine."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import BadInput
from tests.edge_server.rounds.test_asynchronous_round import record
from tests.federation import small_spec
from tests.shared.algorithms.layouts import resolved, run

POLYNOMIAL = {"name": "polynomial", "a": 0.5}
SLOW = {"profile": {"delay_s": {"name": "pareto", "shape": 1.1, "scale": 1.0}}}
DEVICES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "semi_synchronous": {"round_deadline_s": 2.0, "late": "next_round", "sync": {"devices": "semi_synchronous"}},
    "asynchronous": {"sync": {"devices": {"mode": "asynchronous", "buffer": 2, "staleness": POLYNOMIAL}}},
}
EDGES: dict[str, Any] = {
    "synchronous": "synchronous",
    "semi_synchronous": {"mode": "semi_synchronous", "wanted": 1, "staleness": POLYNOMIAL},
    "asynchronous": {"mode": "asynchronous", "staleness": POLYNOMIAL},
}
PAIRS = list(itertools.product(DEVICES, EDGES))


def spec_of(devices: str, edges: str, **more: Any) -> dict[str, Any]:
    """Returns a spec of slow devices whose edges form models, so that both tiers may weight by staleness."""
    fields = DEVICES[devices]
    sync = {**fields.get("sync", {}), "edges": EDGES[edges]}
    return small_spec(**{"num_rounds": 4, "edge_rounds": 2, "devices": SLOW, **fields, "sync": sync, **more})


@pytest.mark.parametrize(("devices", "edges"), PAIRS)
async def test_a_pair_of_modes_gives_the_same_run_on_any_agents(tmp_path: Path, devices: str, edges: str) -> None:
    found = [await run(tmp_path, spec_of(devices, edges), agent_devices=agents) for agents in ((6,), (1, 2, 1, 2))]
    assert record(found[0]) == record(found[1])
    assert found[0].info.rounds == 4
    assert sum(detail.n_used for detail in found[0].rounds) >= 4
    assert min(detail.simulated_s for detail in found[0].rounds) > 0
    for detail in found[0].rounds:
        answers = [row for row in detail.edges if row.outcome == "used"]
        if edges != "synchronous":
            assert max(row.begin_s + row.staleness_s for row in answers) <= detail.simulated_s + 1e-9


@pytest.mark.parametrize(("devices", "edges"), PAIRS)
def test_sums_of_each_tier_have_steps_of_their_own(devices: str, edges: str) -> None:
    """Weights in steps of 2^-16 cost 16 bits once, not once more for the other tier; late updates cost another bit."""
    plain = resolved(**spec_of("synchronous", "synchronous")).fixed_point.exponent("head.weight")
    assert plain >= 37
    assert resolved(**spec_of(devices, edges)).fixed_point.exponent("head.weight") >= plain - 17


def test_a_buffer_that_would_make_sums_coarse_is_refused() -> None:
    sync = {"devices": {"mode": "asynchronous", "buffer": 10_000, "staleness": POLYNOMIAL}}
    with pytest.raises(BadInput, match=r"sums weighted by staleness would be rounded to steps of 2\^-\d+") as refused:
        resolved(**spec_of("synchronous", "synchronous", sync=sync))
    assert refused.value.field == "sync"
