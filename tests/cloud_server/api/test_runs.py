"""The public API of runs: their creation, rounds, models and files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from cloud_server.runs import manager
from cloud_server.runs.executor import RunExecutor
from shared.core.tensors import digest
from shared.plots.picture import Spans
from shared.plots.timeline import RoundTimeline
from shared.results.folder import read_round
from shared.storage import redis_keys
from tests.federation import Federation, small_spec


def problem(answer: Any) -> tuple[int, str, str | None]:
    """Returns status, code and field of an error, which must be problem+json with a detail."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"]
    return answer.status_code, body["code"], body["field"]


async def test_a_run_is_created_trained_and_readable_by_every_endpoint(fed: Federation) -> None:
    made = await fed.client.post("/runs", json={"spec": small_spec(name="first")})
    assert made.status_code == 201
    assert (made.json()["status"], made.json()["rounds"]) == ("pending", 0)
    info = await fed.finish(made.json()["run"])
    assert (info.status, info.rounds, info.num_rounds, info.name) == ("completed", 2, 2, "first")
    assert info.accuracy == info.final["global"].accuracy
    assert info.accuracy_of == "global model"
    assert info.models == ("global",)

    model = await fed.client.get(f"/runs/{info.run}/models/global")
    assert model.headers["content-type"] == "application/x-safetensors"
    assert digest(load(model.content)) == info.model_sha256
    missing = await fed.client.get(f"/runs/{info.run}/models/personal")
    assert problem(missing)[:2] == (404, "not_found")
    assert "it has global" in missing.json()["detail"]

    rounds = (await fed.client.get(f"/runs/{info.run}/rounds")).json()["rounds"]
    assert [row["round_no"] for row in rounds] == [1, 2]
    assert rounds[1]["model_sha256"] == info.model_sha256
    assert sum(row["bytes_up"] for row in rounds) == info.bytes_up > 0
    assert sum(row["simulated_s"] for row in rounds) == pytest.approx(info.simulated_s)
    second = await fed.round(info.run, 2)
    assert [row.seat for row in second.seats] == [0, 2, 4, 1, 3, 5]
    assert {row.outcome for row in second.seats} == {"used"}
    assert second.evaluation is not None
    assert second.evaluation["global"].n == 100
    for number in (0, 3):
        assert problem(await fed.client.get(f"/runs/{info.run}/rounds/{number}"))[:2] == (404, "not_found")

    seats = (await fed.seats(info.run)).seats
    assert [seat.seat for seat in seats] == list(range(6))
    assert sum(seat.n_train for seat in seats) == 300
    assert [sum(seat.label_counts) for seat in seats] == [seat.n_train for seat in seats]
    assert {seat.agent for seat in seats} == {fed.agent_id(n) for n in range(6)}
    assert {seat.state for seat in seats} == {"taken"}


async def test_the_results_folder_is_complete_when_the_run_is(fed: Federation) -> None:
    info = await fed.run(small_spec())
    files = (await fed.client.get(f"/runs/{info.run}/files")).json()["files"]
    assert {"spec.yaml", "run.json", "manifest.json", "rounds.csv", "devices.ndjson", "links.csv"} <= set(files)
    assert "edges.ndjson" in files
    assert "model.safetensors" in files
    kept = json.loads((await fed.client.get(f"/runs/{info.run}/files/run.json")).content)
    assert (kept["status"], kept["model_sha256"]) == ("completed", info.model_sha256)
    lines = (await fed.client.get(f"/runs/{info.run}/files/rounds.csv")).text.splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [["1", "train"], ["2", "train"], ["2", "evaluate"]]
    for name in ("absent", "..%2f..%2fcloud", "../run.json"):
        assert (await fed.client.get(f"/runs/{info.run}/files/{name}")).status_code == 404


@pytest.mark.whole
async def test_the_results_folder_and_the_dashboard_agree_on_edges_and_links(fed: Federation) -> None:
    info = await fed.run(small_spec())
    folder = fed.folder / "runs" / info.run
    for number in (1, 2):
        detail = await fed.round(info.run, number)
        shown = RoundTimeline(detail).picture("same")
        assert shown is not None
        (panel,) = shown.panels
        assert isinstance(panel, Spans)
        assert [row for row in panel.rows if row.endswith(" and cloud")] == ["edge-1 and cloud", "edge-2 and cloud"]
        assert max(span.end for span in panel.spans) == pytest.approx(detail.simulated_s)
        assert RoundTimeline(read_round(folder, number)).picture("same") == shown
        lines = (folder / "links.csv").read_text().splitlines()
        held = [cells[4:] for line in lines if (cells := line.split(","))[:2] == [str(number), "train"]]
        assert sum(int(up) for _, up in held) == detail.bytes_up
        assert sum(int(down) for down, _ in held) == detail.bytes_down


@pytest.mark.layout(agent_devices=())
async def test_runs_are_listed_newest_first_and_latest_names_the_newest(fed: Federation) -> None:
    assert problem(await fed.client.get("/runs/latest"))[:2] == (404, "not_found")
    made = [await fed.submit(small_spec(name=f"run {n}")) for n in range(3)]
    listed = [run["run"] for run in (await fed.client.get("/runs")).json()["runs"]]
    assert listed == made[::-1]
    short = [run["run"] for run in (await fed.client.get("/runs?limit=2")).json()["runs"]]
    assert short == made[:0:-1]
    assert (await fed.client.get("/runs/latest")).json()["run"] == made[-1]
    for limit in ("0", "1001", "many"):
        assert problem(await fed.client.get(f"/runs?limit={limit}")) == (422, "bad_input", "query.limit")


@pytest.mark.layout(agent_devices=())
async def test_the_same_idempotency_key_creates_one_run(fed: Federation) -> None:
    headers = {"idempotency-key": "once, please"}
    first = await fed.client.post("/runs", json={"spec": small_spec()}, headers=headers)
    # A different spelling of the same spec counts as the same request.
    again = await fed.client.post("/runs", json={"spec": small_spec(algorithm="fedavg")}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["run"] == again.json()["run"]
    other = await fed.client.post("/runs", json={"spec": small_spec(seed=1)}, headers=headers)
    assert problem(other) == (409, "conflict", "Idempotency-Key")
    assert len((await fed.client.get("/runs")).json()["runs"]) == 1
    long = await fed.client.post("/runs", json={"spec": small_spec()}, headers={"idempotency-key": "x" * 201})
    assert problem(long)[:2] == (422, "bad_input")


@pytest.mark.layout(agent_devices=())
async def test_many_requests_at_once_with_one_key_create_one_run_and_a_stop_that_was_accepted_holds(
    fed: Federation,
) -> None:
    body, headers = {"spec": small_spec()}, {"idempotency-key": "impatient"}
    answers = await asyncio.gather(*(fed.client.post("/runs", json=body, headers=headers) for _ in range(12)))
    assert {answer.status_code for answer in answers} == {201}
    (run_id,) = {answer.json()["run"] for answer in answers}
    ways = (fed.client.delete(f"/runs/{run_id}"), fed.client.post(f"/runs/{run_id}/stop"))
    assert [answer.status_code for answer in await asyncio.gather(*ways)] == [409, 200]
    assert (await fed.finish(run_id)).status == "stopped"


@pytest.mark.layout(agent_devices=())
async def test_the_idempotency_key_of_a_deleted_run_can_be_used_again(fed: Federation) -> None:
    async def made(**changes: Any) -> str:
        body = {"spec": small_spec(**changes)}
        answer = await fed.client.post("/runs", json=body, headers={"idempotency-key": "again"})
        assert answer.status_code == 201
        return str(answer.json()["run"])

    gone = await made()
    await fed.client.post(f"/runs/{gone}/stop")
    await fed.finish(gone)
    assert (await fed.client.delete(f"/runs/{gone}")).status_code == 204
    fresh = await made(seed=1)  # nor is the body compared with the earlier one
    assert fresh != gone
    assert await made(seed=1) == fresh
    assert [run["run"] for run in (await fed.client.get("/runs")).json()["runs"]] == [fresh]


@pytest.mark.parametrize(
    ("changes", "code", "field", "message"),
    [
        ({"num_roundz": 3}, "bad_input", "num_roundz", "did you mean 'num_rounds'?"),
        ({"num_rounds": 0}, "bad_input", "num_rounds", "at least 1"),
        ({"lr": "fast"}, "bad_input", "lr", "number"),
        ({"data": {"name": "digits", "n_trian": 3}}, "bad_input", "data.n_trian", "unknown field"),
        ({"partition": {"name": "dirichlet", "alpha": -1}}, "bad_input", "partition.alpha", "at least"),
        ({"algorithm": "fedavgg"}, "unknown_name", "algorithm.name", "known: bofl, "),
        ({"algorithm": {"name": "fedprox", "params": {"nu": 1}}}, "bad_input", "algorithm.params.nu", "mu"),
        ({"model": "transformer"}, "unknown_name", "model.name", "cnn_mnist"),
        ({"data": "cats"}, "unknown_name", "data.name", "digits"),
        ({"min_devices": 7}, "bad_input", "min_devices", "min_devices 7 is above num_devices 6"),
    ],
)
@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_wrong_spec_is_refused_with_its_field(
    changes: dict[str, Any], code: str, field: str, message: str, fed: Federation
) -> None:
    refused = await fed.client.post("/runs", json={"spec": small_spec(**changes)})
    assert problem(refused) == (422, code, field)
    assert message in refused.json()["detail"]


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {}, 422, "bad_input"),
        (b'{"spec": []}', {}, 422, "bad_input"),
        (b"{}", {}, 422, "bad_input"),
        (b'{"spec": {}, "more": 1}', {}, 422, "bad_input"),
        (b'{"spec": {"lr": NaN}}', {}, 422, "bad_input"),
        (b'{"spec": {"name": "\\ud800"}}', {}, 422, "bad_input"),
        (b'{"spec": {"\\ud800": 1}}', {}, 422, "bad_input"),
        (b"[" * 100_000, {}, 400, "http"),
        (b'{"spec": "' + b"x" * 2**20 + b'"}', {}, 413, "too_large"),
        (b"{}", {"transfer-encoding": "chunked"}, 400, "wire"),
        (b"", {"content-length": "9" * 5000}, 413, "too_large"),
    ],
    ids=[
        "no JSON", "a list", "empty", "more", "NaN", "a lone surrogate", "a lone surrogate as key", "deep", "long",
        "of unknown length", "of absurd length",
    ],
)  # fmt: skip
@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_body_that_is_no_spec_is_refused(
    content: bytes, headers: dict[str, str], status: int, code: str, fed: Federation
) -> None:
    headers = {"content-type": "application/json", **headers}
    refused = await fed.client.post("/runs", content=content, headers=headers)
    assert problem(refused)[:2] == (status, code)
    assert (await fed.client.get("/runs")).json()["runs"] == []


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_unknown_resources_are_not_found(fed: Federation) -> None:
    for path in ("", "/rounds", "/rounds/1", "/seats", "/events", "/models/global", "/files", "/files/x"):
        assert problem(await fed.client.get(f"/runs/r1{path}"))[:2] == (404, "not_found"), path
    for path in ("/pause", "/resume", "/stop"):
        assert problem(await fed.client.post(f"/runs/r1{path}"))[:2] == (404, "not_found"), path
    assert problem(await fed.client.post("/runs/r1/rounds", json={"num_rounds": 1}))[:2] == (404, "not_found")
    assert problem(await fed.client.get("/agents/nobody"))[:2] == (404, "not_found")
    assert problem(await fed.client.get("/nowhere"))[:2] == (404, "not_found")
    assert problem(await fed.client.delete("/runs"))[:2] == (405, "method_not_allowed")


@pytest.mark.layout(agent_devices=())
async def test_requests_that_need_a_started_run_are_conflicts_before_it(fed: Federation) -> None:
    run_id = await fed.submit(small_spec())
    for path in ("/seats", "/models/global"):
        refused = await fed.client.get(f"/runs/{run_id}{path}")
        assert problem(refused)[:2] == (409, "conflict")
        assert "has not started yet" in refused.json()["detail"]
    assert (await fed.client.get(f"/runs/{run_id}/rounds")).json() == {"rounds": []}
    assert (await fed.client.get(f"/runs/{run_id}/files")).json() == {"files": []}


@pytest.mark.whole
@pytest.mark.layout(heartbeat_s=0.2)
async def test_deleting_an_ended_run_removes_it_from_every_tier_but_keeps_its_folder(
    counter_algorithm: str, fed: Federation
) -> None:
    kept = await fed.run(small_spec(name="kept", algorithm=counter_algorithm))
    gone = await fed.run(small_spec(name="gone", algorithm=counter_algorithm))
    folders = [fed.folder / f"agent-{number}" / "seats" for number in range(6)]
    assert all(any(gone.run in str(path) for path in folder.rglob("*")) for folder in folders)
    assert (await fed.client.delete(f"/runs/{gone.run}")).status_code == 204
    assert problem(await fed.client.get(f"/runs/{gone.run}"))[:2] == (404, "not_found")
    assert [run["run"] for run in (await fed.client.get("/runs")).json()["runs"]] == [kept.run]
    await fed.until(lambda: not any(gone.run in path for folder in folders for path in paths_in(folder)))
    left = [key for key in await fed.store.keys("") if gone.run in key]
    assert left == [redis_keys.cloud_deleted(gone.run)]  # is deleted after all tiers have been informed
    assert (fed.folder / "runs" / gone.run / "run.json").exists()
    model = await fed.client.get(f"/runs/{kept.run}/models/global")
    assert digest(load(model.content)) == kept.model_sha256


def paths_in(folder: Path) -> Iterator[str]:
    """Returns all paths in a folder that may be being removed: `rglob` fails on paths that disappear."""
    for place, folders, files in os.walk(folder):
        yield from (f"{place}/{name}" for name in folders + files)


@pytest.mark.parametrize(("limit_s", "status"), [(60.0, 204), (0.0, 409)])
async def test_the_deletion_of_a_run_that_has_just_ended_waits_until_nothing_is_done_for_it(
    limit_s: float, status: int, monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    may_end, end = asyncio.Event(), RunExecutor.end

    async def end_later(self: RunExecutor, *args: Any) -> None:
        await end(self, *args)
        await may_end.wait()

    monkeypatch.setattr(RunExecutor, "end", end_later)
    monkeypatch.setattr(manager, "FINISH_S", limit_s)
    run = await fed.submit(small_spec(num_rounds=1000))
    await fed.until_status(run, "running")
    await fed.control(run, "stop")
    assert (await fed.finish(run)).status == "stopped"
    deletion = asyncio.create_task(fed.client.delete(f"/runs/{run}"))
    if status == 204:
        assert (await fed.client.get(f"/runs/{run}")).status_code == 200  # it is there meanwhile
        assert not deletion.done()
        may_end.set()
    assert (await deletion).status_code == status
    assert (await fed.client.get(f"/runs/{run}")).status_code == (404 if status == 204 else 200)
    may_end.set()


async def test_a_run_that_has_not_ended_cannot_be_deleted(fed: Federation) -> None:
    run = await fed.submit(small_spec(num_rounds=1000))
    assert problem(await fed.client.delete(f"/runs/{run}"))[:2] == (409, "conflict")
    await fed.client.post(f"/runs/{run}/stop")
    assert (await fed.finish(run)).status == "stopped"
