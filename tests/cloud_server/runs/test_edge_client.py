"""How long the cloud waits for an edge's round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_server.runs.edge_client import MARGIN_S, WAVES, EdgeClient
from shared.federation.experiment import Experiment
from shared.federation.messages import EdgePlacement, SeatAddress
from tests.shared.algorithms.layouts import resolved, run

VISIT_S = 5.0


def spec_of(**more: Any) -> dict[str, Any]:
    """Four devices at one edge, whose 160 samples together make ten batches."""
    spec = {
        "data": {"name": "digits", "n_train": 160, "n_test": 40},
        "num_devices": 4,
        "num_edges": 1,
        "num_rounds": 1,
        "edge_rounds": 2,
        "batch_size": 16,
        "local_epochs": 3,
        "schedule": "equal",
        "timeouts": {"visit_s": VISIT_S},
    }
    return {**spec, **more}


def limit_s(experiment: Experiment) -> float:
    """The longest wait for the edge, to which agent `a` brings all seats."""
    address = SeatAddress(agent="a", url="http://a")
    placement = EdgePlacement(run_id="r", edge=0, addresses=dict.fromkeys(range(4), address))
    client = EdgeClient(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    return client.limit_s(experiment, placement, {"a": 4})


@pytest.mark.parametrize(("sync", "n_edge_rounds"), [("round", 2), ("epoch", 2 * 3), ("step", 2 * 3 * 10)])
async def test_cloud_waits_as_long_as_all_edge_rounds_may_take(sync: str, n_edge_rounds: int, tmp_path: Path) -> None:
    """Each edge round takes at most one visit after another at the agent, in each of its waves."""
    experiment = resolved(**spec_of(sync=sync))
    assert limit_s(experiment) == MARGIN_S + n_edge_rounds * WAVES * 4 * VISIT_S
    done = await run(tmp_path, spec_of(sync=sync), n_edges=1, agent_devices=(4,))
    assert {row.edge_round for row in done.rounds[0].seats if row.outcome == "used"} == set(range(n_edge_rounds))


def test_with_clock_real_the_cloud_waits_for_the_deadline_of_every_mini_batch() -> None:
    experiment = resolved(**spec_of(sync="step", clock="real", round_deadline_s=7.0))
    n_edge_rounds = 2 * 3 * 10
    assert limit_s(experiment) == MARGIN_S + n_edge_rounds * (WAVES * 4 * VISIT_S + 7.0)
