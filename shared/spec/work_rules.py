"""Rules on the length of tasks, and on samples that are divided among devices."""

from __future__ import annotations

from typing import Any


def check_work(spec: Any) -> None:
    """Check the fields of an `ExperimentSpec` that say how long tasks are and how samples are divided.

    Raises:
        ValueError: two of them contradict each other; the message begins with the name of the field at fault.
    """
    every = spec.average_every
    if spec.local_steps is not None and spec.local_epochs != 1:
        raise ValueError("local_steps and local_epochs: a task takes a number of steps or of epochs, not both")
    if spec.local_steps is not None and spec.schedule != "own_data":
        raise ValueError("local_steps needs schedule: own_data: a task on a share of samples takes epochs")
    if every != "visit" and spec.schedule == "own_data":
        raise ValueError(
            f"average_every: {every} needs a schedule that divides samples, such as schedule: free_compute"
        )
    if spec.divide_batch and spec.schedule == "own_data":
        raise ValueError("divide_batch needs a schedule that divides samples, such as schedule: free_compute")
    if spec.divide_batch and every == "step":
        raise ValueError("divide_batch needs average_every: visit or epoch: with step each batch is divided already")
    if every == "step" and spec.momentum:
        raise ValueError("momentum needs average_every: visit or epoch: with step a device takes one plain SGD step")
    if every == "step" and spec.versions > 1:
        raise ValueError("augment.when: expand needs average_every: visit or epoch: a step has no room for copies")
    if every == "step" and spec.select != "all":
        raise ValueError("select needs average_every: visit or epoch: with step all devices share each epoch")
    if spec.overrun is not None and not spec.plans:
        raise ValueError("overrun needs a schedule that plans shares: free_compute or finish_time")
    if spec.overrun is not None and spec.clock == "real":
        raise ValueError("overrun needs clock: simulated: with clock: real round_deadline_s ends all waits")
    rate = spec.arrival_rate
    if rate is not None and rate > 1 and rate != int(rate):
        raise ValueError(
            f"arrival_rate {rate:g} is neither a share of the samples (up to 1) nor a whole number of them"
        )
    if spec.collected == "travels" and spec.schedule == "own_data":
        raise ValueError(
            "collected: travels needs a schedule that divides samples, such as schedule: free_compute: with own_data "
            "no sample leaves its device"
        )
    if spec.collected == "travels" and spec.clock == "real":
        raise ValueError("collected: travels needs clock: simulated: no process sends samples")
    if not spec.plans:
        return
    if spec.late == "next_round":
        raise ValueError(
            "late: next_round needs schedule: own_data or equal: an unfinished planned share is planned again"
        )
    if spec.partial_work:
        raise ValueError("partial_work needs schedule: own_data or equal: a planned share is always trained on whole")
    if spec.overselection:
        raise ValueError("overselection needs schedule: own_data or equal: no planned share is surplus")
