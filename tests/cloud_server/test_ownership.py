"""Of several clouds on one Redis one owns the data; the others stand by and say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_server.app import create_app
from cloud_server.dependencies import Cloud
from cloud_server.ownership import Owner
from cloud_server.settings import CloudSettings
from shared.run_records.runs import RunInfo
from shared.storage import redis_keys
from shared.storage.key_value import Batch, FencedStore, StandingBy, StoreUnavailable
from tests.federation import CLOUD_PORT, Federation, PersistentStore, small_spec
from tests.shared.algorithms.layouts import ran

SECOND_PORT = 9050
LEASE_S = 60.0


def federation(folder: Path) -> Federation:
    return Federation(folder, cloud={"lease_s": LEASE_S})


async def start_second(fed: Federation, state_dir: str) -> Cloud:
    """Starts another cloud on the same Redis; one with the first's state folder is of the same installation."""
    settings = CloudSettings(
        port=SECOND_PORT,
        state_dir=fed.folder / state_dir,
        runs_dir=fed.folder / "second-runs",
        common=fed.common,
        ttl_s=fed.ttl_s,
        lease_s=LEASE_S,
    )
    app = create_app(settings, fed.router, PersistentStore(fed), fed.clock)
    await fed._start("second", SECOND_PORT, app)
    found: Cloud = app.state.cloud
    return found


def first(fed: Federation) -> Cloud:
    found: Cloud = fed.cloud
    return found


async def owner(fed: Federation) -> Owner:
    return Owner.model_validate_json(await fed.store.get(redis_keys.CLOUD_OWNER) or b"")


async def document(fed: Federation, run_id: str) -> bytes:
    return await fed.store.get(redis_keys.cloud_run(run_id)) or b""


@pytest.mark.whole
async def test_another_installation_stands_by_says_so_and_changes_nothing(tmp_path: Path) -> None:
    async with federation(tmp_path / "f") as fed:
        done = await fed.run(small_spec())
        gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
        before = await document(fed, done.run), await document(fed, run_id)
        second = await start_second(fed, "elsewhere")
        url = f"http://127.0.0.1:{SECOND_PORT}"
        for method, path, body in (
            ("POST", "/runs", {"spec": small_spec()}),
            ("POST", f"/runs/{done.run}/rounds", {"num_rounds": 5}),
            ("POST", f"/runs/{run_id}/stop", None),
            ("DELETE", f"/runs/{done.run}", None),
            ("POST", "/heartbeats", {"edge": "edge-1"}),
        ):
            refused = await fed.client.request(method, url + path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (503, "standing_by"), (path, refused.text)
            assert first(fed).ownership.installation in refused.json()["detail"]
        read = await fed.client.get(f"{url}/runs/{done.run}")
        assert read.json()["model_sha256"] == done.model_sha256
        ready = await fed.client.get(f"{url}/readyz")
        assert ready.status_code == 503
        assert any("this cloud stands by" in text for text in ready.json()["missing"])
        assert (await document(fed, done.run), await document(fed, run_id)) == before
        assert (await fed.client.get("/readyz")).status_code == 200
        gate.open.set()
        end = await fed.finish(run_id)
        assert not second.runs.training
    assert (end.status, end.model_sha256) == ("completed", done.model_sha256)


async def test_a_cloud_that_hangs_is_replaced_after_its_lease_and_then_writes_nothing(tmp_path: Path) -> None:
    async with federation(tmp_path / "f") as fed:
        done = await fed.run(small_spec())
        gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
        second, hung = await start_second(fed, "elsewhere"), first(fed)
        await hung.ownership._checking.stop()
        fed.clock.skip(LEASE_S / 2)
        await second.ownership.check()
        assert not second.ownership.held.is_set()
        fed.clock.skip(LEASE_S)
        await second.ownership.check()
        assert (await owner(fed)).token == 2
        info = await second.repository.info(run_id)
        with pytest.raises(StandingBy, match="this cloud stands by"):
            await hung.repository.save(info.replace(status="failed", rounds=3))
        assert RunInfo.model_validate_json(await document(fed, run_id)).rounds == 1
        gate.open.set()  # the round that the hung cloud began
        await fed.until(lambda: not hung.runs.training)
        assert RunInfo.model_validate_json(await document(fed, done.run)) == done
        left = RunInfo.model_validate_json(await document(fed, run_id))  # the second one resumes it and has no nodes
        assert (left.status in ("pending", "starting"), left.rounds) == (True, 1)
        refused = await fed.client.post(f"/runs/{done.run}/rounds", json={"num_rounds": 1})
        assert (refused.status_code, refused.json()["code"]) == (503, "standing_by")


@pytest.mark.whole
@pytest.mark.parametrize("ends", ["is killed", "goes on"])
async def test_the_same_installation_takes_over_at_once(tmp_path: Path, ends: str) -> None:
    async with federation(tmp_path / "f") as fed:
        plain = (await ran(small_spec())).info
        if ends == "goes on":
            second, before = await start_second(fed, "cloud"), first(fed)
            assert second.ownership.held.is_set()
            await before.ownership.check()
            assert not before.ownership.held.is_set()
            await before.ownership.check()  # it does not take the ownership back while the new one is alive
            assert "of this installation" in str(before.ownership.standing_by())
            assert second.ownership.held.is_set()
            await fed.stop("second")
            await before.ownership.check()
            assert before.ownership.held.is_set()
            assert (await owner(fed)).token == 3
            return
        gate, run_id = await fed.submit_and_hold(small_spec(), closed_at=2)
        await first(fed).ownership._checking.stop()  # which would take it again
        first(fed).ownership._mine = None  # gives nothing back, as a killed process
        await fed.stop("cloud")
        assert await fed.store.get(redis_keys.CLOUD_LEASE)
        gate.open.set()
        await fed.start_cloud()
        assert first(fed).ownership.held.is_set()
        end = await fed.finish(run_id)
    assert (end.status, end.model_sha256) == ("completed", plain.model_sha256)


@pytest.mark.whole
async def test_a_cloud_that_is_stopped_gives_the_ownership_back(tmp_path: Path) -> None:
    async with federation(tmp_path / "f") as fed:
        second = await start_second(fed, "elsewhere")
        assert not second.ownership.held.is_set()
        await fed.stop("cloud")
        await second.ownership.check()
        assert second.ownership.held.is_set()
        fed.router.apps[CLOUD_PORT] = fed.apps["second"]  # nodes find it at the old address
        await fed.until(lambda: len(second.registry.live_agents()) == 6)
        created = await fed.client.post("/runs", json={"spec": small_spec()})
        assert created.status_code == 201
        info = await fed.finish(created.json()["run"])
        assert info.status == "completed"
        await start_again(fed)


async def start_again(fed: Federation) -> None:
    """Starts the first cloud for the end of the test."""
    await fed.stop("second")
    await fed.start_cloud()


async def test_a_redis_that_refuses_writes_is_named_by_readiness(tmp_path: Path) -> None:
    async with federation(tmp_path / "f") as fed:
        commit = fed.store.commit

        async def refuse(batch: Batch) -> list[str]:
            raise StoreUnavailable("Redis at here:1 refuses: OOM")

        fed.store.commit = refuse  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await first(fed).ownership.check()
        ready = await fed.client.get("/readyz")
        assert ready.json()["missing"] == ["a Redis that takes writes: Redis at here:1 refuses: OOM"]
        fed.store.commit = commit  # type: ignore[method-assign]
        await first(fed).ownership.check()
        assert (await fed.client.get("/readyz")).status_code == 200


async def test_every_write_of_a_cloud_is_guarded(tmp_path: Path) -> None:
    """The objects of a cloud hold no other store than the fenced one."""
    async with federation(tmp_path / "f") as fed:
        cloud = first(fed)
        stores = (cloud.store, cloud.repository.store, cloud.fleet.store, cloud.registry.stored.store)
        assert {type(store) for store in stores} == {FencedStore}
        batches: list[Batch] = []
        commit = fed.store.commit

        async def noted(batch: Batch) -> list[str]:
            batches.append(batch)
            return await commit(batch)

        async def refused(*args: object) -> None:
            raise AssertionError("a write that is not guarded")

        fed.store.commit = noted  # type: ignore[method-assign]
        for name in ("put", "append", "delete", "delete_prefix"):
            setattr(fed.store, name, refused)
        await cloud.repository.create(RunInfo.model_validate({**json.loads(EXAMPLE)}), None, "digest")
        await cloud.repository.delete("r1")
    assert batches
    assert all(redis_keys.CLOUD_OWNER in batch.guards for batch in batches)


EXAMPLE = json.dumps(
    {
        "run": "r1",
        "name": "small",
        "algorithm": "fedavg",
        "status": "stopped",
        "created_at": "2026-01-02T03:04:05Z",
        "num_rounds": 3,
        "spec": {"algorithm": {"name": "fedavg"}, "num_rounds": 3, "data": {"name": "digits"}},
    }
)
