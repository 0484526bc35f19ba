"""`ctx.n_updates`, the number of updates behind a mean, at the cloud and at an edge that forms a model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shared.algorithms.layouts import ran


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("edge_rounds", "visits", "edge_upload"), [(1, 9, "sum"), (2, 19, "mean"), (1, 9, "mean"), (2, 19, "sum")]
)
async def test_mean_times_count_is_the_sum_over_all_visits(edge_rounds: int, visits: int, edge_upload: str) -> None:
    """Five devices at two edges, two rounds; one visit of the second is left out."""
    spec: dict[str, Any] = {
        "algorithm": "probe_sum",
        "data": {"name": "digits", "n_train": 50, "n_test": 10},
        "model": "linear",
        "num_devices": 5,
        "num_edges": 2,
        "num_rounds": 2,
        "edge_rounds": edge_rounds,
        "edge_upload": edge_upload,
        "losses": [{"round_no": 2, "seats": [3], "edge_round": 0}],
    }
    done = await ran(spec, agent_devices=(2, 1, 1, 1))
    grown = done.model["head.bias"] - done.experiment.initial["head.bias"]
    assert grown.tolist() == pytest.approx([visits] * 10, abs=1e-4)
