"""Few participants of very many devices: a round, the first round and memory against the number of devices."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.federation import Federation, federation
from benchmarks.loops import LR
from benchmarks.memory import monitored, pss_bytes
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, timed
from benchmarks.turns import in_turns

DATA, N_TRAIN, SAMPLES = "mnist", 60_000, 20
FIRST_S, CLOUD_GB, ALL_GB, RATIO = 20.0, 1.5, 4.0, 1.3


def spec_of(n: int, n_participants: int) -> dict[str, Any]:
    """The spec of a run of n devices with 20 samples each, of which some train in a round, on the MLP."""
    policy = {} if n == n_participants else {"select": "random", "fraction_train": n_participants / n}
    return {
        "data": DATA,
        "model": "mlp",
        "partition": {"name": "sampled", "samples": SAMPLES},
        "num_edges": 2,
        "num_devices": n,
        "batch_size": 32,
        "lr": LR,
        **policy,
    }


def measured(
    folder: Path, n_participants: int, counts: tuple[int, ...], n_rounds: int, stack: ExitStack
) -> tuple[dict[int, Federation], dict[int, list[float]]]:
    """A run for each number of devices, and the seconds of its rounds; the runs take turns."""
    runs = {}
    for n in counts:
        home = folder / f"{n_participants}-{n}"
        make_images(home / "data", DATA, N_TRAIN)
        runs[n] = stack.enter_context(federation(home, spec_of(n, n_participants)))
    seconds = in_turns({str(n): run.round for n, run in runs.items()}, n_rounds)
    return runs, {n: seconds[str(n)] for n in counts}


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Targets: a round of the most devices within 1.3 times that of the fewest; first round, memory."""
    found: list[Line] = []
    for n_participants, counts in sizes.devices:
        with ExitStack() as stack:
            runs, seconds = measured(folder, n_participants, counts, sizes.n_rounds, stack)
            found += [timed("devices", f"{n} devices, {n_participants} a round", seconds[n]) for n in counts]
            most, least = counts[-1], counts[0]
            ratio = statistics.median(seconds[most]) / statistics.median(seconds[least])
            found.append(at_most("devices", f"{most} devices against {least}", ratio, "", RATIO))
            run = runs[most]
            found.append(at_most("devices", f"{most} devices, submission to first round", run.first_s, "s", FIRST_S))
            with monitored(run.pids()) as peak:
                run.round()
            cloud = pss_bytes([run.topology.processes["cloud"].pid])
            found.append(at_most("devices", f"{most} devices, cloud (PSS)", cloud / 1e9, "GB", CLOUD_GB))
            found.append(at_most("devices", f"{most} devices, all (PSS), peak", peak.n_bytes / 1e9, "GB", ALL_GB))
    return found
