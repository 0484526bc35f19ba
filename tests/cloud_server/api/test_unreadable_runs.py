"""Runs whose documents this version cannot read are listed with the reason, answered clearly, and deletable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloud_server.dashboard.pages.runs import _unreadable_row
from shared.run_records.runs import UnreadableRun
from shared.storage import redis_keys
from tests.federation import Federation, small_spec

pytestmark = pytest.mark.layout(agent_devices=(3, 3))

BAD = (b'{"run": "r", "a_new_field": 1}', b"\xff\xfe not JSON", None)
"""The documents of runs: of another version, no JSON, and none."""


async def damage(fed: Federation, run_id: str, content: bytes | None) -> None:
    key = redis_keys.cloud_run(run_id)
    await (fed.store.put(key, content) if content is not None else fed.store.delete(key))


async def test_unreadable_runs_are_listed_answered_and_deleted(fed: Federation) -> None:
    kept, *lost = [await fed.run(small_spec(num_rounds=1)) for _ in range(1 + len(BAD))]
    for run, content in zip(lost, BAD, strict=True):
        await damage(fed, run.run, content)
    page = (await fed.client.get("/runs")).json()
    assert [run["run"] for run in page["runs"]] == [kept.run]
    found = {run["run"]: run for run in page["unreadable"]}
    assert found.keys() == {run.run for run in lost}
    reads = [("GET", path) for path in ("", "/rounds", "/seats", "/events")]
    for run in lost:
        assert found[run.run]["created_at"] == run.created_at
        assert run.run in found[run.run]["reason"]
        for method, path in (*reads, ("POST", "/resume"), ("POST", "/pause")):
            answer = await fed.client.request(method, f"/runs/{run.run}{path}")
            assert (answer.status_code, answer.json()["code"]) == (409, "unreadable"), (path, answer.text)
    assert (await fed.client.get("/runs/latest")).json()["run"] == kept.run
    await fed.restart_cloud()  # which they do not keep from starting
    for run in lost:
        assert (await fed.client.delete(f"/runs/{run.run}")).status_code == 204
        assert not [key for key in await fed.store.keys("cloud:run") if run.run in key]
        assert (await fed.client.get(f"/runs/{run.run}")).status_code == 404
    assert (await fed.client.get("/runs")).json()["unreadable"] == []
    assert (await fed.client.get(f"/runs/{kept.run}/models/global")).status_code == 200


async def test_latest_says_if_no_run_can_be_read(fed: Federation) -> None:
    assert (await fed.client.get("/runs/latest")).json()["detail"] == "there are no runs yet"
    info = await fed.run(small_spec(num_rounds=1))
    await damage(fed, info.run, b"{}")
    answer = await fed.client.get("/runs/latest")
    assert (answer.status_code, answer.json()["detail"]) == (404, "none of 1 runs can be read")


@pytest.mark.whole
async def test_other_records_of_another_version_are_no_internal_error_and_no_file_is_deleted(fed: Federation) -> None:
    kept, *lost = [await fed.run(small_spec(num_rounds=1)) for _ in range(5)]
    placed, evaluated, best, told = [run.run for run in lost]
    await fed.store.put(redis_keys.cloud_placement(placed), b"[]")
    await fed.store.put(redis_keys.cloud_evaluation(evaluated, 1), b"[]")
    await fed.store.put(redis_keys.cloud_best(best), b"[]")
    await fed.store.append(redis_keys.cloud_rounds(told), {"of": "another version"})
    for run, path in ((placed, "/seats"), (evaluated, "/rounds"), (best, "/models/best"), (told, "/rounds")):
        answer = await fed.client.get(f"/runs/{run}{path}")
        assert (answer.status_code, answer.json()["code"]) == (409, "unreadable"), answer.text
    for run in (told, best):  # each alone keeps all files, and new runs train
        assert await fed.cloud.repository.delete_unreferenced_files() == []
        assert (await fed.run(small_spec(num_rounds=1))).model_sha256 == kept.model_sha256
        assert (await fed.client.delete(f"/runs/{run}")).status_code == 204
    assert (await fed.client.get(f"/runs/{kept.run}/rounds/1")).status_code == 200
    for run in (placed, evaluated):
        assert (await fed.client.delete(f"/runs/{run}")).status_code == 204


def test_the_dashboard_lists_an_unreadable_run_as_text() -> None:
    row: dict[str, Any] = _unreadable_row(UnreadableRun(run="r1", created_at="2026-01-02T03:04:05Z", reason="broken"))
    assert (row["run"], row["status"], row["created (UTC)"]) == ("r1", "unreadable: broken", "2026-01-02 03:04:05")
    assert json.dumps(row)
