"""Each program and each command of the how-to page on other data than digits runs, in fewer rounds."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from strata.spec_files import read_spec
from tests.docs_site.test_how_to import HOW_TO, Save, blocks, failures, save  # noqa: F401 - a fixture
from tests.shared.algorithms.layouts import run

PAGE = "tables-texts-machines.md"
TEXT = (HOW_TO / PAGE).read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (?:\w+=\S+ )*strata run (\S+.*)$", TEXT, re.MULTILINE)
PROGRAMS = blocks(PAGE)
SMALLER = ("num_rounds=1", "num_edges=2", "num_devices=2", "local_epochs=1")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data with what the page's programs write: a table, texts, and images."""
    folder = tmp_path / "own"
    (folder / "texts").mkdir(parents=True)
    monkeypatch.chdir(folder)
    for number, line in enumerate(("the quick brown fox jumps. ", "pack my box with jugs! ", "now is the time; ")):
        (folder / "texts" / f"{number}.txt").write_text(line * 30, encoding="utf-8")
    for program in PROGRAMS:
        if "DataSource" not in program:
            exec(compile(program, PAGE, "exec"), {})  # noqa: S102 - the page's own
    assert {path.name for path in folder.iterdir()} == {"texts", "texts.npz", "wards.csv", "pictures"}
    return folder


def test_the_page_has_a_program_for_each_kind_of_data_and_names_each_experiment() -> None:
    assert len(PROGRAMS) == 4
    named = {Path(shlex.split(command)[0]).stem for command in COMMANDS}
    assert named == {"breast_cancer", "sklearn_docs", "vibration", "pictures"}


@pytest.mark.matrix
@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
async def test_a_command_of_the_page_runs(command: str, own: Path, tmp_path: Path, save: Save) -> None:  # noqa: F811
    if "data=pumps" in command:
        assert failures(save(PAGE, "mine/mysignals/pumps.py", 2)) == []
    path, *overrides = shlex.split(command)
    spec: Any = read_spec(path, [*overrides, *SMALLER]).model_dump(mode="json", exclude_none=True)
    ended = await run(tmp_path / "run", spec, common={"data_dir": own}, n_edges=2, agent_devices=(1, 1))
    assert (ended.info.status, ended.info.rounds) == ("completed", 1)
    assert {row.outcome for detail in ended.rounds for row in detail.seats} == {"used"}
    assert math.isfinite(ended.info.loss or math.nan)
