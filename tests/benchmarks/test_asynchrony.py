"""What `benchmarks.asynchrony` makes of the versions of runs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.asynchrony import BASE, SLOW, TARGET, Point, draw, reached, table, variants
from shared.federation.spec_parser import parse_spec


def rising(step: float, seconds: float) -> list[Point]:
    """Versions whose accuracy rises by the same step."""
    return [Point(10 * n, seconds * n, min(step * n, 1.0)) for n in range(1, 12)]


def test_a_target_counts_from_the_first_of_three_versions_that_hold_it() -> None:
    high = TARGET + 0.01
    points = [Point(n, 2.0 * n, value) for n, value in enumerate([0.1, high, 0.2, high, high, high, high])]
    assert reached(points) == points[3]
    assert reached(points[:5]) is None


def test_the_table_has_medians_over_seeds_and_says_where_the_target_was_missed() -> None:
    quick, slow = [rising(0.1, seconds) for seconds in (1.0, 2.0, 5.0)], [rising(0.01, 1.0)] * 3
    rows = table({"devices": {"quick": quick, "slow": slow}}).splitlines()
    assert rows[2] == "| device to edge | quick | 90 (90-90) | 18.0 (9.0-45.0) | 1.000 |"
    assert rows[3] == "| device to edge | slow | reached by 0 of 3 | reached by 0 of 3 | 0.110 |"


def test_every_variant_is_a_spec() -> None:
    for tier, slow in SLOW.items():
        found = {name: parse_spec({**BASE, **slow, **fields}) for name, fields in variants(tier).items()}
        assert {spec.sync.tiers[tier].mode for spec in found.values()} == {
            "synchronous",
            "semi_synchronous",
            "asynchronous",
        }


def test_the_picture_is_the_same_each_time(tmp_path: Path) -> None:
    found = {tier: {"quick": [rising(0.1, 1.0), rising(0.1, 3.0)]} for tier in SLOW}
    for name in ("a.svg", "b.svg"):
        draw(found, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"updates used" in (tmp_path / "a.svg").read_bytes()
