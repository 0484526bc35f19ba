"""The fleet's backend of local processes, with a fake topology that starts none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.core.errors import BadInput
from shared.runtime import memory
from strata.fleet.processes import Processes
from strata.launcher.topology import Topology


def process(private_bytes: int, returncode: int | None = None) -> Any:
    return SimpleNamespace(private_bytes=private_bytes, returncode=returncode)


def backend(**processes: Any) -> Processes:
    """Returns a backend with agents of 5 devices each."""
    found = {name.replace("_", "-"): process for name, process in processes.items()}
    agents = dict.fromkeys(found, 5)
    topology = SimpleNamespace(processes=found, devices_per_agent=list(agents.values()), agents=lambda: agents)
    return Processes(cast(Topology, topology))


def test_memory_must_suffice_for_starting_and_recently_started_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000_000)
    settled, ended = process(400_000_000), process(0, returncode=1)
    backend(agent_1=settled, agent_2=ended).check(25)
    with pytest.raises(BadInput, match=r"26 processes need at least 1\.0 GB, 1\.0 GB are free"):
        backend(agent_1=settled, agent_2=ended).check(26)
    begun = {f"agent_{number}": process(10_000_000) for number in (1, 2)}  # of 40 MB each
    backend(**begun).check(23)
    with pytest.raises(BadInput, match=r"24 processes need at least 1\.0 GB, 0\.9 GB are free"):
        backend(**begun).check(24)
