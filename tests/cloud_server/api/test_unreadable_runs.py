"""Runs whose documents this version cannot read are listed with the reason, answered clearly, and deletable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloud_server.dashboard.pages.runs import _unreadable_row
from shared.run_records.runs import UnreadableRun
from shared.storage import redis_keys
from tests.federation import Federation, small_spec

BAD = {"of another version": b'{"run": "r", "a_new_field": 1}', "no JSON": b"\xff\xfe not JSON", "missing": None}


async def damage(fed: Federation, run_id: str, content: bytes | None) -> None:
    key = redis_keys.cloud_run(run_id)
    await (fed.store.put(key, content) if content is not None else fed.store.delete(key))


@pytest.mark.parametrize("bad", BAD)
async def test_an_unreadable_run_is_listed_answered_and_deleted(bad: str, fed: Federation) -> None:
    kept = await fed.run(small_spec(num_rounds=1))
    lost = await fed.run(small_spec(num_rounds=1))
    await damage(fed, lost.run, BAD[bad])
    page = (await fed.client.get("/runs")).json()
    assert [run["run"] for run in page["runs"]] == [kept.run]
    [found] = page["unreadable"]
    assert (found["run"], found["created_at"]) == (lost.run, lost.created_at)
    assert lost.run in found["reason"]
    for method, path in (
        ("GET", ""),
        ("GET", "/rounds"),
        ("GET", "/seats"),
        ("GET", "/events"),
        ("POST", "/resume"),
        ("POST", "/pause"),
    ):
        answer = await fed.client.request(method, f"/runs/{lost.run}{path}")
        assert (answer.status_code, answer.json()["code"]) == (409, "unreadable"), (path, answer.text)
    assert (await fed.client.get("/runs/latest")).json()["run"] == kept.run
    await fed.restart_cloud()  # which it does not keep from starting
    assert (await fed.client.delete(f"/runs/{lost.run}")).status_code == 204
    assert (await fed.client.get("/runs")).json()["unreadable"] == []
    assert not [key for key in await fed.store.keys("cloud:run") if lost.run in key]
    assert (await fed.client.get(f"/runs/{lost.run}")).status_code == 404
    assert (await fed.client.get(f"/runs/{kept.run}/models/global")).status_code == 200


async def test_latest_says_if_no_run_can_be_read(fed: Federation) -> None:
    assert (await fed.client.get("/runs/latest")).json()["detail"] == "there are no runs yet"
    info = await fed.run(small_spec(num_rounds=1))
    await damage(fed, info.run, b"{}")
    answer = await fed.client.get("/runs/latest")
    assert (answer.status_code, answer.json()["detail"]) == (404, "none of 1 runs can be read")


@pytest.mark.parametrize("what", ["a round", "placement", "evaluation", "best"])
async def test_other_records_of_another_version_are_no_internal_error_and_no_file_is_deleted(
    what: str, fed: Federation
) -> None:
    lost, kept = await fed.run(small_spec(num_rounds=1)), await fed.run(small_spec(num_rounds=1))
    repository = fed.cloud.repository
    path = {"a round": "/rounds", "placement": "/seats", "evaluation": "/rounds", "best": "/models/best"}[what]
    if what == "a round":
        await fed.store.append(redis_keys.cloud_rounds(lost.run), {"of": "another version"})
    elif what == "placement":
        await fed.store.put(redis_keys.cloud_placement(lost.run), b"[]")
    elif what == "best":
        await fed.store.put(redis_keys.cloud_best(lost.run), b"[]")
    else:
        await fed.store.put(redis_keys.cloud_evaluation(lost.run, 1), b"[]")
    answer = await fed.client.get(f"/runs/{lost.run}{path}")
    assert (answer.status_code, answer.json()["code"]) == (409, "unreadable"), answer.text
    if what in ("a round", "best"):
        assert await repository.delete_unreferenced_files() == []
        assert (await fed.run(small_spec(num_rounds=1))).model_sha256 == kept.model_sha256
    assert (await fed.client.get(f"/runs/{kept.run}/rounds/1")).status_code == 200
    assert (await fed.client.delete(f"/runs/{lost.run}")).status_code == 204


def test_the_dashboard_lists_an_unreadable_run_as_text() -> None:
    row: dict[str, Any] = _unreadable_row(UnreadableRun(run="r1", created_at="2026-01-02T03:04:05Z", reason="broken"))
    assert (row["run"], row["status"], row["created (UTC)"]) == ("r1", "unreadable: broken", "2026-01-02 03:04:05")
    assert json.dumps(row)
