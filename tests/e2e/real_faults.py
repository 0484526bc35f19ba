"""Shared parts of the tests of real faults: specs, checks of a record, and the comparison with an undisturbed run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from tests.soak.deployment import Deployment
from tests.soak.records import errors_in, miscounts, reasons_of, undisturbed

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "n_train": 400, "n_test": 100},
    "num_edges": 2,
    "num_devices": 4,
    "num_rounds": 3,
    "timeouts": {"visit_s": 100, "ready_s": 60, "reseat_after_s": 60},
}
FEDAVG = {**SMALL, "local_epochs": 80, "batch_size": 8}
"""FedAvg; a visit computes for about half a second, or much less on a fast machine."""
GATED = {**SMALL, "algorithm": "probe_gate"}
"""FedAvg whose visits wait while the deployment's gate is closed: for tests that inject a fault during a visit."""


def counts(pause_s: float, **changes: Any) -> dict[str, Any]:
    """Returns a spec of the probe with a counter on each seat; a visit takes `pause_s` and computes nothing."""
    return {**SMALL, "algorithm": {"name": "probe_counter", "params": {"pause_s": pause_s}}, **changes}


def timeouts(**changes: float) -> dict[str, Any]:
    """Returns the timeouts of `SMALL` with changes."""
    return {"timeouts": SMALL["timeouts"] | changes}


def completed_run(deployment: Deployment, run: str) -> tuple[RunInfo, list[RoundDetail], list[Event]]:
    """Wait until a run has completed and check its record; returns the run, its rounds and its events."""
    info = deployment.finish(run)
    assert info.status == "completed", info.reason
    details, events = deployment.details(info), deployment.events(run)
    assert errors_in(info, details, events) == []
    if info.algorithm == "probe_counter":
        assert miscounts(details) == []
    return info, details, events


_COMPLETED: dict[tuple[Path, str], RunInfo] = {}
"""Undisturbed runs of references, by their folder and the spec."""


def completed_once(reference: Deployment, spec: Mapping[str, Any]) -> RunInfo:
    """Completes a run in the deployment without faults; a spec that ran there before needs no second run."""
    key = reference.folder, json.dumps(spec, sort_keys=True)
    if key not in _COMPLETED:
        _COMPLETED[key] = reference.complete(spec)
    return _COMPLETED[key]


def assert_same_bits(reference: Deployment, info: RunInfo, details: Sequence[RoundDetail]) -> None:
    """Checks that an undisturbed run which leaves out exactly what was lost has the same models in every round."""
    other = completed_once(reference, undisturbed(info, details))
    hashes = [detail.model_sha256 for detail in reference.client.rounds(other.run).rounds]
    assert [detail.model_sha256 for detail in details] == hashes
    assert info.model_sha256 == other.model_sha256


def lost(details: Sequence[RoundDetail]) -> dict[str, int]:
    """Returns how many contributions were lost for each reason."""
    return dict(reasons_of(details))


def of_kind(events: Sequence[Event], *kinds: str) -> list[dict[str, Any]]:
    """Returns the data of the events of these kinds."""
    return [event.data for event in events if event.kind in kinds]
