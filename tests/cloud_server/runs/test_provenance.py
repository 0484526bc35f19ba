"""A resumed run goes on with the data, code and packages that it began with, or says what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_server.runs import provenance
from cloud_server.runs.provenance import provenance_of
from shared.core.versions import versions
from shared.results.manifest import Manifest
from shared.results.report.rerun import read_manifest, rerun
from shared.run_records.runs import RunInfo
from shared.storage import redis_keys
from tests.federation import Federation, small_spec

pytestmark = pytest.mark.layout(agent_devices=(3, 3))


def write_data(folder: Path, seed: int, size: int = 8) -> dict[str, Any]:
    """Writes a data set of ten classes drawn from a seed, in place of the one before; returns settings that name it."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(seed)
    labels = np.arange(60) % 10
    arrays: Any = {
        "train_x": draw.integers(0, 255, (60, size, size), dtype=np.uint8),
        "train_y": labels,
        "test_x": draw.integers(0, 255, (20, size, size), dtype=np.uint8),
        "test_y": labels[:20],
    }
    np.savez(folder / "usps.npz", **arrays)
    return {"data_dir": folder}


def spec(**changes: Any) -> dict[str, Any]:
    return small_spec(data={"name": "usps"}, model={"name": "mlp"}, num_rounds=3, **changes)


async def refusal(fed: Federation, run_id: str, path: str = "resume", **body: Any) -> str:
    answer = await fed.client.post(f"/runs/{run_id}/{path}", **body)
    assert (answer.status_code, answer.json()["code"]) == (409, "provenance_changed"), answer.text
    return str(answer.json()["detail"])


def manifest(fed: Federation, run_id: str) -> Manifest:
    found = read_manifest(fed.folder / "runs" / run_id)
    assert found is not None
    return found


async def test_a_resumption_with_other_data_is_refused_until_the_data_is_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with Federation(tmp_path / "f", common=write_data(data, 1)) as fed:
        whole = await fed.run(spec())
        run_id = await fed.start_and_pause(spec(), 1)
        began = (await fed.info(run_id)).provenance
        assert began is not None
        await fed.restart(lambda: write_data(data, 2))
        text = await refusal(fed, run_id)
        assert f"data (sha256): {began.data_digest[:12]} then" in text
        assert "devices and their data" in text
        assert "--accept-changes" in text
        assert (await fed.info(run_id)).status == "paused"
        assert manifest(fed, run_id).data_digest == began.data_digest
        await fed.restart(lambda: write_data(data, 1))
        await fed.control(run_id, "resume")
        end = await fed.finish(run_id)
    assert (end.status, end.model_sha256, end.changes) == ("completed", whole.model_sha256, ())


@pytest.mark.whole
async def test_an_accepted_change_of_the_data_is_recorded_and_the_beginning_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with Federation(tmp_path / "f", common=write_data(data, 1)) as fed:
        run_id = await fed.start_and_pause(spec(), 1)
        began = (await fed.info(run_id)).provenance
        assert began is not None
        await fed.restart(lambda: write_data(data, 2))
        answer = await fed.client.post(f"/runs/{run_id}/resume", params={"accept_changes": True})
        assert answer.status_code == 200, answer.text
        end = await fed.finish(run_id)
        seen = [event.kind for event in await fed.events(run_id)]
        written = manifest(fed, run_id)
        again = await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 1})
        assert again.status_code == 200  # what was accepted is not asked for again
        assert (await fed.finish(run_id)).rounds == 4
    assert end.status == "completed"
    assert end.provenance == began
    [change] = end.changes
    assert change.after_round == 1
    assert any(text.startswith("data (sha256)") for text in change.differences)
    assert change.provenance.data_digest != began.data_digest
    assert "run.changed" in seen
    assert (written.data_digest, written.population_digest) == (began.data_digest, began.population_digest)
    assert written.changes == end.changes
    shown = rerun(end, written, ())
    assert not shown.repeatable
    assert "data (sha256)" in shown.equal["after round 1"]


@pytest.mark.whole
@pytest.mark.parametrize("size", [8, 12], ids=["other values", "another image size"])
async def test_a_run_that_resumes_by_itself_pauses_with_what_differs(tmp_path: Path, size: int) -> None:
    data = tmp_path / "data"
    async with Federation(tmp_path / "f", common=write_data(data, 1)) as fed:
        gate, run_id = await fed.submit_and_hold(spec(), closed_at=2)

        def change() -> None:
            gate.open.set()
            write_data(data, 2, size)

        await fed.restart(change)
        info = await fed.until_status(run_id, "paused", "failed", "completed")
        seats = await fed.client.get(f"/runs/{run_id}/seats")
    assert info.status == "paused"
    assert "data (sha256)" in str(info.reason)
    assert info.rounds == 1
    assert (seats.status_code, seats.json()["code"]) == (409, "provenance_changed")  # not those of other data


@pytest.mark.whole
async def test_other_packages_are_refused_also_when_rounds_are_added(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    paused = await fed.start_and_pause(small_spec(), 1)
    ended = await fed.run(small_spec())
    monkeypatch.setattr(provenance, "versions", lambda: {**versions(), "torch": "0.1"})
    wanted = f"torch: {versions()['torch']} then, 0.1 now"
    assert wanted in await refusal(fed, paused)
    assert wanted in await refusal(fed, ended.run, "rounds", json={"num_rounds": 1})
    assert (await fed.info(ended.run)).num_rounds == 2
    more = {"num_rounds": 1, "accept_changes": True}
    assert (await fed.client.post(f"/runs/{ended.run}/rounds", json=more)).status_code == 200
    end = await fed.finish(ended.run)
    assert (end.status, end.rounds) == ("completed", 3)
    assert [change.differences for change in end.changes] == [(wanted,)]


async def test_another_cpu_is_recorded_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, fed: Federation) -> None:
    run_id = await fed.start_and_pause(small_spec(), 1)
    monkeypatch.setattr(provenance, "cpu_model", lambda: "another one")
    await fed.control(run_id, "resume")
    end = await fed.finish(run_id)
    assert end.status == "completed"
    assert end.changes[0].differences[0].endswith(" then, another one now")


@pytest.mark.whole
async def test_a_run_of_which_nothing_is_recorded_goes_on_with_a_note(fed: Federation) -> None:
    run_id = await fed.start_and_pause(small_spec(), 1)
    key = redis_keys.cloud_run(run_id)
    document = json.loads(await fed.store.get(key) or b"")
    for name in ("provenance", "changes"):  # as an earlier version wrote it
        del document[name]
    await fed.store.put(key, json.dumps(document).encode())
    await fed.control(run_id, "resume")
    end = await fed.finish(run_id)
    experiment = fed.cloud.runs.services.experiments.of(end.spec)
    assert end.provenance == provenance_of(experiment)
    assert end.status == "completed"
    assert end.notes == (provenance.NOT_RECORDED.format(1),)


async def test_the_record_is_committed_with_the_initial_checkpoint(fed: Federation) -> None:
    commits: list[set[str]] = []
    commit = fed.store.commit

    async def noted(batch: Any) -> list[str]:
        commits.append({put.key for put in batch.puts})
        for put in batch.puts:
            if put.key.endswith(":document") and RunInfo.model_validate_json(put.value).provenance is None:
                assert redis_keys.cloud_run_state(RunInfo.model_validate_json(put.value).run) not in commits[-1]
        return await commit(batch)

    fed.store.commit = noted  # type: ignore[method-assign]
    info = await fed.run(small_spec(num_rounds=1))
    first = next(keys for keys in commits if redis_keys.cloud_run_state(info.run) in keys)
    assert redis_keys.cloud_run(info.run) in first
    assert info.provenance is not None
