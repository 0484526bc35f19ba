"""Small runs, rounds and seats with known figures, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.results.manifest import Manifest
from shared.results.writer import write_results
from shared.run_records.rounds import EdgeRow, Evaluation, RoundDetail, RoundInfo
from shared.run_records.runs import RunInfo, SeatInfo
from shared.run_records.visits import FailureInfo, VisitRow
from shared.simulation.digital_twin import Telemetry, Twin, VisitObservation
from shared.spec.experiment import ExperimentSpec

SPEC = ExperimentSpec(name="small", seed=7, num_rounds=3, num_edges=2, num_devices=2, max_devices=2)


def a_run(**changes: Any) -> RunInfo:
    """A run that has completed three rounds."""
    fields: dict[str, Any] = {
        "run": "r1",
        "name": "small",
        "algorithm": "fedavg",
        "status": "completed",
        "created_at": "2026-01-02T03:04:05Z",
        "rounds": 3,
        "num_rounds": 3,
        "phase": "train",
        "accuracy": 0.93,
        "loss": 0.3,
        "bytes_up": 600,
        "bytes_down": 6000,
        "wall_s": 1.5,
        "simulated_s": 12.0,
        "model_sha256": "ab" * 32,
        "models": ("global",),
        "resolved": True,
        "spec": SPEC,
    }
    return RunInfo.model_validate(fields | changes)


def put_run(folder: Path, rounds: Sequence[RoundInfo] = (), info: RunInfo | None = None, /, **changes: Any) -> Path:
    """Writes the results of a run, by default with the name of their folder as its id; returns the folder."""
    info = info or a_run(**{"run": folder.name, **changes})
    write_results(folder, info, rounds, model=None, manifest=Manifest.of(info))
    return folder


def a_round(round_no: int, **changes: Any) -> RoundDetail:
    """A round with two edges, two seats (one visited twice) and a lost contribution."""
    fields: dict[str, Any] = {
        "round_no": round_no,
        "phase": "train",
        "n_visits": 3,
        "n_used": 2,
        "train_loss": 1.0 / round_no,
        "client_accuracy": 0.5 + round_no / 10,
        "bytes_up": 200,
        "bytes_down": 2000,
        "device_bytes_up": 150,
        "device_bytes_down": 1500,
        "edge_bytes_up": 50,
        "edge_bytes_down": 500,
        "simulated_s": 4.0,
        "wall_s": 0.5,
        "model_sha256": "cd" * 32,
        "failures": (FailureInfo(seat=1, edge="edge-2", reason="timeout", detail="no answer\nin 3 s"),),
        "retired": {1: "too slow"},
        "figures": {"admitted": [0]},
        "edges": (
            EdgeRow(edge="edge-1", home=0, outcome="used", n_used=2, down_bytes=250, up_bytes=25),
            EdgeRow(edge="edge-2", home=1, outcome="used", n_used=1, down_bytes=250, up_bytes=25),
        ),
        "evaluation": {"global": Evaluation(n=360, accuracy=0.9 + round_no / 100, loss=1 / (round_no + 2))},
        "seats": (
            VisitRow(seat=0, edge="edge-1", outcome="used", n_samples=10, down_bytes=500, up_bytes=50),
            VisitRow(seat=0, edge="edge-1", wave=1, outcome="used", n_samples=10, down_bytes=500, up_bytes=50),
            VisitRow(seat=1, edge="edge-2", outcome="evaluated", down_bytes=500, up_bytes=50),
        ),
    }
    return RoundDetail.model_validate(fields | changes)


def some_seats() -> tuple[SeatInfo, ...]:
    """Two seats with all classes but one each."""
    common: dict[str, Any] = {"role": "train", "state": "idle", "profile": "standard", "n_test": 5}
    return (
        SeatInfo(seat=0, home=0, edge="edge-1", agent="a-1", n_train=30, label_counts=(10, 20, 0), **common),
        SeatInfo(seat=1, home=1, edge="edge-2", agent="a-2", n_train=12, label_counts=(0, 5, 7), **common),
    )


def a_seat(seat: int, **changes: Any) -> SeatInfo:
    """A seat that trains at the first home."""
    fields: dict[str, Any] = {
        "seat": seat,
        "role": "train",
        "home": 0,
        "state": "alive",
        "profile": "standard",
        "n_train": 10,
        "n_test": 2,
        "label_counts": (5, 5),
    }
    return SeatInfo.model_validate(fields | changes)


def a_twin() -> Twin:
    """A twin after one visit that took twice as long as predicted."""
    visit: dict[str, Any] = {"round_no": 1, "edge_round": 0, "wave": 0, "at_s": 0.0, "n_trained": 50, "outcome": "used"}
    seen = VisitObservation(**visit, predicted_s=2.0, predicted_sd_s=0.5, took_s=4.0, error_s=2.0)
    telemetry = Telemetry(free_sps=120.0, n_collected=70)
    return Twin(seat=3, health="recovering", ratio=1.5, strikes=1, telemetry=telemetry, history=(seen,))
