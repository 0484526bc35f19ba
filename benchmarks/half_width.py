"""The cost of training a sub-network of half the units compared with the whole network: operations, bytes, seconds.

Both are trained by `shared.training.loop` on the same random images, in this process, in turns. Operations are those
of ES-AFL's simulated time (`Units.training_flops`), bytes those of an update as it is sent (`shared.wire.sparse`).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.step_cost import Case, random_samples
from benchmarks.turns import in_turns
from shared.core.tensor_records import TensorMap
from shared.training.loop import batches, train
from shared.training.models import build, read_state
from shared.training.subnetworks.unit_graph import units_of
from shared.training.subnetworks.units import Units, resized
from shared.wire import sparse


@dataclass(frozen=True)
class Half:
    """A sub-network of half the units, as parts of the whole network.

    Attributes:
        operations: operations of a training step.
        upload: bytes of an update.
        seconds: seconds of a training step: the median over turns of the ratio within a turn.
        spent: absolute seconds of a step in each turn.
    """

    operations: float
    upload: float
    seconds: float
    spent: list[float]


def half(case: Case, n_turns: int) -> Half:
    """Measure one model; every second unit of each group is kept."""
    whole = build(case.model, case.shape, 10, 0, case.projection)
    units, state = units_of(whole, case.shape), read_state(whole)
    kept = {group: torch.arange(0, n, 2) for group, n in units.groups.items()}
    part = units.cut(state, kept)
    networks = {"whole": whole, "half": resized(whole, units, part)}
    spent = in_turns({name: partial(_step_s, model, case) for name, model in networks.items()}, n_turns)
    pairs = zip(spent["half"], spent["whole"], strict=True)
    return Half(
        operations=units.training_flops(part) / units.training_flops(state),
        upload=_upload_bytes(units, part, state, kept) / _upload_bytes(units, state, state, {}),
        seconds=statistics.median(mine / theirs for mine, theirs in pairs),
        spent=spent["half"],
    )


def _upload_bytes(units: Units, part: TensorMap, state: TensorMap, kept: TensorMap) -> int:
    """Bytes of an update: its values and their positions."""
    ones = {name: torch.ones_like(tensor) for name, tensor in part.items() if tensor.is_floating_point()}
    return sum(sparse.n_bytes(mask, 4) for mask in units.spread(ones, state, kept).values())


def _step_s(model: nn.Module, case: Case) -> float:
    """Mean seconds of a step over one epoch."""
    x, y = random_samples(case)
    generator = torch.Generator().manual_seed(0)
    drawn = batches(x, y, np.arange(len(y)), batch_size=case.batch_size, generator=generator, epochs=1)
    began = time.perf_counter()
    n_steps = train(model, drawn, lr=1e-4).n_steps
    return (time.perf_counter() - began) / n_steps
