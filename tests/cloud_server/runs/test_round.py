"""How many edges a round needs, and what its record says of all of them together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloud_server.runs.round import CloudRound, QuorumMissed
from cloud_server.runs.round_record import EdgeReplies
from shared.federation.messages import Failure
from shared.spec.experiment import ExperimentSpec
from tests.federation import Federation, small_spec


@pytest.mark.parametrize(
    ("quorum", "n_answered", "n_failed", "missed"),
    [
        (0.5, 1, 1, None),
        (0.5, 2, 2, None),
        (1.0, 3, 0, None),
        (0.01, 1, 0, None),
        (0.34, 1, 1, None),
        (0.5, 1, 2, "round 3: quorum of 2 of 3 edges missed: edge 0 is lost; edge 1 is lost"),
        (1.0, 1, 1, "round 3: quorum of 2 of 2 edges missed: edge 0 is lost"),
        (0.5, 0, 0, "round 3: quorum of 1 of 0 edges missed: no edge is alive"),
    ],
)
def test_a_round_counts_with_its_share_of_edges_and_else_says_why_not(
    quorum: float, n_answered: int, n_failed: int, missed: str | None
) -> None:
    spec = ExperimentSpec.model_validate({"quorum": quorum})
    failed = {n: Failure(edge=n, reason="lost", detail=f"edge {n} is lost") for n in range(n_failed)}
    known: Any = SimpleNamespace(experiment=SimpleNamespace(spec=spec), round_no=3)
    found = None
    try:
        CloudRound._require_quorum(known, EdgeReplies(cast("Any", {9 + n: None for n in range(n_answered)}), failed))
    except QuorumMissed as error:
        found = error.detail
    assert found == missed


async def test_the_loss_of_a_round_is_the_mean_over_the_samples_of_its_visits(tmp_path: Path) -> None:
    async with Federation(tmp_path / "f") as fed:
        info = await fed.run(small_spec(num_rounds=1, partition={"name": "dirichlet", "alpha": 0.5}))
        first = await fed.round(info.run, 1)
    visits = [(row.n_samples, row.train_loss) for row in first.seats]
    assert len({n for n, _ in visits}) > 1
    mean = sum(n * (loss or 0.0) for n, loss in visits) / sum(n for n, _ in visits)
    assert first.train_loss == pytest.approx(mean, rel=1e-9)
