"""The manifest: what a run's results depend on."""

from __future__ import annotations

import platform
from pathlib import Path

from shared.core.records import Record
from shared.core.versions import versions
from shared.run_records.provenance import ProvenanceChange
from shared.run_records.runs import FINAL, RunInfo


class Manifest(Record):
    """What must be equal for a second run to give the same model bit for bit, and when and where this run took place.

    Attributes:
        clock: as in the spec; with `real`, wall-clock time decides which devices are late, so that runs differ.
        data_digest: of the data set's arrays with which the run began; None before it is loaded.
        population_digest: of the seats, their data and profiles; None before they are assigned.
        init_digest: of the model that the spec's `init` names; None where the seed draws it.
        versions: of Python and of the packages that compute, when the run began.
        cpu: model and instruction set; another CPU may give other bits.
        gpu: with `device: cuda`, the cloud's GPU and its CUDA version; likewise.
        changes: the other data, packages and machines with which the run was resumed; after one, no second run that
            keeps to the values above gives the same model.
        ended_at: None while the run may go on.
    """

    run: str
    seed: int
    clock: str
    spec_digest: str
    data_digest: str | None = None
    population_digest: str | None = None
    init_digest: str | None = None
    versions: dict[str, str]
    cpu: str
    gpu: str | None = None
    changes: tuple[ProvenanceChange, ...] = ()
    started_at: str
    ended_at: str | None = None

    @classmethod
    def of(
        cls,
        info: RunInfo,
        *,
        started_at: str | None = None,
        ended_at: str | None = None,
    ) -> Manifest:
        """The manifest of a run: what it began with, or, before that is known, what is installed on this machine.

        Args:
            started_at: the start of the run; default: its creation.
            ended_at: the end of the run; ignored while its status is not final.
        """
        began = info.provenance
        return cls(
            run=info.run,
            seed=info.spec.seed,
            clock=info.spec.clock,
            spec_digest=info.spec.digest(),
            data_digest=began.data_digest if began else None,
            population_digest=began.population_digest if began else None,
            init_digest=info.init_sha256,
            versions=began.versions if began else versions(),
            cpu=began.cpu if began else cpu_model(),
            gpu=began.gpu if began else gpu_of(info.spec.device),
            changes=info.changes,
            started_at=started_at or info.created_at,
            ended_at=ended_at if info.status in FINAL else None,
        )


def gpu_of(device: str) -> str | None:
    """The GPU of this machine that a spec's `device` uses, None for one that uses none."""
    if device != "cuda":
        return None
    from shared.training.compute_device import gpu_model  # loads torch

    return gpu_model()


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
