"""Trying code of a user before a run starts: a training step and an evaluation of two clients, by the run's own means.

What raises, returns something else, or depends on the order of clients is then known before any round.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from shared.core.errors import BadInput, NotFinite
from shared.core.user_code import user_code
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Task
from shared.federation.population import Seat
from shared.federation.test_sets import Samples
from shared.federation.visits.trainer import LocalTrainer, trainer_for
from shared.training.loop import Batch
from shared.training.stacked.memory import padded_rows
from shared.training.stacked.training import Device

SEATS = 2
"""Clients that are tried, one after the other."""
STEPS = 2
"""Steps of each: a second one shows what cannot follow a first, as a state that keeps the graph of the step before."""


def try_run(experiment: Experiment) -> None:
    """Tries a run that calls code of a user; a loss that is not finite is left to the visits.

    Raises:
        StrataError: as a visit of the run would; or a client's result depends on the one before it.
    """
    if not experiment.has_plugins:
        return
    seats = list(islice((s for s in experiment.population.seats if s.n_train >= experiment.least_batch), SEATS))
    try:
        found = [_trained(experiment, seat) for seat in (*seats, *seats[:1])]
        if seats and experiment.spec.vectorised is not None and experiment.spec.vectorised.width > 1:
            _check_places(experiment, seats[0])
    except NotFinite:
        return
    for name, tensor in found[0].items() if found else ():
        if not torch.equal(tensor, found[-1][name]):
            raise BadInput(_depends(experiment, name), field="model.name")


def _depends(experiment: Experiment, name: str) -> str:
    what = f"{experiment.spec.model}: {name} of a client depends on which client the process trained before"
    why = "the model, or another plug-in, keeps or draws something that cannot be set back"
    return f"{what}; {why}: keep it in the module, and draw from torch's, numpy's or Python's default generator"


def _trained(experiment: Experiment, seat: Seat) -> dict[str, Tensor]:
    """Trains a client's model for some steps and evaluates it."""
    trainer, ctx = _trainer(experiment, seat), _context(experiment, seat)
    experiment.device.seed(ctx.seed("torch"), all_generators=experiment.draws_freely)
    with user_code(f"a training step of {experiment.spec.model}", "model.name"):
        return _fitted(experiment, trainer, ctx)


def _fitted(experiment: Experiment, trainer: LocalTrainer, ctx: Context) -> dict[str, Tensor]:
    fit = trainer.fit(ctx, experiment.device.to_device(experiment.initial), steps=STEPS)
    tests = experiment.population.test
    score = trainer.evaluate(fit.model, Samples(tests.part, tests.indices[: experiment.spec.batch_size]))
    experiment.scoring.evaluation(score)
    return dict(fit.model)


def _trainer(experiment: Experiment, seat: Seat) -> LocalTrainer:
    experiment.population.prepare([seat.number])
    task = Task(kind="train", batch_size=experiment.spec.batch_size, steps=1)
    return trainer_for(experiment, task, seat.train, seat.test, seat=seat.number)


def _context(experiment: Experiment, seat: Seat) -> Context:
    phase = experiment.phase_of(1).name
    ctx = experiment.ctx(phase=phase, round_no=1, n_clients=experiment.population.n_training, edge=seat.home_edge)
    return ctx.at(seat=seat.number, n_samples=len(seat.train))


def _check_places(experiment: Experiment, seat: Seat) -> None:
    """Checks that a device of a stack is trained the same whatever the others of its stack hold.

    Raises:
        BadInput: it is not, as if the model computes with all rows of a batch.
    """
    trainer, ctx = _trainer(experiment, seat), _context(experiment, seat)
    (x, y), *_ = trainer.batches(ctx, steps=1)
    start = experiment.initial
    one, other = (_first_of_stack(experiment, start, x, y, others) for others in (x, x.flip(0) * 2 + 1))
    for name, tensor in one.items():
        if not torch.allclose(tensor, other[name], rtol=1e-3, atol=1e-5):
            why = f"{name} of a device depends on the samples of the others that train with it"
            what = f"vectorised: {experiment.spec.model} cannot train many devices at once"
            raise BadInput(f"{what}: {why}", field="vectorised")


def _first_of_stack(experiment: Experiment, start: Any, x: Tensor, y: Tensor, others: Tensor) -> dict[str, Tensor]:
    """The model of the first of two devices of a stack, after two steps."""
    stack, n = experiment.stack_trainer, len(y)
    rows = padded_rows(n, experiment.spec.batch_size)
    parts = [(x, y), (others, y)]

    def batches() -> Iterator[Batch]:
        for _ in range(2):
            whole_x = x.new_zeros(stack.width * rows, *x.shape[1:])
            whole_y = torch.zeros(stack.width * rows, *y.shape[1:], dtype=y.dtype, device=y.device)
            for place, (px, py) in enumerate(parts):
                whole_x[place * rows : place * rows + n], whole_y[place * rows : place * rows + n] = px, py
            yield whole_x, whole_y

    devices = [Device(start, [n, n], None, torch.Generator().manual_seed(0)) for _ in parts]
    found = stack.train(devices, rows, batches(), lr=experiment.spec.lr)[0]
    return {} if isinstance(found, NotFinite) else found[0]
