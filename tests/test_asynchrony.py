"""Every pair of modes of both tiers through the three tiers: nothing but simulated time decides, and sums stay fine."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shared.core.errors import BadInput
from tests.edge_server.rounds.test_asynchronous_round import record
from tests.federation import small_spec
from tests.plain_tiers import SPEEDS, Tiers
from tests.shared.algorithms.conftest import small_models  # noqa: F401 - a fixture
from tests.shared.algorithms.layouts import ran, resolved
from tests.shared.algorithms.plain_linear import joined

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
FIRST = (
    ("semi_synchronous", "asynchronous", 2),
    ("synchronous", "semi_synchronous", 2),
    ("asynchronous", "synchronous", 1),
)
"""Cases with every mode of either tier."""
ONCE_AND_TWICE = [(*pair, 1 + (n // 3 + n % 3) % 2) for n, pair in enumerate(PAIRS)]
"""Each pair, and each mode of either tier with one edge round and with two."""
CASES: list[tuple[str, str, Any]] = [*FIRST, *(case for case in ONCE_AND_TWICE if case not in FIRST)]
CASES += [("asynchronous", "asynchronous", [3, 1]), ("semi_synchronous", "semi_synchronous", [1, 3])]  # by edge


def spec_of(devices: str, edges: str, **more: Any) -> dict[str, Any]:
    """Returns a spec of slow devices whose edges form models, so that both tiers may weight by staleness."""
    fields = DEVICES[devices]
    sync = {**fields.get("sync", {}), "edges": EDGES[edges]}
    return small_spec(**{"num_rounds": 4, "edge_rounds": 2, "devices": SLOW, **fields, "sync": sync, **more})


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize(("devices", "edges"), [case[:2] for case in FIRST])
async def test_a_pair_of_modes_gives_the_same_run_on_any_agents(devices: str, edges: str) -> None:
    found = [await ran(spec_of(devices, edges), agent_devices=agents) for agents in ((6,), (1, 2, 1, 2))]
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


# ---- the reference


@pytest.mark.matrix(3)
@pytest.mark.parametrize(("devices", "edges", "edge_rounds"), CASES)
async def test_a_pair_of_modes_is_that_of_the_reference(devices: str, edges: str, edge_rounds: int | list[int]) -> None:
    """With one edge round edges forward sums, which one tier alone may weight by staleness: here the cloud."""
    spec = spec_of(devices, edges)
    if edge_rounds == 1 and devices == "asynchronous" and edges != "synchronous":
        spec["sync"]["devices"] = {"mode": "asynchronous", "buffer": 2}
    done = await ran({**spec, **SPEEDS, "edge_rounds": edge_rounds, "num_rounds": 6})
    plain = Tiers(done.experiment).run()
    at_s = 0.0
    for detail, (made_s, answers) in zip(done.rounds, plain.made, strict=True):
        at_s += detail.simulated_s
        assert at_s == pytest.approx(made_s, abs=1e-6)
        visits = [
            (f"edge-{one.edge + 1}", edge_round, seat, tau, "used_late" if lasted_s is None else "used")
            for one, _ in answers
            for edge_round, seat, tau, lasted_s in one.rows
        ]
        used = [row for row in detail.seats if row.outcome in ("used", "used_late")]
        found = [(row.edge, row.edge_round, row.seat, row.staleness, row.outcome) for row in used]
        assert sorted(found) == sorted(visits)
        if edges != "synchronous":
            assert [(row.home, row.staleness) for row in detail.edges] == [(one.edge, tau) for one, tau in answers]
            lasts = [one.ends_s - one.ordered_s for one, _ in answers]
            assert [row.staleness_s for row in detail.edges] == pytest.approx(lasts, abs=1e-6)
        if devices == "asynchronous":
            lasts = sorted(lasted_s for one, _ in answers for *_, lasted_s in one.rows if lasted_s is not None)
            assert sorted(row.staleness_s for row in used) == pytest.approx(lasts, abs=1e-6)
    visited = [row for detail in done.rounds for row in detail.seats]
    assert any(row.outcome == "used_late" for row in visited) == (devices == "semi_synchronous")
    assert any(row.staleness for row in visited) == (devices == "asynchronous")
    assert any(row.staleness for detail in done.rounds for row in detail.edges) == (edges != "synchronous")
    assert abs(joined(done.model) - plain.model).max() < 1e-5
    assert abs(joined(done.model) - joined(done.experiment.initial)).max() > 0.05
