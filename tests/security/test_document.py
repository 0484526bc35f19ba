"""docs/security.md and docs/defences.md name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECURITY, DEFENCES = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("security", "defences"))


def _rows(page: str, first: str) -> list[list[str]]:
    """The cells of all tables of a page whose first column has this name."""
    tables = re.findall(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\| .*\n)+)", page, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")[1:-1]] for table in tables for row in table.splitlines()]


def test_every_claim_names_an_existing_test() -> None:
    claims = _rows(DEFENCES, "against")
    assert len(claims) > 25
    for against, _, shown in claims:
        named = re.findall(r"`(tests/[^`]+)`", shown)
        assert named, against
        assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_stolen_secret_has_a_test_and_every_named_test_exists() -> None:
    stolen = _rows(SECURITY, "stolen")
    assert len(stolen) > 8
    for row in stolen:
        assert re.search(r"test_|the same", row[3]), row[0]
    written = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", SECURITY))
    assert len(named) > 5
    assert [name for name in sorted(named) if not re.search(rf"def {name}\b", written)] == []
