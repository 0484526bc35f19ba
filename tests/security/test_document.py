"""docs/security.md names tests that exist, and defaults and limits that hold."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from cloud_server.settings import CloudSettings
from shared.service.settings import TierSettings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [row.split("|")[1:-1] for row in TEXT.splitlines() if row.startswith("| ")]
DEFAULTS = {"HEAD_S": 10, "BODY_S": 20, "BODY_RATE": 65_536, "UNREAD_S": 60, "MAX_CONNECTIONS": 10_000}
DEFAULTS |= {
    "MAX_BODY_BYTES": 2**31,
    "CLOUD_MAX_SPEC_BYTES": 2**20,
    "CLOUD_MAX_RUNS": 1000,
    "CLOUD_MAX_CONCURRENT_RUNS": 1,
    "CLOUD_MAX_EVENT_CLIENTS": 2000,
    "CLOUD_LEASE_S": 15,
}

UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "bytes": 1, "characters": 1, "s": 1, "h": 3600}


def test_every_claim_names_an_existing_test() -> None:
    start = next(n for n, row in enumerate(ROWS) if row[0].strip() == "against")
    end = next(n for n, row in enumerate(ROWS) if row[0].strip() == "setting")
    claims = [row for row in ROWS[start + 1 : end] if len(row) == 3]
    assert len(claims) > 10
    for against, _, shown in claims:
        named = re.findall(r"`(tests/[^`]+)`", shown)
        assert named, against
        assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_stolen_secret_has_a_test_and_every_named_test_exists() -> None:
    start = next(n for n, row in enumerate(ROWS) if row[0].strip() == "stolen")
    end = next(n for n, row in enumerate(ROWS) if row[0].strip() == "against")
    stolen = [row for row in ROWS[start + 1 : end] if len(row) == 4 and set(row[0]) != {"-"}]
    assert len(stolen) > 8
    for row in stolen:
        assert re.search(r"test_|the same", row[3]), row[0]
    written = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 5
    assert [name for name in sorted(named) if not re.search(rf"def {name}\b", written)] == []


def test_every_limit_has_the_documented_default() -> None:
    start = next(n for n, row in enumerate(ROWS) if row[0].strip() == "setting")
    end = next(n for n, row in enumerate(ROWS) if row[0].strip() == "what is limited")
    documented = set(re.findall(r"`([A-Z_]+)`", "".join(row[0] for row in ROWS[start + 1 : end])))
    assert documented == {*DEFAULTS, "ALLOWED_NETWORKS", "ALLOWED_HOSTS"}
    for name, default in DEFAULTS.items():
        kind = CloudSettings if name.startswith("CLOUD_") else TierSettings
        assert kind.model_fields[name.removeprefix("CLOUD_").lower()].default == default, name


FIXED = ROWS[next(n for n, row in enumerate(ROWS) if row[0].strip() == "what is limited") + 1 :]


@pytest.mark.parametrize("row", FIXED, ids=lambda row: row[0].strip())
def test_every_fixed_limit_is_that_of_the_named_constant(row: list[str]) -> None:
    number, unit = re.fullmatch(r" ([\d,]+)(?: (\w+))? ", row[1]).groups(default="")  # type: ignore[union-attr]
    name, file = re.fullmatch(r" `(\w+)` of `([\w/]+)\.py` ", row[3]).groups()  # type: ignore[union-attr]
    assert re.search(rf"^{name} = ", (ROOT / f"{file}.py").read_text(encoding="utf-8"), re.MULTILINE)
    constant = getattr(import_module(file.replace("/", ".")), name)
    assert int(number.replace(",", "")) * UNITS[unit] == constant


def test_the_table_of_fixed_limits_has_rows() -> None:
    assert len(FIXED) >= 20
    assert all(len(row) == 4 for row in FIXED)
