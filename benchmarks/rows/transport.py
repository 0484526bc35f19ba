"""Transport-dominated: a model of 11.2 million parameters for 20 devices that do not train.

It is compared with the minimum work of a simulator in one process: a copy of the model and of the update for each
device. That simulator sums nothing; here updates are summed exactly and results written to disk.
"""

from __future__ import annotations

import copy
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.comparison import lines_of_simulators, simulators
from benchmarks.data import make_images
from benchmarks.federation import Federation, federation, spec_of
from benchmarks.loops import initial_model
from benchmarks.memory import monitored
from benchmarks.simulators.process import Simulator
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, compared, timed
from benchmarks.turns import Round, in_turns

ROUNDS_WATCHED = 2


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Targets: at most 4.8 times the in-memory copies; 4.5 times as fast as Flower; 1.8 GB in all processes."""
    job = sizes.transport
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    state = initial_model(folder, job).state_dict()
    with ExitStack() as stack:
        ours = stack.enter_context(federation(folder, {**spec_of(job), "algorithm": "bench_transport"}))
        others = simulators(stack, folder, job)
        rounds: dict[str, Round] = {"ours": ours.round, "copies": lambda: copied(state, job.n_devices)}
        seconds = in_turns(rounds | {name: each.round for name, each in others.items()}, sizes.n_rounds)
        ours.check_work(job)
        peak_gb, peaks_gb = _peak_gb(ours), {name: _peak_gb(each) for name, each in others.items()}
    return [
        timed("transport", f"topology: model to {job.n_devices} devices and back", seconds["ours"]),
        compared("transport", "in-memory copies of the same, 1 process", seconds["copies"], seconds["ours"], 4.8),
        *lines_of_simulators("transport", seconds, {"flower": 1 / 4.5}),
        at_most("transport", "peak memory of all processes (PSS)", peak_gb, "GB", 1.8),
        *(at_most("transport", f"peak memory of {name} (PSS)", peak, "GB") for name, peak in peaks_gb.items()),
    ]


def _peak_gb(running: Federation | Simulator) -> float:
    """Peak memory of all processes in rounds that are not timed, in GB."""
    with monitored(running.pids()) as peak:
        for _ in range(ROUNDS_WATCHED):
            running.round()
    return peak.n_bytes / 1e9


def copied(state: dict[str, Any], n_devices: int) -> float:
    """Copy the model and an update once per device; returns the seconds."""
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    began = time.perf_counter()
    for _ in range(n_devices):
        copy.deepcopy(state)
        copy.deepcopy(floats)
    return time.perf_counter() - began
