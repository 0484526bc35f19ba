"""`make audit` reports packages that it could not look up, where pip-audit itself ends with status 0."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize("printed", ["", "no JSON", "{}", '{"dependencies": []}'])
def test_a_service_without_an_answer_counts_as_not_looked_up(
    audit: Any, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, stdout=printed, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert audit.asked("pypi") == []


def test_a_service_that_hangs_counts_as_not_looked_up(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    assert audit.asked("pypi") == []
