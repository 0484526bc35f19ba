"""What an edge keeps between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.federation import selection
from shared.federation.context import Context, EdgeView
from shared.federation.population import Seat
from shared.federation.selection import SelectionPolicy
from tests.federation import small_spec
from tests.shared.algorithms.layouts import run


@pytest.mark.parametrize("uses_losses", [True, False])
async def test_edge_keeps_losses_between_rounds_for_every_policy_that_uses_them(
    uses_losses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy takes the seats in turn and notes which losses it is given."""
    known: list[dict[int, float]] = []

    def in_turn(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
        known.append(dict(view.losses))
        return [seats[ctx.round_no - 1].number]

    monkeypatch.setitem(
        selection.SELECTION, "fastest", SelectionPolicy(name="fastest", choose=in_turn, uses_losses=uses_losses)
    )
    done = await run(tmp_path, small_spec(select="fastest", num_edges=1, num_rounds=3), n_edges=1)
    losses = {row.seat: row.train_loss for detail in done.rounds for row in detail.seats if row.outcome == "used"}
    before = [{seat: losses[seat] for seat in range(n)} for n in range(3)]
    assert known == (before if uses_losses else [{}, {}, {}])
