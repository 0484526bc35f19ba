"""With null parameters, or where nothing is left to do, algorithms are FedAvg bit for bit."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Tried, four, tried

EQUAL = {"partition": {"name": "shards", "classes_per_device": 2}}
"""Clients of one size, so that plain means equal means by samples."""
NORMED = {"model": "conv_bn", "batch_size": 25}
USERS = {"client": "edge", "num_devices": 8, "num_edges": 4}
ONE_BATCH = {"batch_size": 100, "local_epochs": 3, "momentum": 0.9}
OFF = {"alpha": 0, "drift": False, "gradient": False}

ROWS: list[tuple[str, dict[str, Any], dict[str, Any] | None, dict[str, Any]]] = [
    ("fedbn", {}, None, {}),  # a model without batch-norm
    ("feddc", OFF, {}, {}),
    ("feddyn", {"alpha": 0}, {}, EQUAL),
    ("fedmix", {"lam": 0}, {}, {}),
    ("fednova", {}, None, {**NORMED, **ONE_BATCH}),  # clients of unequal sizes take equally many steps
    ("fedper", {"personal_layers": 0}, {}, {}),
    ("fedper", {"personal_layers": 0}, {}, USERS),
    ("fedprox", {"mu": 0}, {"mu": 0.1}, {"local_epochs": 2}),
    ("fedser", {"mu": 0}, {}, NORMED),
    ("fedser", {"n": 0}, {}, NORMED),
    ("lafl_cpn", {"p": 0, "normalise": "fixed"}, {"p": 1}, NORMED),
    ("moon", {"mu": 0}, {"mu": 5}, {}),
    ("per_fedavg", {"alpha": 0, "local_steps": None}, {}, {}),
    ("scaffold", {"option": "none"}, {}, EQUAL),
    ("t_fedavg", {"quantise": False}, {}, {}),
]
"""Algorithm, null parameters, others that change the result, further fields of the spec."""
KEPT = {"feddyn": "drift", "fedmix": "mash", "scaffold": "control"}
"""What the cloud keeps beside the model, and here does not."""


@cache
def run_of(text: str) -> Tried:
    return tried(**json.loads(text))


def run(algorithm: str, params: dict[str, Any], **fields: Any) -> Tried:
    """Returns two rounds of clients of different sizes; the same spec is run once."""
    spec = {**four(), "partition": {"name": "dirichlet", "alpha": 5.0}, "batch_size": 16, **fields}
    return run_of(json.dumps({**spec, "algorithm": {"name": algorithm, "params": params}}))


@pytest.mark.matrix(len(ROWS))
@pytest.mark.parametrize("edge_rounds", [1, 2])
@pytest.mark.parametrize(("algorithm", "null", "other", "fields"), ROWS, ids=lambda value: str(value)[:30])
def test_it_is_fedavg(
    algorithm: str, null: dict[str, Any], other: dict[str, Any] | None, fields: dict[str, Any], edge_rounds: int
) -> None:
    fields = {**fields, "edge_rounds": edge_rounds}
    done, fedavg = run(algorithm, null, **fields), run("fedavg", {}, **fields)
    assert flat.same_bits(done.model, fedavg.model)
    assert len(done.experiment.phases) == 1
    assert algorithm not in KEPT or not getattr(done.state, KEPT[algorithm])
    sizes = {len(seat.train) for seat in done.experiment.population.seats}
    assert fields.keys() & EQUAL.keys() or len(sizes) > 1
    assert max(sizes) <= ONE_BATCH["batch_size"]
    if other is not None and edge_rounds == 1:
        assert not flat.same_bits(run(algorithm, other, **fields).model, fedavg.model)
