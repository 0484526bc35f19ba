"""What a training step of a method costs beside FedAvg's: operations and seconds, in this process, in turns.

A whole visit is timed, hooks and all, and divided by its steps. The message is what cloud and edge send in round 1.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.sizes import Sizes
from benchmarks.table import Line
from shared.lab import Lab
from shared.messages import Work
from shared.spec import parse_spec
from shared.training.data import load
from shared.training.flops import Operations

METHODS: dict[str, Any] = {
    "fedavg": "fedavg",
    "fedser": "fedser",
    "fedser, n 1": {"name": "fedser", "params": {"n": 1}},
    "fedser, n 4": {"name": "fedser", "params": {"n": 4}},
}
CASES = [("cnn_6_16", 64, 16), ("resnet18", 16, 2), ("mobilenet_v1", 16, 4)]
"""Model (with a projection head of 256, on 3x32x32), batch size, steps of a visit."""
Visit = Callable[[], object]


def lines(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Each method on each model."""
    make_images(folder / "data", "cifar10", max(batch * steps for _, batch, steps in CASES))
    for case in CASES:
        yield from _case(folder, case, sizes.train_s)


def _case(folder: Path, case: tuple[str, int, int], seconds: float) -> Iterator[Line]:
    model, _, n_steps = case
    visits = {name: _visit(folder, algorithm, case) for name, algorithm in METHODS.items()}
    flops = {name: _flops(visit) for name, visit in visits.items()}  # the first visit of each, not timed
    times = _times(visits, seconds * len(visits))
    plain = statistics.median(times["fedavg"])
    for name, spent in times.items():
        median = statistics.median(spent)
        what = f"{name}, {model}: {flops[name] / flops['fedavg']:.2f} x the operations"
        yield Line("methods", what, f"{1000 * median / n_steps:.2f} ms", ratio=median / plain)


def _visit(folder: Path, algorithm: Any, case: tuple[str, int, int]) -> Visit:
    """A visit of the only device to be made again and again."""
    model, batch_size, n_steps = case
    raw = {"algorithm": algorithm, "data": "cifar10", "model": {"name": model, "projection": 256}, "num_devices": 1}
    spec = parse_spec({**raw, "lr": 1e-4, "batch_size": batch_size}).resolved(n_devices=1, n_edges=1)
    lab = Lab(spec, load("cifar10", data_dir=folder / "data", cache_dir=folder / "cache"))
    seat, hooks = lab.seat(0), lab.algorithm
    cloud = lab.ctx(phase=lab.phases[-1].name, round_no=1, n_clients=1)
    edge, device = cloud.at(edge=0), cloud.at(edge=0, seat=0)
    broadcast = hooks.cloud.broadcast(cloud, hooks.cloud.init(cloud, lab.initial), 0, [seat])
    begun = hooks.edge.begin(edge, hooks.edge.init(edge), broadcast).state
    message = hooks.edge.dispatch(edge, begun, seat)
    bench = lab.bench(Work(steps=n_steps, batch_size=batch_size), seat.train, seat.test)
    return lambda: hooks.device.local_update(device, hooks.device.init(device), message, bench)


def _flops(visit: Visit) -> int:
    with Operations() as counter:
        visit()
    return int(counter.n)


def _times(visits: dict[str, Visit], seconds: float) -> dict[str, list[float]]:
    """Seconds of visits that take turns, three of each at least."""
    times: dict[str, list[float]] = {name: [] for name in visits}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times["fedavg"]) < 3:
        for name, visit in visits.items():
            start = time.perf_counter()
            visit()
            times[name].append(time.perf_counter() - start)
    return times
