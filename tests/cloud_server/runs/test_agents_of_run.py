"""A run takes the profiles of its agents, and says of an agent that comes later why it takes no part."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.federation import Federation, Gate, small_spec

SLOW = ("standard", "standard", "phone_low", "phone_low")


@pytest.mark.whole
async def test_slow_agents_are_slow_devices_where_the_spec_names_no_profile(tmp_path: Path) -> None:
    spec = small_spec(num_rounds=1)
    del spec["num_devices"]
    named = {"standard": {"profile": "standard"}, "agent": {"profile": "agent"}}
    async with Federation(tmp_path / "f", agent_devices=(1,) * 4, profiles=SLOW) as fed:
        open_, standard, agent = [
            await fed.run({**spec, "devices": {**devices, "edge_latency_s": 0}})
            for devices in ({}, named["standard"], named["agent"])
        ]
        rows = {info.run: (await fed.round(info.run, 1)).seats for info in (open_, standard, agent)}
    assert Counter(row.profile for row in rows[open_.run]) == {"standard": 2, "phone_low": 2}
    assert Counter(row.profile for row in rows[standard.run]) == {"standard": 4}
    assert [row.simulated_s for row in rows[open_.run]] == [row.simulated_s for row in rows[agent.run]]
    assert open_.simulated_s > standard.simulated_s
    said = {
        info.run: [line for line in info.plan if line.startswith("profiles: ")] for info in (open_, standard, agent)
    }
    of_agents = "profiles: each device has that of its agent: 2 devices phone_low, 2 devices standard"
    assert said[open_.run] == [f"{of_agents}; the spec names none (devices.profile: standard would make all alike)"]
    assert said[agent.run] == [of_agents]
    assert said[standard.run][0].startswith("profiles: those of the spec; what the agents name (2 devices phone_low, ")
    assert [line.partition(": a task")[0] for line in open_.plan if "a task takes" in line] == [
        "expected: 2 devices standard",
        "expected: 2 devices phone_low",
    ]
    assert open_.spec.devices.by_agent  # so that a repetition has the same


@pytest.mark.parametrize(
    ("room", "says"),
    [
        ({}, "agent agent-2 takes no part: all 2 devices of the run have agents; `max_devices` above 2 in the spec"),
        ({"max_devices": 3}, "agent agent-2: the devices of this run have the profiles with which it began; jetson"),
        ({"max_devices": 3, "devices": {"profile": "agent"}}, None),
    ],
    ids=["full", "other profile", "takes part"],
)
async def test_an_agent_that_comes_later_is_told_of(room: dict[str, Any], says: str | None, tmp_path: Path) -> None:
    profiles = ("standard", "standard", "jetson")
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(1, 1), profiles=profiles) as fed:
        gate = Gate(fed)
        run_id = await fed.submit(small_spec(num_devices=2, num_edges=1, num_rounds=3, **room))
        await gate.reached.wait()
        await fed.start_agent(2, devices=1)
        registry = fed.apps["cloud"].state.cloud.registry
        await fed.until(lambda: len(registry.live_agents()) == 3)
        gate.open.set()
        info = await fed.finish(run_id)
        stream = (await fed.client.get(f"/runs/{run_id}/events")).text
    assert [note.startswith(says or "-") for note in info.notes] == [True] * (says is not None)
    assert stream.count("event: run.note") == (says is not None)
