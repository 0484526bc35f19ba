"""The runs below a folder: their order does not follow a clock that was set back, and none vanishes in silence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import NotFound
from shared.results.lookup import find_folders
from shared.results.run_list import newest_sequence, runs_in
from shared.run_records.run_order import milliseconds, next_sequence, remarks
from tests.strata.samples import a_run

OLD_ID = "r20260101-000000-00ff"


def put(runs_dir: Path, run: str, created_at: str = "2026-01-02T00:00:00Z", **changes: Any) -> Path:
    """Writes the record of a run; `broken` replaces its spec by one of another version."""
    record = json.loads(a_run(run=run, created_at=created_at).model_dump_json()) | changes
    (runs_dir / run).mkdir(parents=True)
    (runs_dir / run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return runs_dir / run


def ids(runs_dir: Path) -> list[str]:
    return [info.run for _, info in runs_in(runs_dir).runs]


def test_runs_without_numbers_are_ordered_by_creation_and_equally_old_ones_by_id(tmp_path: Path) -> None:
    put(tmp_path, "a", "2026-01-03T00:00:00Z")
    put(tmp_path, "b", "2026-01-05T00:00:00.000+01:00")  # of another zone: an hour before its figures
    put(tmp_path, "c", "2026-01-04T23:30:00Z")
    put(tmp_path, "d", "2026-01-03T00:00:00Z")
    assert ids(tmp_path) == ["c", "b", "d", "a"]
    assert runs_in(tmp_path).newest() == tmp_path / "c"


def test_a_run_made_after_the_clock_was_set_back_is_the_newest_beside_old_runs_too(tmp_path: Path) -> None:
    put(tmp_path, "old", "2026-01-04T00:00:00Z")
    put(tmp_path, "first", "2026-01-05T00:00:00Z", sequence=milliseconds("2026-01-05T00:00:00Z"))
    yesterday = "2026-01-04T00:00:00Z"
    number = next_sequence(yesterday, [newest_sequence(tmp_path)])
    put(tmp_path, "second", yesterday, sequence=number)
    assert ids(tmp_path) == ["second", "first", "old"]
    assert next_sequence("2026-01-06T00:00:00Z", [number]) == milliseconds("2026-01-06T00:00:00Z")
    assert "86400 s behind" in remarks(yesterday, number)[0]
    assert remarks("2026-01-06T00:00:00Z", milliseconds("2026-01-06T00:00:00Z")) == ()


def test_a_run_of_another_version_is_listed_with_its_reason_at_its_place(tmp_path: Path) -> None:
    put(tmp_path, "a", "2026-01-01T00:00:00Z")
    put(tmp_path, "b", "2026-01-02T00:00:00Z", spec={"sync": "off"})
    put(tmp_path, "c", "2026-01-03T00:00:00Z", sequence="no number")
    (tmp_path / OLD_ID).mkdir()  # its cloud never wrote a record
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text('{"run": "torn", "created')
    (tmp_path / "no-run").mkdir()
    page = runs_in(tmp_path).page(10)
    assert [info.run for info in page.runs] == ["a"]
    reasons = {each.run: each.reason for each in page.unreadable}
    assert list(reasons) == ["c", "b", OLD_ID, "torn"]
    assert "is of another version: spec.sync: must be a mapping" in reasons["b"]
    assert "sequence: must be a whole number" in reasons["c"]
    assert "it holds no run.json" in reasons[OLD_ID]
    assert "is damaged: no valid JSON" in reasons["torn"]
    short = runs_in(tmp_path).page(1)  # the newest of all, and it cannot be read
    assert ([info.run for info in short.runs], [each.run for each in short.unreadable]) == ([], ["c"])


def test_a_record_whose_earlier_form_is_known_is_read(tmp_path: Path) -> None:
    """`sync` once named when the edge averages."""
    spec = json.loads(a_run().model_dump_json())["spec"]
    put(tmp_path, "a", spec={**spec, "sync": "round"})
    [(_, info)] = runs_in(tmp_path).runs
    assert (info.spec.average_every, info) == ("visit", a_run(run="a", created_at="2026-01-02T00:00:00Z"))
    put(tmp_path, "b", spec={**spec, "sync": "step", "surplus": 1})
    assert "spec.surplus: unknown field" in runs_in(tmp_path).unreadable[0].listed.reason


def test_latest_and_names_leave_no_unreadable_run_out_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a", "2026-01-01T00:00:00Z")
    put(tmp_path, "older", "2025-01-01T00:00:00Z", surplus=1, name="x")
    put(tmp_path, "newer", "2026-01-02T00:00:00Z", surplus=1)
    assert find_folders(tmp_path, ["latest"]) == [tmp_path / "a"]
    assert "newer" in caplog.text
    assert "older" not in caplog.text
    caplog.clear()
    assert find_folders(tmp_path, ["small"]) == [tmp_path / "a"]  # the name of all samples but one
    assert "run newer is left out" in caplog.text
    with pytest.raises(NotFound, match=r"older/run.json is of another version: surplus: unknown field"):
        find_folders(tmp_path, ["x"])


def test_latest_gives_the_reason_if_no_run_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no run in"):
        runs_in(tmp_path / "absent").newest()
    put(tmp_path, "a", surplus=1)
    put(tmp_path, "b", surplus=1)
    with pytest.raises(NotFound, match=r"none of 2 runs in .* the newest, b: .* surplus: unknown field"):
        runs_in(tmp_path).newest()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_record_that_this_user_may_not_read_is_listed(tmp_path: Path) -> None:
    (put(tmp_path, "a") / "run.json").chmod(0)
    [found] = runs_in(tmp_path).unreadable
    assert "cannot be read: Permission denied" in found.listed.reason
