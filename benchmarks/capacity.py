"""`python -m benchmarks.capacity [MODEL...]`: memory and disk of each tier, by model and by what devices keep.

Two edges, two agents, ten devices. Memory is the largest resident memory of a process, which is what its container
needs; disk is the size of all files below its folder.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import Federation, federation, spec_of
from benchmarks.loops import Job
from benchmarks.memory import peak_rss_bytes
from shared.federation.experiment import ExperimentCache

MODELS = {"mlp": "mnist", "cnn_mnist": "mnist", "resnet18": "cifar10"}
ALGORITHMS = ("fedavg", "scaffold")
"""Devices of the second keep a control variate as large as the model."""
N_DEVICES, N_SAMPLES, ROUNDS = 10, 20, 4
TIERS = {"cloud": "cloud", "edge": "edge-1", "agent": "agent-1"}


@dataclass(frozen=True)
class Used:
    """Bytes of each tier: memory, files after the last round, and files a round more."""

    memory: Mapping[str, int]
    disk: Mapping[str, int]
    growth: Mapping[str, float]


def measured(model: str, algorithm: str, folder: Path) -> tuple[int, Used]:
    """The parameters of a model, and what a run of it uses."""
    job = Job(MODELS[model], model, n_devices=N_DEVICES, n_samples=N_SAMPLES)
    make_images(folder / "data", job.data, N_DEVICES * N_SAMPLES)
    with federation(folder, {**spec_of(job), "algorithm": algorithm}) as ours:
        ours.round()
        first, n_before = _disk(ours, folder), ours.n_rounds()
        for _ in range(ROUNDS):
            ours.round()
        disk, n_more = _disk(ours, folder), ours.n_rounds() - n_before
        pids: dict[str, int] = {tier: ours.topology.processes[name].pid for tier, name in TIERS.items()}
        memory = {tier: peak_rss_bytes(pid) for tier, pid in {**pids, "Redis": ours.topology.redis.pid}.items()}
        experiment = ExperimentCache(folder / "data", folder / "cache").of(ours.client.run("latest").spec)
    growth = {name: (disk[name] - first[name]) / n_more for name in disk}
    return sum(tensor.numel() for tensor in experiment.shapes.values()), Used(memory, disk, growth)


def _disk(ours: Federation, folder: Path) -> dict[str, int]:
    places = {tier: ours.topology.folder / name for tier, name in TIERS.items()}
    places |= {"Redis": ours.topology.folder / "redis", "results": folder / "runs"}
    return {
        name: sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) for name, place in places.items()
    }


HEADER = (
    *("model", "parameters", "algorithm", "memory: cloud", "an edge", "an agent", "Redis", "files: cloud", "an edge"),
    *("an agent", "results", "Redis", "a round more: results", "Redis"),
)


def row(model: str, algorithm: str, n: int, used: Used) -> str:
    """A row of the table, in MB."""
    memory = [f"{used.memory[name] / 1e6:.0f}" for name in ("cloud", "edge", "agent", "Redis")]
    disk = [f"{used.disk[name] / 1e6:.2f}" for name in ("cloud", "edge", "agent", "results", "Redis")]
    growth = [f"{used.growth[name] / 1e6:.3f}" for name in ("results", "Redis")]
    return f"| `{model}` | {n:,} | `{algorithm}` | {' | '.join([*memory, *disk, *growth])} |"


def main(models: Sequence[str]) -> None:
    """Measure and print, in Markdown."""
    print(f"| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|", flush=True)
    for model in models or MODELS:
        for algorithm in ALGORITHMS:
            with tempfile.TemporaryDirectory(prefix="strata-bench-") as name:
                print(row(model, algorithm, *measured(model, algorithm, Path(name))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
