"""What a node lacks to answer is known while its heartbeats go on."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from shared.service import needs
from shared.service.needs import Needs, note_clock
from shared.storage.key_value import StoreUnavailable


async def lacks(checked: Needs) -> str:
    await checked.look()
    return checked.lacks


async def test_folders_that_are_gone_or_cannot_be_written_are_named_until_they_are_back(tmp_path: Path) -> None:
    state, data = tmp_path / "state", tmp_path / "data"
    data.mkdir()
    checked = Needs({"its state": state}, {"STRATA_DATA_DIR": data, "another": tmp_path / "never", "none": None})
    assert await lacks(checked) == ""
    assert list(state.iterdir()) == []
    shutil.rmtree(data)
    assert await lacks(checked) == f"STRATA_DATA_DIR {data} is gone"
    shutil.rmtree(state)
    state.write_text("a file")
    data.mkdir()
    said = await lacks(checked)
    assert said.startswith("its state: ")
    assert str(state) in said
    state.unlink()
    assert await lacks(checked) == ""
    refuses = AsyncMock(side_effect=StoreUnavailable("Redis at here:6379 refuses: OOM"))
    assert await lacks(Needs({}, {}, refuses)) == "Redis at here:6379 refuses: OOM", "a store that takes no writes"


async def test_a_folder_that_hangs_is_named_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "FOLDER_S", 0.01)
    hangs = threading.Event()
    hang = Mock(side_effect=lambda what, path: hangs.wait())
    monkeypatch.setattr(needs, "_unwritable", hang)
    checked = Needs({"its state": tmp_path}, {})
    for _ in range(3):
        assert "do not answer" in await lacks(checked)
    assert hang.call_count == 1
    hangs.set()


@pytest.mark.parametrize(("now_s", "words"), [(1612.0, "612 s ahead"), (400.0, "600 s behind"), (1059.0, "")])
def test_a_node_says_that_its_own_clock_is_wrong(now_s: float, words: str, caplog: pytest.LogCaptureFixture) -> None:
    note = note_clock(now_s, 1000.0)
    assert (words in note, bool(note)) == (True, bool(words))
    assert note in caplog.text
    assert note_clock(now_s, None) == ""
