"""Transport-dominated: a model of 11.2 million parameters for 20 devices that do not train.

It is compared with the minimum work of a simulator in one process: a copy of the model and of the update for each
device. That simulator sums nothing; here updates are summed exactly and results written to disk.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

from benchmarks.data import SHAPES, make_images
from benchmarks.federation import federation
from benchmarks.memory import monitored
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, compared, timed
from benchmarks.turns import in_turns
from shared.training.models import build

DATA = "cifar10"
ROUNDS_WATCHED = 2


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Targets: at most 2.5 times the in-memory copies; less than 2.5 GB in all processes."""
    n_devices = sizes.transport_devices
    make_images(folder / "data", DATA, 10 * n_devices)
    spec = {"data": DATA, "model": sizes.transport_model, "num_edges": 2, "num_devices": n_devices}
    height, width, channels = SHAPES[DATA]
    state = build(sizes.transport_model, (channels, height, width), 10, 0).state_dict()
    with federation(folder, {**spec, "algorithm": "bench_transport"}) as ours:
        seconds = in_turns({"ours": ours.round, "copies": lambda: copied(state, n_devices)}, sizes.n_rounds)
        with monitored(ours.pids()) as peak:
            for _ in range(ROUNDS_WATCHED):
                ours.round()
    return [
        timed("transport", f"topology: model to {n_devices} devices and back", seconds["ours"]),
        compared("transport", "in-memory copies of the same, 1 process", seconds["copies"], seconds["ours"], 2.5),
        at_most("transport", "peak memory of all processes (PSS)", peak.n_bytes / 1e9, "GB", 2.5),
    ]


def copied(state: dict[str, Any], n_devices: int) -> float:
    """Copy the model and an update once per device; returns the seconds."""
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    began = time.perf_counter()
    for _ in range(n_devices):
        copy.deepcopy(state)
        copy.deepcopy(floats)
    return time.perf_counter() - began
