"""The states of clients between rounds: each round begins with what the last visit that counts has left."""

from __future__ import annotations

from pathlib import Path

from tests.federation import Federation, small_spec


async def test_every_client_counts_its_visits_from_round_to_round(tmp_path: Path, counter_algorithm: str) -> None:
    async with Federation(tmp_path / "f") as fed:
        info = await fed.run(small_spec(algorithm=counter_algorithm, num_rounds=3))
        assert info.status == "completed", info.reason
        for round_no in (1, 2, 3):
            detail = await fed.round(info.run, round_no)
            assert [row.figures["visits"] for row in detail.seats] == [round_no] * 6


async def test_a_client_that_misses_a_round_goes_on_from_its_last_visit(tmp_path: Path, counter_algorithm: str) -> None:
    """Seat 4 is left out of round 2."""
    losses = [{"round_no": 2, "seats": [4]}]
    async with Federation(tmp_path / "f") as fed:
        info = await fed.run(small_spec(algorithm=counter_algorithm, num_rounds=3, losses=losses))
        third = await fed.round(info.run, 3)
    assert {row.seat: row.figures["visits"] for row in third.seats} == {0: 3, 1: 3, 2: 3, 3: 3, 4: 2, 5: 3}
