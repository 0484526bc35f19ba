"""The manifest: what a run's results depend on."""

from __future__ import annotations

import platform
from pathlib import Path

from shared.core.records import Record
from shared.core.versions import versions
from shared.run_records.runs import FINAL, RunInfo
from shared.training.compute_device import gpu_model


class Manifest(Record):
    """What must be equal for a second run to give the same model bit for bit, and when and where this run took place.

    Attributes:
        clock: as in the spec; with `real`, wall-clock time decides which devices are late, so that runs differ.
        data_digest: of the data set's arrays; None before it is loaded.
        population_digest: of the seats, their data and profiles; None before they are assigned.
        versions: of Python and of the packages that compute.
        cpu: model and instruction set; another CPU may give other bits.
        gpu: with `device: cuda`, the cloud's GPU and its CUDA version; likewise.
        ended_at: None while the run may go on.
    """

    run: str
    seed: int
    clock: str
    spec_digest: str
    data_digest: str | None = None
    population_digest: str | None = None
    versions: dict[str, str]
    cpu: str
    gpu: str | None = None
    started_at: str
    ended_at: str | None = None

    @classmethod
    def of(
        cls,
        info: RunInfo,
        *,
        data_digest: str | None = None,
        population_digest: str | None = None,
        started_at: str | None = None,
        ended_at: str | None = None,
    ) -> Manifest:
        """The manifest of a run on this machine, with the installed versions.

        Args:
            started_at: the start of the run; default: its creation.
            ended_at: the end of the run; ignored while its status is not final.
        """
        return cls(
            run=info.run,
            seed=info.spec.seed,
            clock=info.spec.clock,
            spec_digest=info.spec.digest(),
            data_digest=data_digest,
            population_digest=population_digest,
            versions=versions(),
            cpu=cpu_model(),
            gpu=gpu_model() if info.spec.device == "cuda" else None,
            started_at=started_at or info.created_at,
            ended_at=ended_at if info.status in FINAL else None,
        )


def cpu_model() -> str:
    """The CPU's model name if the system reports it, else its instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return f"{value.strip()} ({platform.machine()})"
    return platform.processor() or platform.machine()
