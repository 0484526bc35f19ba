"""The cost of nodes that dial out: rounds beside those of nodes that are called, of small models and of a large one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import federation, spec_of
from benchmarks.sizes import Sizes
from benchmarks.table import Line, compared, timed
from benchmarks.turns import in_turns


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Two lines for the row `mlp`, whose rounds are short, and for `transport`, whose bodies are large."""
    for job in (sizes.mlp, sizes.transport):
        make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    large = {**spec_of(sizes.transport), "algorithm": "bench_transport"}
    found = []
    for name, spec in (("mlp", spec_of(sizes.mlp)), ("transport", large)):
        with ExitStack() as stack:
            rounds = {}
            for how in ("up", "listen"):
                env = {"STRATA_DATA_DIR": str(folder / "data"), "EDGE_CONNECT": how, "AGENT_CONNECT": how}
                run = stack.enter_context(federation(folder / name / how, spec, env=env))
                rounds[how] = run.round
            seconds = in_turns(rounds, sizes.n_rounds)
        found.append(timed("connect", f"{name}: a round of nodes that dial out", seconds["up"]))
        found.append(compared("connect", f"{name}: a round of nodes that are called", seconds["listen"], seconds["up"]))
    return found
