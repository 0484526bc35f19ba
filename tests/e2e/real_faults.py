"""What the tests of real faults share: specs slow enough to be hit, a sound record, the undisturbed run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from tests.soak.records import faults_in, miscounts, reasons_of, undisturbed
from tests.soak.world import World

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "n_train": 400, "n_test": 100},
    "num_edges": 2,
    "num_devices": 4,
    "num_rounds": 3,
    "timeouts": {"visit_s": 20, "ready_s": 60, "reseat_after_s": 60},
}
TRAINS = {**SMALL, "local_epochs": 80, "batch_size": 8}
"""FedAvg; a visit takes about half a second of computing, or much less on a quick machine."""
HELD = {**SMALL, "algorithm": "probe_gate"}
"""FedAvg whose visits wait where the world's gate is closed: for tests that strike in the middle of a visit."""


def counts(pause_s: float, **changes: Any) -> dict[str, Any]:
    """The probe with a counter on each seat; a visit takes so many seconds and computes nothing."""
    return {**SMALL, "algorithm": {"name": "probe_counter", "params": {"pause_s": pause_s}}, **changes}


def timeouts(**changes: float) -> dict[str, Any]:
    """The small spec's timeouts with changes."""
    return {"timeouts": SMALL["timeouts"] | changes}


def ended_well(world: World, run: str, limit_s: float = 150.0) -> tuple[RunInfo, list[RoundDetail], list[Event]]:
    """A run that completes, with its record, which must be sound, and its events."""
    info = world.finish(run, limit_s)
    assert info.status == "completed", info.reason
    details, events = world.details(info), world.events(run)
    assert faults_in(info, details, events) == []
    if info.algorithm == "probe_counter":
        assert miscounts(details) == []
    return info, details, events


def assert_same_bits(calm: World, info: RunInfo, details: Sequence[RoundDetail]) -> None:
    """The undisturbed run that leaves out what was lost, and nothing else, ends with the same bits."""
    other = calm.complete(undisturbed(info, details))
    hashes = [detail.model_sha256 for detail in calm.client.rounds(other.run).rounds]
    assert [detail.model_sha256 for detail in details] == hashes
    assert info.model_sha256 == other.model_sha256


def lost(details: Sequence[RoundDetail]) -> dict[str, int]:
    """How many contributions were lost for each reason."""
    return dict(reasons_of(details))


def of_kind(events: Sequence[Event], *kinds: str) -> list[dict[str, Any]]:
    """What events of these kinds say."""
    return [event.data for event in events if event.kind in kinds]
