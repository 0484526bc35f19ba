"""A run whose messages are larger than a tier takes is refused before its first round, with sizes and setting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shared.run_records.runs import RunInfo
from tests.federation import Federation, small_spec

M = 4 * (64 * 64 + 64 + 64 * 10 + 10)
"""Bytes of the perceptron of the digits."""
TWO: dict[str, Any] = {"num_devices": 2, "num_edges": 1, "num_rounds": 1, "model": "mlp"}
SCAFFOLD = {"algorithm": "scaffold"}


async def ended(folder: Path, limits: dict[str, int], **changes: Any) -> RunInfo:
    """A run of two devices of one agent at an edge, where each tier takes so many bytes."""
    cloud = {"max_body_bytes": limits["cloud"]} if "cloud" in limits else {}
    async with Federation(folder, n_edges=1, agent_devices=(2,), cloud=cloud) as fed:
        registry = fed.cloud.registry
        if "edge" in limits:
            registry.edges["edge-1"] = registry.edges["edge-1"].replace(max_body_bytes=limits["edge"])
        for name, entry in list(registry.agents.items()) if "agent" in limits else []:
            registry.agents[name] = entry.replace(max_body_bytes=limits["agent"])
        return await fed.run({**small_spec(), **TWO, **changes})


@pytest.mark.parametrize(
    ("limits", "changes", "words"),
    [
        ({"edge": M}, {}, "the request to an edge has 19[0-9]* bytes or more .*, and edge edge-1 takes 19240 at most"),
        (
            {"agent": M},
            {},
            "the request to a device has .*, and agent .* takes 19240 at most: raise AGENT_MAX_BODY_BYTES",
        ),
        ({"edge": 3 * M // 2}, {}, "the answer of an agent to its edge has 38480 bytes .* raise EDGE_MAX_BODY_BYTES"),
        ({"cloud": 3 * M // 2}, {}, "the answer of an edge has 38480 .*, and the cloud takes .* raise CLOUD_MAX_BODY"),
        ({"agent": 3 * M // 2}, SCAFFOLD, "the request to a device has [34][0-9]{4} bytes or more"),
        ({"edge": 3 * M}, SCAFFOLD, "the answer of an agent to its edge has 76960 bytes or more"),
    ],
    ids=["edge, down", "agent", "edge, up", "cloud", "two states down", "two states up"],
)
async def test_too_large_messages_are_refused_before_any_round(
    tmp_path: Path, limits: dict[str, int], changes: dict[str, Any], words: str
) -> None:
    end = await ended(tmp_path / "f", limits, **changes)
    reason = str(end.reason)
    assert (end.status, end.rounds) == ("failed", 0)
    assert f"(the model mlp: {M})" in reason
    assert re.match(f"model.name: {words}", reason), reason


@pytest.mark.whole
@pytest.mark.parametrize(
    ("limits", "changes"),
    [
        ({"agent": M + 8192}, {}),
        ({"cloud": 5 * M, "edge": 5 * M, "agent": 3 * M}, SCAFFOLD),
        ({"edge": 3 * M // 2}, {"compression": {"up": {"name": "int8"}}}),
        ({"cloud": 3 * M // 2}, {"edge_upload": "mean", "edge_rounds": 2}),
        ({"cloud": M}, {"edge_compression": {"up": "int8"}}),
    ],
    ids=["enough", "two states", "compressed", "means", "compressed edges"],
)
async def test_a_limit_that_is_large_enough_refuses_nothing(
    tmp_path: Path, limits: dict[str, int], changes: dict[str, Any]
) -> None:
    end = await ended(tmp_path / "f", limits, **changes)
    assert end.status == "completed", end.reason
