"""Fixtures: a fake cloud, a separate home folder, and the command in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from strata.main import app_entry
from tests.strata.fake_cloud import FakeCloud, served


class CommandResult(NamedTuple):
    """A command's exit status and output."""

    code: int
    out: str
    err: str


Strata = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a separate folder without the user's settings."""
    for name in ("STRATA_URL", "STRATA_API_TOKEN", "STRATA_API_TOKEN_FILE", "STRATA_HOME", "STRATA_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(home: Path) -> Path:
    """The folder of results."""
    return home / "runs"


@pytest.fixture
def strata(capsys: pytest.CaptureFixture[str]) -> Strata:
    """Run the command with these arguments."""

    def run(*arguments: object) -> CommandResult:
        with pytest.raises(SystemExit) as ended:
            app_entry([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return CommandResult(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of comparisons are empty files: to draw them takes longer than all else that their commands do."""
    monkeypatch.setattr("shared.results.comparison_figure.drawn", lambda *_: b"")


@pytest.fixture
def cloud() -> FakeCloud:
    """A fake cloud whose behaviour the test sets."""
    return FakeCloud()


@pytest.fixture
def url(cloud: FakeCloud) -> Iterator[str]:
    """The address of the fake cloud."""
    with served(cloud.app) as address:
        yield address


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    """A spec for a few rounds."""
    path = tmp_path / "small.yaml"
    path.write_text("name: small\nseed: 7\nnum_rounds: 3\ndata: digits\n", encoding="utf-8")
    return path
