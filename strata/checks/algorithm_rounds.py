"""What has to hold of an algorithm in rounds: pure hooks, records that are sent unchanged, bits that a seed decides."""

from __future__ import annotations

import random
import tempfile
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared.federation.aggregation import Accumulator
from shared.federation.experiment import Experiment
from shared.federation.hooks import Algorithm
from shared.federation.messages import Contribution
from shared.federation.spec_parser import parse_spec
from shared.training.data.open_data import open_data
from shared.wire import codec
from strata.checks.monitor import Monitor, leaves, require, with_monitor
from strata.checks.tried_rounds import TriedRounds

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "n_train": 200, "n_test": 50},
    "num_devices": 4,
    "num_edges": 2,
    "num_rounds": 2,
    "lr": 0.1,
}
"""Two rounds of four devices at two edges: the spec with which an algorithm is tried."""


def tried(algorithm: Algorithm, folder: Path, *, monitored: bool, **more: Any) -> TriedRounds:
    """Two rounds of an algorithm in this process.

    Raises:
        CheckFailed, StrataError: they fail.
    """
    spec = parse_spec({"algorithm": algorithm.name, **SMALL, **algorithm.needs, **more})
    spec = spec.resolved(n_devices=4, n_edges=2)
    experiment = Experiment(spec, open_data(spec.data, data_dir=None, cache_dir=folder / "data"))
    monitor = Monitor()
    if monitored:
        experiment.algorithm = with_monitor(experiment.algorithm, monitor)
    states = Path(tempfile.mkdtemp(prefix="states-", dir=folder))
    return TriedRounds(experiment, states, monitor).run()


def hooks_are_pure(done: TriedRounds) -> None:
    """Every call of a hook is repeated: it changes no input and gives the same answer."""
    faults = sorted(set(done.monitor.faults))
    require(not faults, "; ".join(faults))


def every_declared_type_is_used(algorithm: Algorithm, monitor: Monitor) -> None:
    """Each declared record is sent or stored within two rounds, so it has a writer."""
    found = set(monitor.states)
    for record, _ in monitor.encoded:
        outcomes = getattr(record, "outcomes", ())
        found |= {type(record), *map(type, getattr(record, "messages", ())), *(type(item.report) for item in outcomes)}
        found |= {type(getattr(record, name, None)) for name in ("broadcast", "state")}
        found |= {type(item.update) for item in getattr(getattr(record, "uploads", None), "contributions", ())}
    declared = {algorithm.broadcast, algorithm.message_type, algorithm.update, algorithm.cloud_state}
    declared |= {algorithm.edge_state} | ({algorithm.report} if algorithm.report else set())
    declared |= {algorithm.device_state} if algorithm.device_remembers else set()
    unused = sorted(kind.__name__ for kind in declared - found)
    require(not unused, f"declared, but never sent or kept: {', '.join(unused)}")


def order_changes_nothing(experiment: Experiment, items: list[Contribution[Any]]) -> None:
    """Updates give the same bytes when summed in every order and by halves."""
    require(len(items) > 1, "fewer than two updates were sent: there is no order to change")
    sums = set()
    for order in permutations(items):
        whole, half = (Accumulator(experiment.algorithm.update, experiment.fixed_point) for _ in range(2))
        middle = len(order) // 2
        for item in order[:middle]:
            half.add(item.update, item.n_samples)
        for item in order[middle:]:
            whole.add(item.update, item.n_samples)
        whole.merge(half.result())
        sums.add(bytes(codec.encode(whole.result()).join()))
    require(len(sums) == 1, "the sum of updates depends on their order")


def seed_decides_the_bits(algorithm: Algorithm, first: TriedRounds, folder: Path) -> None:
    """The same seed gives the same state whatever the global random streams are, which no hook uses or changes."""
    torch.manual_seed(4711)
    random.seed(4711)
    before = _global_streams()
    again = tried(algorithm, folder, monitored=False)
    require(before == _global_streams(), "a hook draws from a global random stream")
    require(leaves(again.state) == leaves(first.state), "two runs with one seed end in different states")


def _global_streams() -> tuple[Any, ...]:
    """Where the global random streams of Python and numpy stand: numpy's keys, and the position among them."""
    _, keys, position, *_ = np.random.get_state()
    return random.getstate(), np.asarray(keys).tolist(), position
