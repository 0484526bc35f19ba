"""Runs that train side by side: each gives the bits of one that trains alone, with agents of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.core.errors import BadInput
from shared.run_records.runs import RunInfo
from tests.federation import AGENT_PORT, Federation, Gate, PassOn, small_spec
from tests.shared.algorithms.layouts import ran

TWO = {"max_concurrent_runs": 2}


def spec(**changes: Any) -> dict[str, Any]:
    return small_spec(**{"num_rounds": 3, "algorithm": "scaffold", "timeouts": {"ready_s": 60}, **changes})


def result(info: RunInfo) -> tuple[Any, ...]:
    return info.status, info.model_sha256, info.accuracy, info.bytes_up, info.bytes_down, info.simulated_s, info.final


async def agents_of(fed: Federation, run_id: str) -> set[str | None]:
    return {seat.agent for seat in (await fed.seats(run_id)).seats}


def ports(fed: Federation, agents: set[str | None]) -> set[int]:
    return {AGENT_PORT + number for number in range(len(fed.agent_devices)) if fed.agent_id(number) in agents}


async def alone(*specs: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [result((await ran(one, agent_devices=(3, 3))).info) for one in specs]


async def test_two_runs_train_at_a_time_on_agents_of_their_own_with_the_bits_of_each_alone(tmp_path: Path) -> None:
    specs = [spec(), spec(seed=1)]
    expected = await alone(*specs)
    async with Federation(tmp_path / "both", agent_devices=(3, 3, 3, 3), cloud=TWO) as fed:
        visited, both = set[int | None](), asyncio.Event()

        async def meet(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
            """No visit goes on until each agent has one, which two runs that follow each other never have."""
            if request.url.path == "/visits":
                visited.add(request.url.port)
                if len(visited) == 4:
                    both.set()
                await both.wait()
            return await pass_on()

        fed.router.tamper = meet
        runs = [await fed.submit(one) for one in specs]
        found = [result(await fed.finish(run)) for run in runs]
        hosts = [await agents_of(fed, run) for run in runs]
        topology = (await fed.client.get("/topology")).json()
    assert found == expected
    assert [len(own) for own in hosts] == [2, 2]
    assert not hosts[0] & hosts[1]
    assert (topology["active_run"], topology["active_runs"]) == (None, [])


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(3, 3), cloud=TWO)
async def test_a_third_run_waits_until_one_of_two_has_ended_and_gets_its_agents(fed: Federation) -> None:
    gate = Gate(fed)
    gate.ports = ports(fed, {fed.agent_id(0), fed.agent_id(1)})
    first, second, third = [await fed.submit(spec(seed=seed, num_devices=3)) for seed in range(3)]
    await fed.until(lambda: len(fed.cloud.runs.training) == 2)
    waits = await fed.info(third)
    assert (waits.status, waits.reason) == ("pending", "waiting: another run trains")
    shown = (await fed.client.get("/topology")).json()
    assert shown["active_runs"] == [first, second]
    gate.open.set()
    ended = [await fed.finish(run) for run in (first, second, third)]
    assert [info.status for info in ended] == ["completed"] * 3
    hosts = [await agents_of(fed, run) for run in (first, second, third)]
    assert [len(own) for own in hosts] == [1, 1, 1]
    assert hosts[0] != hosts[1]
    assert hosts[2] <= hosts[0] | hosts[1]


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(3, 3, 3, 3), cloud=TWO)
async def test_pausing_stopping_and_failing_one_run_leaves_the_other_as_it_is(fed: Federation) -> None:
    (expected,) = await alone(spec())
    gate = Gate(fed)
    gate.ports = ports(fed, {fed.agent_id(number) for number in range(4)})
    steady = await fed.submit(spec())
    await gate.reached.wait()
    gate.ports = ports(fed, await agents_of(fed, steady))
    other = await fed.submit(spec(seed=1, num_rounds=6))
    await fed.until(lambda: len(fed.cloud.runs.training) == 2)
    await fed.control(other, "pause")
    await fed.until_status(other, "paused")
    await fed.control(other, "resume")
    await fed.control(other, "stop")
    await fed.until_status(other, "stopped")
    broken = await fed.submit(spec(seed=2, algorithm={"name": "fedper", "params": {"personal_layers": 9}}))
    assert (await fed.finish(broken)).status == "failed"
    assert (await fed.info(steady)).status == "running"
    gate.open.set()
    assert result(await fed.finish(steady)) == expected
    await fed.control(other, "resume")
    assert (await fed.finish(other)).status == "completed"


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(3, 3, 3, 3), cloud=TWO)
async def test_a_restarted_cloud_goes_on_with_all_runs_on_the_agents_that_they_had(
    tmp_path: Path, fed: Federation
) -> None:
    specs = [spec(), spec(seed=1)]
    expected = await alone(*specs)
    runs = [await fed.submit(one) for one in specs]
    while not all([(await fed.info(run)).rounds for run in runs]):  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.01)
    before = [await agents_of(fed, run) for run in runs]
    await fed.restart_cloud()
    found = [result(await fed.finish(run)) for run in runs]
    assert [await agents_of(fed, run) for run in runs] == before
    details = [await fed.round(run, number) for run in runs for number in (1, 2, 3)]
    assert found == expected
    assert not any(row.fresh_state for detail in details for row in detail.seats)


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(3, 3, 3, 3), cloud=TWO)
async def test_a_lost_agent_concerns_its_own_run_only(fed: Federation) -> None:
    gate = Gate(fed)
    gate.ports = ports(fed, {fed.agent_id(number) for number in range(4)})
    runs = [await fed.submit(spec(seed=seed)) for seed in (0, 1)]
    for run in runs:
        await fed.until_status(run, "running")
    hosts = [await agents_of(fed, run) for run in runs]
    lost = next(n for n in range(4) if fed.agent_id(n) in hosts[1])
    await fed.lose(f"agent-{lost}")
    gate.open.set()
    infos = [await fed.finish(run) for run in runs]
    failures = [[f for n in (1, 2, 3) for f in (await fed.round(run, n)).failures] for run in runs]
    assert [info.status for info in infos] == ["completed", "completed"]
    assert failures[0] == []
    assert failures[1]


@pytest.mark.parametrize("value", [0, 65])
def test_a_number_of_runs_out_of_bounds_is_refused(value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud_server.settings import CloudSettings

    monkeypatch.setenv("CLOUD_MAX_CONCURRENT_RUNS", str(value))
    with pytest.raises(BadInput, match=r"CLOUD_MAX_CONCURRENT_RUNS: must be at (least|most)"):
        CloudSettings()


@pytest.mark.layout(agent_devices=(3, 3), cloud=TWO)
async def test_files_that_a_run_has_written_survive_until_its_commit_whoever_cleans_up(fed: Federation) -> None:
    """Two other runs may clean up between the files of a round and the transaction that refers to them."""
    repository = fed.cloud.repository
    commit = repository.commit

    async def after_others(*args: Any) -> str:
        for _ in range(3):
            await repository.delete_unreferenced_files()
        digest: str = await commit(*args)
        return digest

    repository.commit = after_others
    run_id = await fed.submit(spec(num_devices=3))
    info = await fed.finish(run_id)
    assert info.status == "completed", info.reason
    assert [len((await fed.round(run_id, number)).seats) for number in (1, 2, 3)] == [3] * 3
    repository.commit = commit
    assert (await fed.client.delete(f"/runs/{run_id}")).status_code == 204
    assert list((fed.folder / "cloud" / "blobs").iterdir()) == []
