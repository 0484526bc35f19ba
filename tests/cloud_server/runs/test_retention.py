"""Which ended runs are removed, in which order, and what is never removed."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from cloud_server.runs.retention import DAY_S, EndedRun, Retention, beyond
from shared.core.os_errors import SystemRefused
from tests.federation import Federation, small_spec
from tests.strata.samples import a_run

NOW = 100 * DAY_S


def ended(*runs: tuple[str, float, int], pinned: str = "") -> list[EndedRun]:
    """Runs by id, days since their end, and bytes."""
    return [EndedRun(a_run(run=run, pinned=run == pinned), NOW - days * DAY_S, n_bytes) for run, days, n_bytes in runs]


def removed(runs: list[EndedRun], keep_days: float | None, keep_bytes: int | None) -> list[str]:
    return [each.info.run for each, _ in beyond(runs, NOW, keep_days, keep_bytes)]


RUNS = (("r1", 3.0, 100), ("r2", 9.0, 10), ("r3", 1.0, 1000), ("r4", 5.0, 0))


def test_what_ended_first_goes_first_and_nothing_more_than_has_to() -> None:
    runs = ended(*RUNS)
    assert removed(runs, None, None) == []
    assert removed(runs, 4.0, None) == ["r2", "r4"]
    assert removed(runs, 9.0, None) == []
    assert removed(runs, None, 1110) == []
    assert removed(runs, None, 1109) == ["r2"]
    assert removed(runs, None, 1000) == ["r2", "r1"]  # the one without results would free nothing
    assert removed(runs, None, 0) == ["r2", "r1", "r3"]
    assert removed(runs, 4.0, 1000) == ["r2", "r4", "r1"]


def test_a_pinned_run_is_kept_and_removes_no_other_one() -> None:
    runs = ended(*RUNS, pinned="r2")
    assert removed(runs, 4.0, None) == ["r4"]
    assert removed(runs, None, 1100) == []
    assert removed(runs, None, 1099) == ["r1"]
    assert removed(ended(*RUNS, pinned="r3"), None, 110) == []
    assert removed(runs, 0.5, 0) == ["r4", "r1", "r3"]


def test_a_reason_names_limit_and_use() -> None:
    first = beyond(ended(*RUNS), NOW, 4.0, None)[0][1]
    assert first == "it ended 9.0 days ago, runs are kept for 4 (CLOUD_KEEP_DAYS)"
    assert beyond(ended(*RUNS), NOW, None, 100)[0][1] == "results hold 1.11 kB, the limit is 100 B (CLOUD_KEEP_BYTES)"


@pytest.mark.layout(n_edges=1, agent_devices=(2,), cloud={"keep_days": 30.0})
async def test_only_ended_runs_that_are_not_pinned_are_removed_with_a_note(fed: Federation) -> None:
    spec: dict[str, Any] = small_spec(num_devices=2, num_edges=1, num_rounds=1)
    old, pinned, young = [(await fed.run(spec)).run for _ in range(3)]
    paused = await fed.start_and_pause({**spec, "num_rounds": 3}, 1)
    assert (await fed.client.patch(f"/runs/{pinned}", json={"pinned": True})).json()["pinned"]
    assert (await fed.client.patch(f"/runs/{pinned}", json={})).status_code == 422
    runs_dir = fed.folder / "runs"
    for run in (old, pinned, paused):
        path = runs_dir / run / "run.json"
        os.utime(path, (path.stat().st_mtime - 31 * DAY_S,) * 2)
    foreign = runs_dir / "r20200101-000000-abcd"
    foreign.mkdir()
    (foreign / "run.json").write_text("{}")

    preview = (await fed.client.get("/removals")).json()["runs"]
    assert [(each["run"], each["status"]) for each in preview] == [(old, "completed")]
    assert (runs_dir / old).is_dir(), "a preview removes nothing"
    assert (await fed.client.post("/removals")).json()["runs"] == preview
    kept = {info["run"] for info in (await fed.client.get("/runs")).json()["runs"]}
    assert kept == {pinned, young, paused}
    assert {path.name for path in runs_dir.iterdir() if path.is_dir()} == {*kept, foreign.name}
    notes = [json.loads(line) for line in (runs_dir / "removed.ndjson").read_text().splitlines()]
    assert notes == preview
    assert notes[0]["model_sha256"] == (await fed.info(young)).model_sha256

    await fed.control(paused, "resume")
    assert (await fed.finish(paused)).status == "completed"
    assert (await fed.client.post("/removals")).json()["runs"] == []
    assert (await fed.client.delete(f"/runs/{pinned}")).status_code == 204, "its owner may still remove it"


@pytest.mark.layout(n_edges=1, agent_devices=(2,))
async def test_nothing_is_removed_without_a_limit_nor_where_that_cannot_be_noted(fed: Federation) -> None:
    run = (await fed.run(small_spec(num_devices=2, num_edges=1, num_rounds=1))).run
    assert (await fed.client.post("/removals")).json() == {"runs": []}
    (fed.folder / "runs" / "removed.ndjson").mkdir()
    with pytest.raises(SystemRefused, match=r"removed\.ndjson"):
        await Retention(fed.cloud.runs, None, 0).remove()
    assert (await fed.info(run)).status == "completed"
    assert (fed.folder / "runs" / run / "run.json").is_file()


@pytest.mark.layout(n_edges=1, agent_devices=(2,))
@pytest.mark.parametrize("init", ["run", "file"])
async def test_a_run_with_whose_model_an_unfinished_one_begins_is_kept(fed: Federation, init: str) -> None:
    spec: dict[str, Any] = small_spec(num_devices=2, num_edges=1, num_rounds=1)
    source, other = [(await fed.run(spec)).run for _ in range(2)]
    named = {"run": source} if init == "run" else {"file": f"{source}/model.safetensors"}
    begun = await fed.start_and_pause({**spec, "num_rounds": 3, "init": named}, 1)
    retention = Retention(fed.cloud.runs, None, 0)
    assert [each.run for each in (await retention.remove()).runs] == [other]
    await fed.control(begun, "stop")
    assert [each.run for each in (await retention.remove()).runs] == [source, begun]
