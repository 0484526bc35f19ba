"""What a way of connecting the tiers costs: rounds with it beside rounds without, of small and of large models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import federation, spec_of
from benchmarks.sizes import Sizes
from benchmarks.table import Line, compared, timed
from benchmarks.turns import in_turns


@dataclass(frozen=True)
class Way:
    """A way of connecting the tiers.

    Attributes:
        label: what a line of the table says of its rounds, after "a round".
        secure: whether nodes show certificates.
        env: variables of all tiers.
    """

    label: str
    secure: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


def of_two_ways(row: str, one: Way, other: Way, folder: Path, sizes: Sizes) -> list[Line]:
    """Two lines for the row `mlp`, whose rounds are short, and for `transport`, whose bodies are large."""
    for job in (sizes.mlp, sizes.transport):
        make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    large = {**spec_of(sizes.transport), "algorithm": "bench_transport"}
    found = []
    for name, spec in (("mlp", spec_of(sizes.mlp)), ("transport", large)):
        with ExitStack() as stack:
            rounds = {}
            for way in (one, other):
                place, env = folder / name / way.label, {"STRATA_DATA_DIR": str(folder / "data"), **way.env}
                run = stack.enter_context(federation(place, spec, env=env, secure=way.secure))
                rounds[way.label] = run.round
            seconds = in_turns(rounds, sizes.n_rounds)
        found.append(timed(row, f"{name}: a round {one.label}", seconds[one.label]))
        found.append(compared(row, f"{name}: a round {other.label}", seconds[other.label], seconds[one.label]))
    return found
