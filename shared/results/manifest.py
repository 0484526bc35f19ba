"""The manifest: what a run's figures rest on."""

from __future__ import annotations

import platform
from pathlib import Path

from shared.core.records import Record
from shared.core.versions import versions
from shared.run_records.runs import FINAL, RunInfo
from shared.training.compute_device import gpu_model


class Manifest(Record):
    """What must be equal for the same model to come out, bit for bit, and when and where it came out.

    Attributes:
        clock: of the spec; with `real` the wall clock decides who is late, and no second run is the same.
        data_digest: of the data set's arrays; None before they were opened.
        population_digest: of the seats, their data and profiles; None before they were dealt.
        versions: of Python and the packages that compute.
        cpu: model and instruction set; other CPUs may give other bits.
        gpu: with `device: cuda` the cloud's GPU, with what torch drives it by; likewise.
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
        """The manifest of a run on this machine, with the versions that are installed here.

        Args:
            started_at: when it began to run; by default when it was created.
            ended_at: when it ended; ignored while its status is not final.
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
    """The CPU's model name where the system tells it, else its instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return f"{value.strip()} ({platform.machine()})"
    return platform.processor() or platform.machine()
