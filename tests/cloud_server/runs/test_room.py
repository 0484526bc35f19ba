"""`max_devices` of a run that goes on is raised: who gets room, what is recorded, and where it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_server.runs.executor import RunExecutor
from tests.federation import Federation, Gate, small_spec

SAMPLED = {"partition": {"name": "sampled", "samples": 20, "alpha": 0.5}, "num_edges": 1, "num_devices": 2}


async def change(fed: Federation, run: str, n: int) -> Any:
    return await fed.client.patch(f"/runs/{run}", json={"max_devices": n})


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1))
async def test_agents_that_come_later_get_the_room_and_what_was_there_stays(
    counter_algorithm: str, fed: Federation
) -> None:
    spec = small_spec(num_rounds=9, algorithm=counter_algorithm, **SAMPLED)
    gate, run = await fed.submit_and_hold(spec, closed_at=2)
    before = (await fed.seats(run)).seats
    await fed.start_agent(2, devices=1)
    await fed.start_agent(3, devices=1)
    await fed.until(lambda: fed.n_agents() == 4)
    answer = await change(fed, run, 3)
    assert (answer.status_code, answer.json()["spec"]["max_devices"]) == (200, 3), answer.text
    after = Gate(fed, closed_at=3)
    gate.open.set()
    await after.reached.wait()  # several rounds with three devices
    await fed.restart_cloud()  # which goes on with what was stored
    after.open.set()
    info = await fed.finish(run)
    assert info.status == "completed", info.reason
    rounds = [await fed.round(run, number) for number in range(1, info.rounds + 1)]
    used = [detail.n_used for detail in rounds]
    assert (used[0], used[-1], sorted(used)) == (2, 3, used)
    assert [row.seat for row in rounds[-1].seats] == [0, 1, 2]
    assert [row for detail in rounds for row in detail.seats if row.fresh_state and row.seat < 2] == []
    seats = (await fed.seats(run)).seats
    for old, new in zip(before, seats, strict=False):
        assert old == new
    (changed,) = await fed.events(run, "run.changed")
    (recorded,) = info.changes
    assert changed.data["reason"] == recorded.differences[0] == "room for 3 devices, before for 2"
    assert changed.data["after_round"] == recorded.after_round == used.count(2) - 1 >= 1
    assert sum("takes no part: all 3 devices" in note for note in info.notes) == 1  # the fourth agent
    assert any("`strata change RUN --max-devices N` makes room" in note for note in info.notes)


@pytest.mark.whole
@pytest.mark.layout(n_edges=1, agent_devices=(1, 1))
async def test_room_is_refused_by_cause_and_loses_nothing(fed: Federation) -> None:
    loose = {"sync": {"devices": "asynchronous"}}
    rows = {"file": {"path": "d.csv", "csv": "up_bps\n1e6\n2e6\n", "rows": "in_order"}}
    cases: list[tuple[dict[str, Any], int, int, str]] = [
        (SAMPLED, 2, 422, "has room for 2, and keeps it"),
        (SAMPLED, 0, 422, "at least 1"),
        (SAMPLED, 10**7, 422, "at most 1000000"),
        ({**SAMPLED, "partition": "iid"}, 3, 409, "`partition: iid` has divided the data among its devices"),
        ({**SAMPLED, "devices": rows}, 3, 422, "d.csv has 2 rows for 3 devices"),
        ({**SAMPLED, "devices": {"edge_latency_s": [[0.1], [0.2]]}}, 3, 422, "has 2 rows instead of 3"),
        ({**SAMPLED, **loose}, 3, 409, "tasks of several rounds are in flight"),
    ]
    for fields, n, status, message in cases:
        gate, run = await fed.submit_and_hold(small_spec(**{"num_rounds": 1, **fields}))
        refused = await change(fed, run, n)
        assert (refused.status_code, refused.json()["field"]) == (status, "max_devices"), refused.text
        assert message in refused.json()["detail"]
        gate.open.set()
        info = await fed.finish(run)
        assert (info.status, info.spec.max_devices, info.changes) == ("completed", 2, ())
        ended = await change(fed, run, 3)
        assert ended.status_code == 409


@pytest.mark.layout(n_edges=1, agent_devices=(1, 1))
async def test_room_may_be_made_while_a_run_reads_what_it_resumes_with(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, answers = await fed.start_and_pause(small_spec(num_rounds=2, **SAMPLED), 1), list[int]()
    reconcile = RunExecutor._reconcile

    async def changed(executor: RunExecutor, experiment: Any) -> Any:
        if not answers:
            answers.append((await change(fed, run, 3)).status_code)
        return await reconcile(executor, experiment)

    monkeypatch.setattr(RunExecutor, "_reconcile", changed)
    assert (await fed.client.post(f"/runs/{run}/resume")).status_code == 200
    info = await fed.finish(run)
    assert (answers, info.status, info.reason, info.spec.max_devices) == ([200], "completed", None, 3)
