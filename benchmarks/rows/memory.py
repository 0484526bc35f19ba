"""Memory growth over the rounds of a run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import federation, spec_of
from benchmarks.memory import pss_bytes
from benchmarks.sizes import Sizes
from benchmarks.table import Line


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Memory of all processes of the MLP row's topology, after many rounds against after few."""
    make_images(folder / "data", sizes.mlp.data, sizes.mlp.n_devices * sizes.mlp.n_samples)
    found: dict[int, int] = {}
    with federation(folder, spec_of(sizes.mlp)) as ours:
        for round_no in range(2, sizes.long[1] + 1):
            if round_no - 1 in sizes.long:
                found[round_no - 1] = pss_bytes(ours.pids())
            ours.round()
        found[sizes.long[1]] = pss_bytes(ours.pids())
    early, late = sizes.long
    return [
        Line("memory", f"after {early} rounds (PSS)", f"{found[early] / 1e6:.0f} MB"),
        Line("memory", f"after {late} rounds (PSS)", f"{found[late] / 1e6:.0f} MB", ratio=found[late] / found[early]),
    ]
