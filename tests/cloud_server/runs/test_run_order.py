"""Runs are ordered as they were created, also by a cloud whose clock was set back."""

from __future__ import annotations

import pytest

from cloud_server.runs import manager
from shared.results.run_list import runs_in
from shared.storage import redis_keys
from tests.federation import Federation, small_spec


def set_clock(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    monkeypatch.setattr(manager, "now", lambda: at)


@pytest.mark.whole
async def test_latest_is_the_run_created_last_whatever_the_clock_says(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    set_clock(monkeypatch, "2026-01-05T00:00:00.000+00:00")
    first = await fed.run(small_spec(num_rounds=1))
    set_clock(monkeypatch, "2026-01-04T00:00:00.000+00:00")
    second = await fed.run(small_spec(num_rounds=1))
    assert first.notes == ()
    assert "behind that of an earlier run" in second.notes[0]
    listed = (await fed.client.get("/runs")).json()["runs"]
    assert [run["run"] for run in listed] == [second.run, first.run]
    assert (await fed.client.get("/runs/latest")).json()["run"] == second.run
    assert runs_in(fed.folder / "runs").newest().name == second.run
    await fed.stop("cloud")
    await fed.store.delete_prefix(redis_keys.CLOUD)  # another cloud writes into the same folder
    await fed.start_cloud()
    await fed.until(lambda: fed.n_agents() == 6)
    third = await fed.run(small_spec(num_rounds=1))
    assert third.sequence > second.sequence > first.sequence
    assert runs_in(fed.folder / "runs").newest().name == third.run


async def test_pending_runs_train_in_the_order_in_which_they_were_created(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    submitted = []
    for day in (5, 4, 3):
        set_clock(monkeypatch, f"2026-01-0{day}T00:00:00.000+00:00")
        submitted.append(await fed.submit(small_spec(num_rounds=1)))
    began: list[str] = []
    for run in submitted:
        await fed.finish(run)
        statuses = await fed.events(run, "run.status")
        began += [event.at for event in statuses if event.data["status"] == "starting"]
    assert began == sorted(began)
