"""docs/security.md names tests that exist and defaults that hold."""

from __future__ import annotations

import re
from pathlib import Path

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
    "CLOUD_MAX_EVENT_CLIENTS": 2000,
    "CLOUD_LEASE_S": 15,
}


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
    end = next(n for n, row in enumerate(ROWS) if row[0].strip() == "setting")
    documented = set(re.findall(r"`([A-Z_]+)`", "".join(row[0] for row in ROWS[end + 1 :])))
    assert documented == {*DEFAULTS, "ALLOWED_NETWORKS", "ALLOWED_HOSTS"}
    for name, default in DEFAULTS.items():
        kind = CloudSettings if name.startswith("CLOUD_") else TierSettings
        assert kind.model_fields[name.removeprefix("CLOUD_").lower()].default == default, name
