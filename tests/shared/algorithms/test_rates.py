"""Learning rates by round, and the optimisers of devices, through the three tiers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shared.federation.experiment import Experiment
from shared.federation.spec_parser import parse_spec
from shared.spec.experiment import ExperimentSpec
from tests.shared.algorithms import flat, plain_linear
from tests.shared.algorithms.layouts import four, tried
from tests.shared.algorithms.plain_linear import Array
from tests.shared.algorithms.test_scaffold import plain as scaffold
from tests.shared.algorithms.test_server_optimizers import plain as fedavg


def spec_of(**more: Any) -> dict[str, Any]:
    """Returns a spec of four devices with 60 samples of two classes each; an epoch is one full-batch step."""
    return {
        **four(),
        "partition": {"name": "shards", "classes_per_device": 2},
        "num_rounds": 4,
        **plain_linear.in_one_batch(**more),
    }


def rates(**spec: Any) -> list[float]:
    """Returns the rate of each round."""
    parsed = ExperimentSpec.model_validate(spec)
    return [parsed.lr_at(round_no) for round_no in range(1, parsed.num_rounds + 3)]


def test_a_number_is_the_rate_of_all_rounds() -> None:
    assert rates(num_rounds=2, lr=0.3) == [0.3] * 4
    assert rates(num_rounds=2, lr={"name": "constant", "lr": 0.3}) == [0.3] * 4
    assert rates(num_rounds=2, lr={"name": "constant"}) == [0.05] * 4


def test_a_warm_up_grows_linearly_to_the_rate() -> None:
    found = rates(num_rounds=3, lr=0.4, lr_schedule={"name": "constant", "warmup": 3})
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_a_step_schedule_counts_after_the_warm_up() -> None:
    found = rates(num_rounds=4, lr={"name": "step", "lr": 1.0, "every": 2, "factor": 0.5, "warmup": 1})
    assert found == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.5, 0.25])


def test_a_cosine_falls_and_added_rounds_keep_its_last_rate() -> None:
    found = rates(num_rounds=4, lr={"name": "cosine", "lr": 2.0, "end": 0.1})
    cosine = [0.2 + 1.8 * (1 + math.cos(math.pi * k / 4)) / 2 for k in (0, 1, 2, 3, 3, 3)]
    assert found == pytest.approx(cosine)
    assert rates(num_rounds=2, lr=1.0, lr_schedule="cosine")[-1] > 0
    longer = rates(num_rounds=4, lr={"name": "cosine", "lr": 2.0, "rounds": 100})
    assert longer[-1] > 1.9


SCHEDULES: list[dict[str, Any]] = [
    {"name": "step", "lr": 0.2, "every": 1, "factor": 0.5, "warmup": 1},
    {"name": "cosine", "lr": 0.2},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule["name"])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_devices_train_with_the_rate_of_the_round(algorithm: str, schedule: dict[str, Any]) -> None:
    done = tried(**spec_of(algorithm=algorithm, lr=schedule))
    x = scaffold(done.experiment, {})[0] if algorithm == "scaffold" else fedavg(done.experiment, None)
    assert flat.distance(done.model, plain_linear.parted(x)) < 2e-5


def test_a_constant_schedule_has_the_bits_of_a_number() -> None:
    fields: dict[str, Any] = {"model": "mlp", "batch_size": 16, "num_rounds": 2}
    number, constant, cosine = [
        tried(**spec_of(**fields, **more)).model
        for more in ({}, {"lr": {"name": "constant", "lr": 0.1}}, {"lr_schedule": "cosine"})
    ]
    stacked, stacked_cosine = [
        tried(**spec_of(**fields, vectorised={"width": 4}, **more)).model for more in ({}, {"lr_schedule": "cosine"})
    ]
    assert flat.same_bits(constant, number)
    assert flat.distance(stacked, number) < 1e-5
    assert flat.distance(stacked_cosine, cosine) < 1e-5
    assert flat.distance(cosine, number) > 1e-3


def adam(experiment: Experiment) -> Array:
    """FedAvg whose devices take steps of Adam or AdamW in numpy, with moments that start anew in each visit."""
    x, spec = plain_linear.joined(experiment.initial), experiment.spec
    decay, decoupled = spec.weight_decay, spec.optimizer == "adamw"
    for _ in range(spec.num_rounds):
        models = []
        for seat in range(4):
            gradient, y = plain_linear.gradient_of(experiment, seat), x
            m = v = np.zeros_like(x)
            for t in range(1, spec.local_epochs + 1):
                g = gradient(y)
                y, g = (y * (1 - spec.lr * decay), g) if decoupled else (y, g + decay * y)
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                y = y - spec.lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            models.append(y)
        x = np.mean(models, axis=0)
    return x


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_devices_take_steps_of_adam(optimizer: str) -> None:
    """Where a gradient is nearly 0, Adam's step is not determined in float32, hence the share of elements."""
    fields = {"optimizer": optimizer, "lr": 0.01, "weight_decay": 0.1, "num_rounds": 2}
    done = tried(**spec_of(**fields))
    expected = plain_linear.parted(adam(done.experiment))
    off = [float(((done.model[name] - expected[name]).abs() > 1e-4).float().mean()) for name in expected]
    assert max(off) < 0.01


def test_specs_without_them_keep_their_digest_and_a_spec_can_be_read_again() -> None:
    plain = parse_spec({})
    assert not {"lr_schedule", "optimizer"} & plain.model_dump().keys()
    assert parse_spec({"optimizer": "sgd"}).digest() == plain.digest()
    spec = parse_spec({"lr": {"name": "step", "every": 3}, "optimizer": "adam"})
    assert parse_spec(spec.model_dump(mode="json")) == spec
