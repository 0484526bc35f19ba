"""Plug-ins through the three tiers: a package that brings all kinds, and nodes that lack it or have another version."""

from __future__ import annotations

from pathlib import Path

import pytest

import device_agent.app
import edge_server.app
from shared.core.plugins import digest_of, digests
from tests.federation import Federation, small_spec
from tests.user_packages import Write
from tests.waits import HANG_S

PACKAGE = '''
"""A package of all kinds."""
import numpy as np
from pydantic import Field
from torch import nn

from strata.plugins import (
    Algorithm, DataSource, ModelFactory, Partitioner, Record, SelectionPolicy,
)


class Size(Record):
    n: int = Field(default=8, ge=1)


def arrays(params):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40 * params.n, 3)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    cut = 30 * params.n
    return {"train_x": x[:cut], "train_y": y[:cut], "test_x": x[cut:], "test_y": y[cut:]}


def build(sample, target, params):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, params.n), nn.ReLU(), nn.Linear(params.n, target.n_outputs))


def every_nth(task, params):
    return [np.arange(client, len(task.labels), task.n_clients) for client in range(task.n_clients)]


def first(task, params):
    return [part[: params.n] for part in every_nth(task, params)]


def lowest(ctx, seats, view, params):
    return np.sort([seat.number for seat in seats])[: params.n]


NTH = Partitioner(name="nth", description="Every n-th sample.", assign=every_nth)
FIRST = Partitioner(name="first", description="The first of them.", params=Size, assign=first)
LOWEST = SelectionPolicy(name="lowest", params=Size, choose=lowest)
SIGNS = DataSource(name="signs", params=Size, arrays=arrays)
NARROW = ModelFactory(name="narrow", params=Size, build=build)
PLAIN = Algorithm(name="plain", paper="none")
'''
SPEC = small_spec(
    data={"name": "signs", "params": {"n": 6}},
    model={"name": "narrow", "params": {"n": 5}},
    algorithm="plain",
    partition={"name": "first", "n": 25},
    select="lowest",
    select_params={"n": 2},
)


@pytest.fixture
def package(user_package: Write) -> str:
    """The name of the package, which STRATA_PLUGINS names."""
    return user_package(PACKAGE)


async def test_a_run_uses_values_of_all_kinds(package: str, fed: Federation) -> None:
    info = await fed.run(SPEC)
    detail = await fed.round(info.run, 1)
    seats = await fed.seats(info.run)
    assert info.status == "completed", info.reason
    assert info.accuracy is not None
    assert len(detail.seats) == 4  # two of three seats at each of two edges
    assert [seat.n_train for seat in seats.seats] == [25] * 6
    assert [visit.n_samples for visit in detail.seats] == [25] * 4  # the parameters reach edges and agents


@pytest.mark.layout(n_edges=1, agent_devices=(6,))
async def test_wrong_parameters_are_refused_by_their_field(package: str, fed: Federation) -> None:
    wrong: dict[str, dict[str, object]] = {
        "data.params.n": {"data": {"name": "signs", "params": {"n": 0}}},
        "model.params.m": {"model": {"name": "narrow", "params": {"m": 1}}},
        "partition": {"partition": {"name": "nth", "alpha": 1}},
        "select_params.n": {"select_params": {"n": "all"}},
        "data.name": {"data": "sings"},
    }
    for field, spec in wrong.items():
        answer = await fed.client.post("/runs", json={"spec": {**SPEC, **spec}})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.json()


async def test_a_node_without_the_package_refuses_the_run_before_it_starts(
    package: str, monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    await fed.stop("agent-5")
    await fed.stop("edge-1")
    monkeypatch.setattr(device_agent.app, "digests", dict)
    monkeypatch.setattr(edge_server.app, "digests", lambda: {package: "0" * 64})
    await fed.start_edge(1)
    await fed.start_agent(5)
    registry = fed.cloud.registry
    await fed.until(lambda: registry.agents[fed.agent_id(5)].plugins == {} and "edge-2" in registry.live_edges())
    await fed.until(lambda: registry.edges["edge-2"].plugins == {package: "0" * 64})
    answer = await fed.client.post("/runs", json={"spec": SPEC})
    assert answer.status_code == 409
    detail = answer.json()["detail"]
    assert f"edge edge-2: its plug-in {package} is {'0' * 12}, the cloud has {digests()[package][:12]}" in detail
    assert f"agent agent-5: it lacks the plug-in {package}" in detail
    assert (await fed.run(small_spec())).status == "completed"  # which uses no plug-in


@pytest.mark.whole
@pytest.mark.layout(agent_devices=(1,) * 5)
async def test_a_node_that_comes_before_the_start_fails_the_run_by_name(
    package: str, monkeypatch: pytest.MonkeyPatch, fed: Federation
) -> None:
    run_id = await fed.submit({**SPEC, "num_devices": 6, "min_devices": 6, "timeouts": {"ready_s": 2 * HANG_S}})
    with monkeypatch.context() as patch:
        patch.setattr(device_agent.app, "digests", dict)
        await fed.start_agent(5, devices=1)
    await fed.until(lambda: fed.agent_id(5) in fed.cloud.registry.agents)
    await fed.start_agent(6, devices=1)  # the run can start without the one that lacks it
    info = await fed.until_status(run_id, "failed", "completed")
    assert info.status == "failed"
    assert "it lacks the plug-in" in str(info.reason)


@pytest.mark.whole
@pytest.mark.layout(n_edges=1, agent_devices=(6,))
async def test_a_run_does_not_go_on_unasked_with_other_code_of_a_plug_in(
    tmp_path: Path, package: str, fed: Federation
) -> None:
    """All services are restarted on the same new code, so that no node differs from the cloud."""
    began = digests()[package]

    def edit() -> None:
        (tmp_path / package / "__init__.py").write_text(f"{PACKAGE}\n# edited\n", encoding="utf-8")
        digest_of.cache_clear()  # as in new processes

    run_id = await fed.start_and_pause({**SPEC, "num_edges": 1}, 1)
    await fed.restart(edit)
    differs = f"plug-in {package} (sha256): {began[:12]} then, {digests()[package][:12]} now"
    answer = await fed.client.post(f"/runs/{run_id}/resume")
    assert (answer.status_code, answer.json()["code"]) == (409, "provenance_changed"), answer.text
    assert differs in answer.json()["detail"]
    answer = await fed.client.post(f"/runs/{run_id}/resume", params={"accept_changes": True})
    assert answer.status_code == 200, answer.text
    end = await fed.finish(run_id)
    assert end.status == "completed"
    assert [change.differences for change in end.changes] == [(differs,)]
