"""The report tells survivors that have a reason from those that have none."""

from pathlib import Path
from typing import Any

import pytest

from tests.mutants.report import Known, known_survivors, report

ROOT = Path(__file__).resolve().parents[2]


def verdict(function: str, verdict: str, package: str = "wire") -> dict[str, Any]:
    """A verdict on a change of a function."""
    known = {"key": function, "package": package, "file": "shared/wire/codec.py", "line": 7, "operator": "AddNot"}
    return known | {"function": function, "was": "if a:", "becomes": "if not a:", "verdict": verdict}


def test_the_score_counts_every_survivor_and_lists_it() -> None:
    verdicts = [verdict("f", "killed"), verdict("g", "timeout"), verdict("h", "survived"), verdict("i", "survived")]
    verdicts.append(verdict("j", "killed", "storage"))
    known = [
        Known("shared/wire/codec.py", "h", "if a:", "if not a:", "a is always true here"),
        Known("shared/wire/codec.py", "old", "if a:", "if not a:", "no longer there"),
    ]
    lines = report(verdicts, known).split("\n")
    assert [line.split() for line in lines[1:4]] == [
        ["wire", "4", "2", "1", "2", "1", "50.0%"],
        ["storage", "1", "1", "0", "0", "0", "100.0%"],
        ["all", "5", "3", "1", "2", "1", "60.0%"],
    ]
    assert lines[4:] == [
        "",
        "1 survivors with a reason",
        "  shared/wire/codec.py:7 h (AddNot, survived)",
        "    - if a:",
        "    + if not a:",
        "    a is always true here",
        "",
        "1 survivors without a reason in tests/mutants/survivors.toml",
        "  shared/wire/codec.py:7 i (AddNot, survived)",
        "    - if a:",
        "    + if not a:",
        "",
        "1 entries of tests/mutants/survivors.toml that match no survivor",
        "  shared/wire/codec.py old: if a:",
    ]


@pytest.mark.parametrize("entry", known_survivors(ROOT), ids=lambda entry: f"{entry.function}-{entry.becomes[:30]}")
def test_a_survivor_with_a_reason_is_of_code_that_is_there(entry: Known) -> None:
    lines = [line.strip() for line in (ROOT / entry.file).read_text(encoding="utf-8").split("\n")]
    assert [line for line in entry.was.split("\n") if line not in lines] == []
    assert entry.reason
