"""Visits that train at the same time: the devices of an order are put into stacks of the spec's `vectorised` width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shared.core.errors import BadInput, Cancelled
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import Fit, Training
from shared.federation.messages import Visit, VisitOrder
from shared.federation.visit_estimates import n_held
from shared.federation.visits.open_visit import OpenVisit
from shared.federation.visits.uploads import FinishedVisit
from shared.training.loop import Batch, Elementwise, Stopped, batch_sizes, samples_at
from shared.training.stacked.batches import Shuffled, gathered, joined
from shared.training.stacked.memory import padded_rows
from shared.training.stacked.training import Device


@dataclass(frozen=True)
class StackVisit:
    """An open visit that waits for the others of its stack.

    Attributes:
        training: what its device trains.
        correct: the training's correction.
        order: positions of each of its batches among its samples.
    """

    open: OpenVisit
    training: Training
    correct: Elementwise | None
    order: Sequence[torch.Tensor]

    @classmethod
    def of(cls, visit: OpenVisit) -> StackVisit:
        """Asks the algorithm what the visit trains, and draws its batches.

        Raises:
            BadInput: the algorithm's correction is written for one device only, or there is nothing to train on.
        """
        algorithm = visit.experiment.algorithm
        training = algorithm.device.training(visit.ctx, visit.state, visit.message)
        correct = training.correct
        if correct is not None and not isinstance(correct, Elementwise):
            why = f"{algorithm.name} corrects gradients by a function of one device, which is not an `Elementwise`"
            raise BadInput(f"vectorised: {why}", field="vectorised")
        return cls(visit, training, correct, visit.trainer.order(visit.ctx))

    @property
    def ctx(self) -> Context:
        """The visit's context."""
        return self.open.ctx

    def device(self) -> Device:
        """The visit's part in the stacked training."""
        dropout = torch.Generator().manual_seed(self.ctx.seed("torch"))
        return Device(self.training.start, [len(batch) for batch in self.order], self.correct, dropout)

    def end(self, fit: Fit | Exception) -> FinishedVisit:
        """Ends the visit with what its device has trained.

        Raises:
            Exception: `fit` is one, the reason why there is no trained model.
        """
        if isinstance(fit, Exception):
            raise fit
        visit, hooks = self.open, self.open.experiment.algorithm.device
        experiment = visit.experiment
        experiment.device.seed(self.ctx.seed("torch, trained"), all_generators=experiment.draws_freely)
        return visit.end(hooks.learned(visit.ctx, visit.state, visit.message, self.training, fit, visit.trainer))


def slices_of(
    experiment: Experiment, order: VisitOrder[Any], visits: Sequence[Visit], width: int
) -> Iterator[tuple[int, list[Visit]]]:
    """Yields up to `width` visits at a time that have the same number of padded rows in a batch, and that number.

    Visits of about as many steps come together, so that few places of a stack wait for others.
    """

    def shape(visit: Visit) -> tuple[int, int]:
        task, spec = visit.task, experiment.spec
        seat = experiment.seat_in(visit.seat, order.stage.round_no)
        sizes = batch_sizes(n_held(task, seat) * spec.versions, task.batch_size, experiment.least_batch)
        epochs = spec.local_epochs if task.epochs is None else task.epochs
        n_steps = epochs * len(sizes) if task.steps is None else task.steps
        return padded_rows(max(sizes, default=0), task.batch_size), n_steps

    shapes = {visit.seat: shape(visit) for visit in visits}
    for rows in sorted({rows for rows, _ in shapes.values()}):
        alike = [visit for visit in visits if shapes[visit.seat][0] == rows]
        alike.sort(key=lambda visit: -shapes[visit.seat][1])
        yield from ((rows, alike[begin : begin + width]) for begin in range(0, len(alike), width))


def stacks_of(visits: Sequence[StackVisit]) -> list[list[StackVisit]]:
    """Divides visits by the functions that correct their gradients; each stack is by falling number of steps."""
    stacks: list[list[StackVisit]] = []
    for visit in sorted(visits, key=lambda visit: -len(visit.order)):
        function = visit.correct and visit.correct.function
        for stack in stacks:
            other = stack[0].correct
            if (other and other.function) == function:
                stack.append(visit)
                break
        else:
            stacks.append([visit])
    return stacks


def fit_stack(stack: Sequence[StackVisit], rows: int, stopped: Stopped) -> list[Fit | Exception]:
    """Trains the devices of a stack; returns for each the trained model, or why there is none.

    Raises:
        Cancelled: `stopped` returned True.
    """
    experiment = stack[0].open.experiment
    spec, trainer = experiment.spec, experiment.stack_trainer
    try:
        found = trainer.train(
            [visit.device() for visit in stack],
            rows,
            _batches(stack, trainer.width, rows, experiment.device.device),
            lr=stack[0].ctx.lr,
            momentum=spec.momentum,
            weight_decay=spec.weight_decay,
            stopped=stopped,
        )
    except Cancelled:
        raise
    except Exception as error:
        return [error for _ in stack]
    return [each if isinstance(each, Exception) else Fit(*each) for each in found]


def _batches(stack: Sequence[StackVisit], width: int, rows: int, compute: torch.device) -> Iterator[Batch]:
    """The stacked batches; images are augmented one device after another if that is done at each load."""
    augment, experiment = stack[0].ctx.spec.augment, stack[0].open.experiment
    if augment is not None and augment.when == "load":
        return joined([visit.open.trainer.batches(visit.ctx) for visit in stack], width, rows, compute)
    sources = [visit.open.trainer.source(visit.ctx, visit.open.trainer.samples) for visit in stack]
    devices = [Shuffled(y[at], visit.order) for visit, (_, y, at) in zip(stack, sources, strict=True)]
    x = sources[0][0]
    if all(each is x for each, _, _ in sources):
        cache = experiment.samples if x is experiment.data.train_x else None
        samples = samples_at(x, np.concatenate([at for _, _, at in sources]), compute, cache, experiment.data.encode)
    else:
        whole = np.concatenate([each[at] for each, _, at in sources])
        samples = samples_at(whole, np.arange(len(whole)), compute, encode=experiment.data.encode)
    return gathered(devices, samples, width, rows, compute)
