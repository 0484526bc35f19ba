"""The list of runs: which of the selected ones are removed."""

from __future__ import annotations

import pytest

from cloud_server.dashboard.pages.runs import removal
from shared.run_records.runs import RunPage, UnreadableRun
from tests.strata.samples import a_run

LISTED = RunPage(
    runs=tuple(
        a_run(run=f"r{number}", status=status)
        for number, status in enumerate(("completed", "failed", "stopped", "pending", "pending", "running"))
    ),
    unreadable=(UnreadableRun(run="old", created_at="2026-01-01", reason="of another version"),),
)


@pytest.mark.parametrize(
    ("selected", "removed", "words"),
    [
        (("r0", "r1", "r2", "old"), ["r0", "r1", "r2", "old"], "Remove 4 finished runs from"),
        (("r0", "r3", "r4", "r5"), ["r0"], "Remove 1 finished run from"),
        (("r3", "r4", "r5"), [], "have not ended stay: 2 pending, 1 running."),
    ],
)
def test_only_runs_that_have_ended_are_counted_and_removed(
    selected: tuple[str, ...], removed: list[str], words: str
) -> None:
    found, question = removal(LISTED, selected)
    assert found == removed
    assert words in question
    assert ("have not ended" in question) is (len(removed) < len(selected))
