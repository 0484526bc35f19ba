"""The execution of runs: further rounds, pause, resume, stop, one run at a time, and interruptions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.runs import executor
from shared.core.versions import versions
from shared.storage import redis_keys
from shared.storage.key_value import StoreUnavailable
from tests.cloud_server.streaming import opened
from tests.federation import Federation, Gate, small_spec
from tests.shared.algorithms.layouts import ran

pytestmark = pytest.mark.layout(agent_devices=(3, 3))


async def ask(fed: Federation, run_id: str, what: str) -> tuple[int, str]:
    """Returns the status code, and the run's status or the error's detail."""
    answer = await fed.client.post(f"/runs/{run_id}/{what}")
    return answer.status_code, answer.json().get("detail") or answer.json()["status"]


async def test_two_rounds_and_two_more_give_the_same_bits_as_four(fed: Federation) -> None:
    four = (await ran(small_spec(num_rounds=4))).info
    two = await fed.run(small_spec(num_rounds=2))
    assert two.model_sha256 != four.model_sha256
    more = await fed.client.post(f"/runs/{two.run}/rounds", json={"num_rounds": 2})
    assert (more.status_code, more.json()["num_rounds"], more.json()["status"]) == (200, 4, "pending")
    end = await fed.finish(two.run)
    assert (end.status, end.rounds) == ("completed", 4)
    assert (end.model_sha256, end.accuracy) == (four.model_sha256, four.accuracy)
    assert (end.bytes_up, end.simulated_s) == (four.bytes_up, four.simulated_s)
    for body in ({"num_rounds": 0}, {"num_rounds": 100_001}, {}, {"num_rounds": 1, "x": 1}):
        assert (await fed.client.post(f"/runs/{two.run}/rounds", json=body)).status_code == 422


async def test_a_run_gets_no_more_rounds_than_a_spec_may_ask_for(fed: Federation) -> None:
    run_id = await fed.start_and_pause(small_spec(num_rounds=2), 1)
    refused = await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 99_999})
    problem = refused.json()
    assert (refused.status_code, problem["field"]) == (422, "num_rounds")
    assert "has 2 rounds, and 99999 more would be too many: the limit is 100000" in problem["detail"]
    assert (await fed.info(run_id)).num_rounds == 2
    most = await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 99_998})
    assert (most.status_code, most.json()["num_rounds"]) == (200, 100_000)


@pytest.mark.whole
async def test_a_run_counts_the_seconds_of_its_training_before_and_after_a_pause_and_none_of_the_pause(
    fed: Federation,
) -> None:
    began = time.monotonic()
    run_id = await fed.start_and_pause(small_spec(num_rounds=2), 1)
    paused = await fed.info(run_id)
    paused_at = time.monotonic()
    await asyncio.sleep(0.3)
    resumed_at = time.monotonic()
    await fed.control(run_id, "resume")
    end = await fed.finish(run_id)
    assert 0 < paused.wall_s <= paused_at - began
    assert 0 < end.wall_s - paused.wall_s <= time.monotonic() - resumed_at


@pytest.mark.whole
async def test_rounds_added_during_the_last_round_are_trained_too(fed: Federation) -> None:
    four = (await ran(small_spec(num_rounds=4))).info
    for visit in (2, 3):  # one of the last round and one of the evaluation after it
        gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=2), closed_at=visit)
        more = await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": 2})
        assert (more.json()["num_rounds"], more.json()["status"]) == (4, "running")
        gate.open.set()
        end = await fed.finish(run_id)
        assert (end.status, end.rounds, end.model_sha256) == ("completed", 4, four.model_sha256)


@pytest.mark.whole
async def test_a_paused_and_resumed_run_ends_with_the_same_bytes(fed: Federation) -> None:
    plain = (await ran(small_spec(num_rounds=3))).info
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=3), closed_at=2)
    assert await ask(fed, run_id, "pause") == (200, "pausing")
    assert await ask(fed, run_id, "pause") == (200, "pausing")
    why = f"run {run_id} is pausing: only a paused, stopped or failed one can be resumed"
    assert await ask(fed, run_id, "resume") == (409, why)
    gate.open.set()
    paused = await fed.until_status(run_id, "paused")
    assert paused.rounds == 2  # the current round was completed
    why = f"run {run_id} is paused: only a pending or running one can be paused"
    assert await ask(fed, run_id, "pause") == (409, why)
    await fed.control(run_id, "resume")
    end = await fed.finish(run_id)
    assert (end.status, end.rounds, end.model_sha256) == ("completed", 3, plain.model_sha256)
    assert end.bytes_up == plain.bytes_up


@pytest.mark.whole
async def test_stop_aborts_the_current_round_at_once_and_resume_repeats_it(fed: Federation) -> None:
    plain = (await ran(small_spec())).info
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
    assert await ask(fed, run_id, "stop") == (200, "stopping")
    stopped = await fed.finish(run_id)  # although the gate still holds the visit
    assert (stopped.status, stopped.rounds) == ("stopped", 1)
    assert not gate.open.is_set()
    assert await ask(fed, run_id, "stop") == (409, f"run {run_id} is stopped: it has ended already")
    assert (await ask(fed, run_id, "pause"))[0] == 409
    gate.open.set()
    assert await ask(fed, run_id, "resume") == (200, "pending")
    end = await fed.finish(run_id)
    assert (end.status, end.rounds, end.model_sha256) == ("completed", 2, plain.model_sha256)
    for what in ("stop", "pause", "resume"):
        assert (await ask(fed, run_id, what))[0] == 409


@pytest.mark.whole
async def test_a_run_stopped_during_its_last_evaluation_completes_with_the_same_scores_when_resumed(
    fed: Federation,
) -> None:
    plain = (await ran(small_spec())).info
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=3)  # two rounds, then the evaluation
    assert await ask(fed, run_id, "stop") == (200, "stopping")
    stopped = await fed.finish(run_id)
    assert (stopped.status, stopped.rounds) == ("stopped", 2)
    await fed.until(lambda: not fed.cloud.runs.training)
    async with opened(fed.apps["cloud"], f"/runs/{run_id}/events") as stream:
        statuses = [event["data"]["status"] async for event in stream.events() if event["kind"] == "run.status"]
    assert statuses.count("stopped") == 1
    gate.open.set()
    assert await ask(fed, run_id, "resume") == (200, "pending")
    end = await fed.finish(run_id)
    assert (end.status, end.rounds) == ("completed", 2)
    assert (end.accuracy, end.model_sha256) == (plain.accuracy, plain.model_sha256)


@pytest.mark.whole
async def test_files_of_earlier_rounds_are_deleted_every_few_rounds_of_a_long_run(
    monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    assert executor.DELETE_FILES_EVERY == 10
    monkeypatch.setattr(executor, "DELETE_FILES_EVERY", 2)
    runs = fed.cloud.runs
    repository, deleted_after = runs.services.repository, []
    delete = repository.delete_unreferenced_files

    async def record() -> list[str]:
        if runs.training[0].status == "running":
            deleted_after.append(runs.training[0].rounds)
        return list(await delete())

    repository.delete_unreferenced_files = record
    # the evaluation after the last round
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=5), closed_at=6)
    assert deleted_after == [2, 4]
    gate.open.set()
    assert (await fed.finish(run_id)).status == "completed"


async def test_a_stop_overrides_a_pause(fed: Federation) -> None:
    _, run_id = await fed.submit_and_hold(small_spec())
    assert await ask(fed, run_id, "pause") == (200, "pausing")
    assert await ask(fed, run_id, "stop") == (200, "stopping")
    assert (await fed.finish(run_id)).status == "stopped"


@pytest.mark.whole
async def test_one_run_trains_while_the_others_wait_and_say_why(fed: Federation) -> None:
    gate, first = await fed.submit_and_hold(small_spec(name="first"))
    second, third, fourth = [await fed.submit(small_spec(name=f"{n}", num_rounds=1)) for n in (2, 3, 4)]
    for run_id in (second, third):
        info = await fed.info(run_id)
        assert (info.status, info.reason) == ("pending", "waiting: another run trains")
    assert await ask(fed, third, "pause") == (200, "paused")
    assert await ask(fed, fourth, "stop") == (200, "stopped")
    assert (await fed.client.get("/topology")).json()["active_run"] == first
    gate.open.set()
    assert (await fed.finish(second)).status == "completed"
    assert (await fed.info(first)).status == "completed"
    assert (await fed.info(third)).status == "paused"
    assert (await fed.info(fourth)).rounds == 0
    await ask(fed, third, "resume")
    assert (await fed.finish(third)).status == "completed"


@pytest.mark.layout(agent_devices=())
async def test_a_run_waiting_for_devices_says_so_and_can_be_paused_and_stopped(fed: Federation) -> None:
    await fed.until(lambda: len(fed.cloud.registry.live_edges()) == 2)
    run_id = await fed.submit(small_spec())
    info = await fed.until_status(run_id, "starting")
    assert (info.status, info.reason) == ("starting", "waiting for devices: 0 of 6 (edges: 2, need 2)")
    assert (await ask(fed, run_id, "pause"))[0] == 200
    await fed.until_status(run_id, "paused")
    await ask(fed, run_id, "resume")
    await fed.until_status(run_id, "starting")
    assert await ask(fed, run_id, "stop") == (200, "stopping")
    assert (await fed.finish(run_id)).rounds == 0


# ---- the store


class Flaky:
    """Makes the store's method `name` fail while `broken` is set."""

    def __init__(self, fed: Federation, name: str, broken: Callable[..., bool]) -> None:
        self.store, self.name, self.whole = fed.store, name, getattr(fed.store, name)
        self.broken, self.n_failed = broken, 0
        setattr(fed.store, name, self._call)

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self.broken(*args):
            self.n_failed += 1
            raise StoreUnavailable("redis at 127.0.0.1:6379 does not answer")
        return await self.whole(*args, **kwargs)


@pytest.mark.whole
async def test_an_unreachable_store_interrupts_a_run_which_then_ends_with_the_same_bytes(fed: Federation) -> None:
    plain = (await ran(small_spec(num_rounds=3))).info
    run_id = ""

    def second_commit(batch: Any) -> bool:
        return flaky.n_failed < 3 and bool(run_id) and f"cloud:run:{run_id}:state" in batch.guards and seen()

    commits: list[int] = []

    def seen() -> bool:
        commits.append(1)
        return len(commits) > 2

    flaky = Flaky(fed, "commit", second_commit)
    run_id = await fed.submit(small_spec(num_rounds=3))
    end = await fed.finish(run_id)
    assert flaky.n_failed == 3
    assert (end.status, end.rounds, end.model_sha256) == ("completed", 3, plain.model_sha256)
    assert end.bytes_up == plain.bytes_up
    statuses = [event.data.get("reason") for event in await fed.events(run_id, "run.status")]
    assert "interrupted: redis at 127.0.0.1:6379 does not answer" in statuses


async def test_the_manager_survives_an_unreachable_store_while_no_run_trains(fed: Federation) -> None:
    flaky = Flaky(fed, "scan", lambda prefix: prefix.startswith("cloud:run-index") and flaky.n_failed < 2)
    fed.cloud.runs.queue.wake()
    await fed.until(lambda: flaky.n_failed == 2)
    assert (await fed.run(small_spec(num_rounds=1))).status == "completed"


async def test_a_missing_state_file_fails_the_run_with_that_reason(fed: Federation) -> None:
    info = await fed.run(small_spec(num_rounds=1))
    for blob in (fed.folder / "cloud" / "blobs").iterdir():
        blob.unlink()
    for path in ("models/global", "rounds/1"):
        answer = await fed.client.get(f"/runs/{info.run}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (500, "state_gone")
        assert "cannot be read: no file" in answer.json()["detail"]
    end = await fed.add_rounds(info.run, 1)
    assert end.status == "failed"
    assert end.reason is not None
    assert end.reason.startswith(f"the stored state of run {info.run} cannot be read: no file")


async def test_an_emptied_store_fails_the_run_with_that_reason(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
    await fed.store.delete_prefix("cloud:")
    gate.open.set()
    await fed.until(lambda: not fed.cloud.runs.training)
    end = await fed.info(run_id)
    assert end.status == "failed"
    assert end.reason is not None
    assert "was its Redis emptied, or does another cloud use it?" in end.reason


# ---- restarts of the cloud


@pytest.mark.matrix(2)
@pytest.mark.parametrize("visit", [2, 4, 1, 3], ids=["round 2", "the evaluation", "round 1", "round 3"])
async def test_a_cloud_restarted_during_a_run_ends_it_with_the_same_bytes(visit: int, fed: Federation) -> None:
    plain = (await ran(small_spec(num_rounds=3))).info
    gate, run_id = await fed.submit_and_hold(small_spec(num_rounds=3), closed_at=visit)
    await fed.stop("cloud")
    gate.open.set()
    await fed.start_cloud()
    end = await fed.finish(run_id)
    assert (end.status, end.rounds) == ("completed", 3)
    assert (end.model_sha256, end.accuracy, end.loss) == (plain.model_sha256, plain.accuracy, plain.loss)
    rounds = (await fed.client.get(f"/runs/{run_id}/rounds")).json()["rounds"]
    assert [row["round_no"] for row in rounds] == [1, 2, 3]
    assert end.bytes_up == plain.bytes_up


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(3, 3), heartbeat_s=0.2)
async def test_a_cloud_that_lost_its_registry_learns_of_agents_from_the_edges(fed: Federation) -> None:
    plain = (await ran(small_spec())).info
    await fed.stop("cloud")
    for prefix in ("cloud:agent", "cloud:edge"):
        await fed.store.delete_prefix(prefix)
    await fed.start_cloud()
    await fed.until(lambda: fed.n_agents() == 2)
    assert (await fed.run(small_spec())).model_sha256 == plain.model_sha256


@pytest.mark.whole
async def test_a_restarted_cloud_assigns_no_seat_to_an_agent_without_a_heartbeat(fed: Federation) -> None:
    """Devices that were removed long ago are still registered; a run that starts at once must not wait for them."""
    plain = (await ran(small_spec())).info
    here = {fed.agent_id(number) for number in range(len(fed.agent_devices))}
    await fed.stop("cloud")
    for number in range(6):
        gone = AgentEntry(
            agent=f"a-0{number}",
            name=f"gone-{number}",
            url="http://127.0.0.1:9",
            devices=9,
            profile="standard",
            versions=versions(),
        )
        await fed.store.put(redis_keys.cloud_agent(gone.agent), gone.model_dump_json().encode())
    await fed.start_cloud()
    end = await fed.run(small_spec(timeouts={"reseat_after_s": 600, "ready_s": 15}))
    assert {row.agent for row in (await fed.seats(end.run)).seats} <= here
    assert (end.status, end.model_sha256) == ("completed", plain.model_sha256)


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(3, 3), heartbeat_s=0.2)
async def test_requests_made_before_a_restart_stay_in_force(fed: Federation) -> None:
    gates, runs = [], []
    for what in ("pause", "stop"):
        gates.append(Gate(fed))
        await fed.until(lambda: fed.n_agents() == 2)
        run_id = await fed.submit(small_spec())
        await gates[-1].reached.wait()
        await fed.restart_cloud()  # there was no request yet: the run continues
        await fed.until(lambda: fed.n_agents() == 2)
        await fed.until_status(run_id, "running")
        assert (await ask(fed, run_id, what))[0] == 200
        await fed.restart_cloud()
        runs.append((await fed.until_status(run_id, "paused", "stopped")).status)
    for gate in gates:
        gate.open.set()
    assert runs == ["paused", "stopped"]


@pytest.mark.matrix(2)
@pytest.mark.parametrize(("algorithm", "has_one"), [("fedavg", True), ("transfer", False)])
async def test_a_run_that_goes_on_has_the_accuracy_of_an_evaluated_round(
    algorithm: str, has_one: bool, fed: Federation
) -> None:
    """Unless its accuracy is to be a mean over clients, which only the end tells."""
    # at most two evaluations wait, so that the first has ended by now
    gate, run_id = await fed.submit_and_hold(small_spec(algorithm=algorithm, num_rounds=5), closed_at=5)
    info = await fed.info(run_id)
    assert (info.status, info.rounds, info.accuracy is not None) == ("running", 4, has_one)
    gate.open.set()
    end = await fed.finish(run_id)
    assert end.status == "completed"
    rounds = [(await fed.round(run_id, number)).evaluation for number in range(1, 5)]
    if has_one:
        assert (info.accuracy, info.loss) in [(row["global"].accuracy, row["global"].loss) for row in rounds if row]
