"""`local_steps`: tasks of a number of steps, as hierarchical FedAvg counts them (Liu et al., ICC 2020: kappa_1)."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec
from tests.federation import small_spec
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import ran, tried

EPOCH = 5
"""Steps of an epoch: each of six devices has 50 samples."""


def spec_of(**more: Any) -> dict[str, Any]:
    return small_spec(batch_size=10, lr=0.1, **more)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("steps", [1, 3, 7])
async def test_a_task_takes_as_many_steps_as_are_said_wherever_devices_run(steps: int) -> None:
    one, many = [await ran(spec_of(local_steps=steps), agent_devices=layout) for layout in ((6,), (1, 3, 2))]
    assert flat.same_bits(one.model, flat.fedavg(one.experiment, 2))
    assert flat.same_bits(one.model, many.model)
    assert one.links() == many.links()
    rows = [row for detail in one.rounds for row in detail.seats]
    assert {row.n_samples for row in rows} == {50}  # by which an update counts
    assert {round(row.compute_s * 500 * 24_680_448 / one.experiment.flops) for row in rows} == {10 * steps}


@pytest.mark.parametrize(
    "more", [{}, {"edge_rounds": 2}, {"vectorised": {"width": 3}}, {"algorithm": "fednova"}], ids=str
)
async def test_the_steps_of_two_epochs_are_two_epochs(more: dict[str, Any]) -> None:
    steps = tried(**spec_of(local_steps=2 * EPOCH, **more))
    epochs = tried(**spec_of(local_epochs=2, **more))
    assert flat.same_bits(steps.model, epochs.model)


@pytest.mark.whole
async def test_a_late_device_does_fewer_of_its_steps() -> None:
    slow = {"profile": {"compute_sps": 0.01, "latency_s": 0}, "edge_latency_s": 0}
    slow |= {"straggler_ratio": 1 / 3, "straggler_slowdown": 4, "straggler_slows": "compute"}
    spec = spec_of(local_steps=8, devices=slow, num_rounds=1)
    whole_s = max(row.simulated_s for row in (await ran(spec)).rounds[0].seats)
    (detail,) = (await ran({**spec, "round_deadline_s": whole_s / 2, "partial_work": True})).rounds
    assert sorted({row.work_share for row in detail.seats}) == [3 / 8, 1]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"local_epochs": 2}, "local_steps and local_epochs: a task takes a number of steps or of epochs, not both"),
        ({"schedule": "equal"}, "local_steps needs schedule: own_data"),
    ],
)
def test_steps_and_what_they_contradict_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_spec(spec_of(local_steps=5, **more))
