"""`strata report`: the runs that it reads and the files that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strata.commands.test_compare import in_folder
from tests.strata.conftest import Strata
from tests.strata.fake_cloud import FakeCloud


def test_report_of_the_newest_run_is_written_beside_the_runs(strata: Strata, home: Path) -> None:
    in_folder(home / "runs", "first", [0.5], name="other")
    in_folder(home / "runs", "last", [0.5, 0.8], created_at="2026-05-05T00:00:00Z")
    result = strata("report", "latest")
    assert result.code == 0, result.err
    assert "report: runs/report.html" in result.out
    text = (home / "runs" / "report.html").read_text(encoding="utf-8")
    assert "<small>last</small>" in text
    assert "<small>first</small>" not in text


@pytest.mark.slow
def test_figures_of_two_runs_are_written_beside_a_report(strata: Strata, home: Path) -> None:
    for run in ("a", "b"):
        in_folder(home / "runs", run, [0.5, 0.8])
    result = strata("report", "a", "b", "--figures", "out", "--format", "pdf", "--width", "single", "-o", "both.html")
    assert result.code == 0, result.err
    found = {path.relative_to(home / "out").as_posix() for path in (home / "out").rglob("*.pdf")}
    assert found >= {"compare.pdf", "a/accuracy.pdf", "b/accuracy.pdf"}
    assert "Runs side by side" in (home / "both.html").read_text(encoding="utf-8")


def test_figures_alone_write_no_report(strata: Strata, home: Path) -> None:
    in_folder(home / "runs", "a", [0.5, 0.8])
    assert strata("report", "a", "--figures", "out").code == 0
    assert (home / "out" / "accuracy.svg").is_file()
    assert not (home / "runs" / "report.html").exists()


def test_runs_of_a_cloud_are_downloaded_without_their_models(
    strata: Strata, url: str, cloud: FakeCloud, home: Path
) -> None:
    folder = in_folder(home / "elsewhere", "r1", [0.5, 0.8])
    cloud.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    result = strata("report", "r1", "--url", url, "-o", "it.html")
    assert result.code == 0, result.err
    assert "80.00 %" in (home / "it.html").read_text(encoding="utf-8")
    assert not [path for method, path in cloud.seen if "/models/" in path]
    assert not (home / "runs").exists()


def test_an_unknown_run_and_an_unknown_round_are_named(strata: Strata, home: Path) -> None:
    in_folder(home / "runs", "a", [0.5])
    result = strata("report", "b")
    assert (result.code, "no run, name of a run or results folder 'b'" in result.err) == (1, True)
    result = strata("report", "a", "--round", "4")
    assert (result.code, "no round 4" in result.err) == (1, True)
