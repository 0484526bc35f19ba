"""`POST /plans`: what a run would be with the agents that are there, which is what it then is."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from cloud_server.runs import planner
from shared.core.errors import TooMany
from shared.spec.experiment import ExperimentSpec
from tests.federation import Federation, small_spec


async def plan(fed: Federation, spec: dict[str, Any]) -> Any:
    return await fed.client.post("/plans", json={"spec": spec})


@pytest.mark.layout(n_edges=2, agent_devices=(1, 1), profiles=("standard", "phone_low"))
async def test_the_plan_is_that_of_the_run_which_is_then_started(fed: Federation) -> None:
    spec = small_spec(num_devices=2, edge_link={"down_bps": 1.001e9})
    answer = await plan(fed, spec)
    found = answer.json()
    assert answer.status_code == 200, answer.text
    assert [each["name"] for each in found["devices"]] == ["standard", "phone_low"]
    assert found["round_s"] > found["devices"][1]["task_s"] > found["devices"][0]["task_s"]
    (idle,) = found["without_effect"]
    assert idle.startswith("without effect: edge_link.down_bps changes a round by ")
    assert found["lines"][-1] == idle
    assert (await fed.client.get("/runs")).json()["runs"] == []
    assert list((await fed.run(spec)).plan) == found["lines"]


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_without_agents_the_plan_is_of_the_devices_that_the_spec_names(fed: Federation) -> None:
    found = (await plan(fed, small_spec())).json()
    assert [each["n"] for each in found["devices"]] == [6]
    wrong = await plan(fed, small_spec(lr=-1))
    assert (wrong.status_code, wrong.json()["field"]) == (422, "lr")
    missing = await plan(fed, small_spec(data={"name": "nowhere"}))
    assert (missing.status_code, missing.json()["field"]) == (422, "data.name")


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_so_many_plans_are_made_at_a_time(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MOST", 0)
    refused = await plan(fed, small_spec())
    assert (refused.status_code, refused.json()["detail"]) == (429, "0 plans are being made, the limit is 0")


@pytest.mark.layout(n_edges=0, agent_devices=())
async def test_a_user_keeps_nobody_else_from_planning(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    found, released, asked = fed.cloud.runs.planner, asyncio.Event(), list[object]()
    plain = found._made

    async def slow(asked_for: ExperimentSpec) -> Any:
        asked.append(asked_for)
        await released.wait()
        return await plain(asked_for)

    monkeypatch.setattr(found, "_made", slow)
    users = ["alice"] * planner.MOST_OF_USER + ["bob", None]
    plans = [asyncio.create_task(found.plan(small_spec(), user)) for user in users]
    await fed.until(lambda: len(asked) == len(users))
    with pytest.raises(TooMany, match="2 plans of alice are being made, the limit of a user is 2"):
        await found.plan(small_spec(), "alice")
    released.set()
    assert len({each.lines for each in await asyncio.gather(*plans)}) == 1
    assert (await found.plan(small_spec(), "alice")).lines == plans[0].result().lines
    assert not found._n_by_user


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_a_plan_reads_the_registry_where_it_changes(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread would read the nodes while one registers."""
    registry, readers = fed.cloud.registry, list[threading.Thread]()
    open_edges = registry.open_edges

    def noted() -> list[str]:
        readers.append(threading.current_thread())
        return list(open_edges())

    monkeypatch.setattr(registry, "open_edges", noted)
    assert (await plan(fed, small_spec(num_devices=1, num_edges=1))).status_code == 200
    assert {*readers} == {threading.current_thread()}
