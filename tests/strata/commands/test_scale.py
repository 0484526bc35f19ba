"""`strata scale` with a fake cloud whose fleet is scripted by the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from shared.core.errors import NotReady
from shared.service.api.nodes import FleetInfo, TopologyInfo, WantedTopology
from shared.service.problems import problem_of
from tests.strata.conftest import Strata
from tests.strata.fake_cloud import served


class FakeFleet:
    """Gives its answers to requests one after another; the last one is repeated."""

    def __init__(self) -> None:
        self.wanted: Any = {}
        self.wanted_edges: int | None = None
        self.steps: list[dict[str, Any]] = [{}]
        self.put: list[Any] = []
        self.app = FastAPI()
        self.app.get("/topology")(self.get)
        self.app.put("/topology")(self.want)

    async def get(self) -> Any:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        fleet = FleetInfo(
            fleet="f",
            since_s=9,
            last_seen_s=0,
            services={"device": 1},
            wanted=step.get("heard", self.wanted),
            wanted_edges=self.wanted_edges,
            running=step.get("running", step.get("present", {})),
            running_edges=step.get("edges"),
            leaving=step.get("leaving", ()),
            error=step.get("error"),
        )
        info = TopologyInfo(
            wanted=step.get("wanted", self.wanted),
            wanted_edges=self.wanted_edges,
            present=step.get("present", {}),
            present_edges=step.get("edges"),
            n_devices=sum(step.get("present", {}).values()),
            n_agents=1,
            fleet=None if step.get("silent") else fleet,
            edges=(),
            agents=(),
            notes=step.get("notes", ()),
        )
        return info.model_dump(mode="json")

    async def want(self, body: WantedTopology) -> Any:
        self.put.append(body.devices if body.edges is None else (body.devices, body.edges))
        self.wanted_edges = body.edges
        if body.devices == 13:
            return problem_of(NotReady("thirteen brings bad luck", field="devices"))
        self.wanted = {"device": body.devices} if isinstance(body.devices, int) else body.devices or {}
        return await self.get()


@pytest.fixture
def fleet() -> FakeFleet:
    return FakeFleet()


@pytest.fixture
def cloud_url(fleet: FakeFleet) -> Iterator[str]:
    with served(fleet.app) as url:
        yield url


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.commands.topology._LOOK_S", 0.01)


def test_scale_sets_the_number_and_reports_it_without_waiting(strata: Strata, cloud_url: str, fleet: FakeFleet) -> None:
    fleet.steps = [{"present": {"device": 4}, "notes": ("run r has 4 devices",)}]
    result = strata("scale", "12", "--url", cloud_url)
    assert (result.code, result.out, fleet.put) == (0, "device: 4 of 12\nnote: run r has 4 devices\n", [12])
    result = strata("scale", "device=3", "device_slow=2", "--url", cloud_url, "--format", "json")
    assert fleet.put[1] == {"device": 3, "device_slow": 2}
    assert json.loads(result.out) == {
        "wanted": {"device": 3, "device_slow": 2},
        "present": {"device": 4},
        "n_devices": 4,
        "notes": ["run r has 4 devices"],
    }


def test_edges_are_scaled_by_their_own_number_beside_the_devices(
    strata: Strata, cloud_url: str, fleet: FakeFleet
) -> None:
    fleet.steps = [{"edges": 2}, {"edges": 2}, {"edges": 9}, {"edges": 10}]
    result = strata("scale", "edge=10", "--wait", "--url", cloud_url, "--format", "json")
    assert (result.code, fleet.put) == (0, [(None, 10)])
    assert result.err.splitlines() == ["edge: 2 of 10", "edge: 9 of 10", "edge: 10 of 10"]
    assert json.loads(result.out) == {"wanted": {"edge": 10}, "present": {"edge": 10}, "n_devices": 0, "notes": []}
    fleet.steps = [{"present": {"device": 3}, "edges": 10}]
    result = strata("scale", "edge=10", "device=5", "--url", cloud_url)
    assert (result.out, fleet.put[1]) == ("device: 3 of 5, edge: 10 of 10\n", ({"device": 5}, 10))


def test_waiting_reports_each_step_once_and_ends_at_the_number(
    strata: Strata, cloud_url: str, fleet: FakeFleet
) -> None:
    four, three = {"present": {"device": 4}}, {"present": {"device": 3}}
    ends = {**three, "running": {"device": 4}, "leaving": ("x",)}
    fleet.steps = [four, four, {**four, "leaving": ("x",)}, ends, ends, three]
    result = strata("scale", "3", "--wait", "--url", cloud_url)
    assert (result.code, result.out) == (0, "device: 3 of 3\n")
    assert result.err.splitlines() == [
        "device: 4 of 3",
        "device: 4 of 3; leaving once not needed: x",
        "device: 3 of 3; leaving once not needed: x",
        "device: 3 of 3",
    ]


@pytest.mark.parametrize(
    ("step", "limit_s", "message"),
    [
        ({"error": "no such image"}, 60, "device: 0 of 5: no such image"),
        ({"silent": True}, 60, "the fleet is no longer connected"),
        ({"wanted": {"device": 9}}, 60, "another number has been requested meanwhile: device: 0 of 9"),
        ({}, 1, "after 1 s device: 0 of 5"),
    ],
    ids=["an error", "no fleet", "another wish", "too late"],
)
def test_waiting_ends_with_the_reason_of_a_failure(
    strata: Strata, cloud_url: str, fleet: FakeFleet, step: dict[str, Any], limit_s: int, message: str
) -> None:
    stale = {"error": "of an earlier number", "heard": {"device": 4}}
    fleet.steps = [stale, stale, step]
    result = strata("scale", "5", "--wait", "--limit-s", str(limit_s), "--url", cloud_url)
    assert result.code == 1
    assert message in result.err
    assert "of an earlier number" not in result.err


def test_a_refusal_exits_with_one_and_a_usage_error_with_two(strata: Strata, cloud_url: str, fleet: FakeFleet) -> None:
    refused = strata("scale", "13", "--url", cloud_url)
    assert (refused.code, "thirteen brings bad luck" in refused.err) == (1, True)
    for words in (["many"], ["3", "4"], ["device=x"], ["=3"], ["-3"]):
        assert strata("scale", *words, "--url", cloud_url).code == 2, words
    for plural, meant in (("edges=4", "edge=4"), ("devices=4", "device=4")):
        assert f"write {meant}" in strata("scale", plural, "--url", cloud_url).err
    assert fleet.put == [13]
