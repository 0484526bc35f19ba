"""A record says that a run completed once everything that it promises is on the disk; else it says what is missing."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from shared.core.tensors import digest
from shared.results import folder, writer
from shared.results.folder import read_round, read_rounds, read_run
from shared.results.saved_model import saved_state
from tests.federation import Federation, Gate, small_spec

pytestmark = pytest.mark.layout(agent_devices=(3, 3))


class FullDisk:
    """Lets writing of some files of results folders fail as on a full disk, until `room`; records each `run.json`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_full: Callable[[Path], bool]) -> None:
        self.room, self.is_full = False, is_full
        self.records: list[str] = []
        for module, name in ((writer, "write_file"), (writer, "append_file"), (folder, "write_file")):
            monkeypatch.setattr(module, name, self._checked(getattr(module, name)))

    def _checked(self, write: Callable[..., None]) -> Callable[..., None]:
        def checked(path: Path, content: bytes, **kwargs: Any) -> None:
            if not self.room and self.is_full(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            write(path, content, **kwargs)
            if path.name == "run.json":
                self.records.append(read_run(path.parent).status)

        return checked


def model_file(path: Path) -> bool:
    return path.suffix == ".safetensors"


@pytest.mark.whole
async def test_a_run_whose_model_cannot_be_written_has_failed_everywhere_and_its_model_can_be_fetched(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    disk = FullDisk(monkeypatch, model_file)
    info = await fed.run(small_spec())
    folder = fed.folder / "runs" / info.run
    assert info.status == "failed"
    for words in ("model.safetensors", "No space left on device", "the disk or the quota is full", "strata resume"):
        assert words in str(info.reason)
    assert set(disk.records) == {"running", "failed"}
    assert read_run(folder).reason == info.reason
    assert not list(folder.rglob("*.safetensors"))
    assert (await fed.client.get(f"/runs/{info.run}/models/global")).status_code == 200
    disk.room = True
    other = await fed.run(small_spec(num_rounds=1))  # which it does not keep from training
    assert other.status == "completed"
    await fed.control(info.run, "resume")
    again = await fed.finish(info.run)
    assert (again.status, again.reason) == ("completed", None)
    assert read_run(folder).status == "completed"
    assert digest(load_file(folder / "model.safetensors")) == again.model_sha256


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "name", ["seats.ndjson", "run.json", "spec.yaml", "devices.ndjson", "rounds.csv", "manifest.json"]
)
async def test_a_file_that_cannot_be_written_is_the_reason_of_the_run(
    monkeypatch: pytest.MonkeyPatch, name: str, fed: Federation
) -> None:
    disk = FullDisk(monkeypatch, lambda path: path.name == name)
    info = await fed.run(small_spec())
    assert (info.status, f"{name}: No space left" in str(info.reason)) == ("failed", True), info.reason
    assert "completed" not in disk.records
    disk.room = True
    await fed.control(info.run, "resume")
    assert (await fed.finish(info.run)).status == "completed"
    folder = fed.folder / "runs" / info.run
    assert [len(read_round(folder, n).seats) for n in (1, 2)] == [6, 6]


@pytest.mark.whole
async def test_a_round_without_room_for_its_visits_is_in_no_table(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    gate = Gate(fed, closed_at=3)
    run_id = await fed.submit(small_spec(num_rounds=4))
    folder = fed.folder / "runs" / run_id
    await fed.until(lambda: len(read_rounds(folder)) == 2)
    FullDisk(monkeypatch, lambda path: path.name == "devices.ndjson")
    gate.open.set()
    info = await fed.finish(run_id)
    assert (info.status, "devices.ndjson" in str(info.reason)) == ("failed", True)
    assert [row.round_no for row in read_rounds(folder)] == [1, 2]
    assert read_run(folder).rounds == info.rounds >= 3


async def test_a_stopped_run_whose_results_cannot_be_written_says_so(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
    FullDisk(monkeypatch, model_file)
    await fed.control(run_id, "stop")
    gate.open.set()
    info = await fed.finish(run_id)
    assert (info.status, "model.safetensors" in str(info.reason)) == ("failed", True)


async def test_a_folder_removed_under_way_is_written_again_as_a_whole(tmp_path: Path, fed: Federation) -> None:
    gate = Gate(fed, closed_at=4)
    run_id = await fed.submit(small_spec(num_rounds=5))
    folder = fed.folder / "runs" / run_id
    await fed.until(lambda: len(read_rounds(folder)) == 3)
    folder.rename(tmp_path / "removed")  # at once: its writer may be at work
    gate.open.set()
    assert (await fed.finish(run_id)).status == "completed"
    assert [len(read_round(folder, n).seats) for n in range(1, 6)] == [6] * 5
    assert [len(read_round(folder, n).edges) for n in range(1, 6)] == [2] * 5
    assert all(row.evaluation for row in read_rounds(folder) if row.kind == "train")
    links = (folder / "links.csv").read_text().splitlines()[1:]
    assert {int(line.split(",")[0]) for line in links} == {1, 2, 3, 4, 5}


async def test_a_status_is_stored_once_the_results_are_written(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    writing, may_write = asyncio.Event(), asyncio.Event()
    thread = fed.cloud.results.thread
    run = thread.run

    async def held(work: Callable[..., Any], *args: Any) -> Any:
        if any(getattr(each, "models", None) for each in args[-1:]):  # the models
            writing.set()
            await may_write.wait()
        return await run(work, *args)

    monkeypatch.setattr(thread, "run", held)
    run_id = await fed.submit(small_spec(num_rounds=1))
    await writing.wait()
    assert (await fed.info(run_id)).status == "running"
    may_write.set()
    info = await fed.finish(run_id)
    assert (info.status, read_run(fed.folder / "runs" / run_id).status) == ("completed", "completed")


async def test_a_model_of_another_round_than_the_record_is_refused_by_name(tmp_path: Path, fed: Federation) -> None:
    info = await fed.run(small_spec(num_rounds=1))
    folder = fed.folder / "runs" / info.run
    assert digest(saved_state(folder)) == info.model_sha256
    shutil.copy(folder / "model.safetensors", tmp_path / "before")
    answer = await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 1})
    assert answer.status_code == 200, answer.text
    await fed.until(lambda: read_run(folder).rounds == 2)
    await fed.finish(info.run)
    shutil.copy(tmp_path / "before", folder / "model.safetensors")
    with pytest.raises(Exception, match=r"model.safetensors is of another round than 2, the last of run"):
        saved_state(folder)
