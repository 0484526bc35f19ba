"""The cloud takes what pretended edges answer, with all its checks, and what that costs is measured and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.many_edges import CASES, Figures, draw, measure_all, stage_table, table

MLP_PARAMETERS = 784 * 64 + 64 + 64 * 10 + 10


@pytest.mark.slow
@pytest.mark.e2e
def test_answers_of_a_real_edge_count_for_each_pretended_one(tmp_path: Path) -> None:
    found: dict[str, dict[int, Figures]] = {}
    assert len(list(measure_all(CASES[:1], (3,), found))) == 2
    one = found["mlp, sums"][3]
    assert one.lost == 0
    assert 8 * MLP_PARAMETERS < one.up / 3 < 9 * MLP_PARAMETERS
    assert 4 * MLP_PARAMETERS < one.down / 3 < 5 * MLP_PARAMETERS
    assert min(one.beat_bytes, one.memory, one.stages["decode"]) > 0
    assert "| mlp, sums | 3 |" in table(found)
    assert "| mlp, sums | 3 |" in stage_table(found)
    draw(found, tmp_path / "picture.svg")
    assert "mlp, sums" in (tmp_path / "picture.svg").read_text()
