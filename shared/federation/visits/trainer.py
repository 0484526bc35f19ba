"""`LocalTrainer`: trains and evaluates models on one client's samples, on behalf of the hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from shared.core.errors import BadInput
from shared.core.randomness import stream_seed
from shared.core.scores import Score
from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import Fit
from shared.federation.messages import Task
from shared.federation.test_sets import Indices, Samples, TestSet
from shared.training import models
from shared.training.batch_norm import moments
from shared.training.data.augmentation import as_floats, as_pixels, augmented, augmented_apart
from shared.training.data.dataset import as_batch
from shared.training.evaluation import evaluate
from shared.training.loop import (
    CPU,
    Batch,
    Correct,
    Objective,
    Step,
    Stopped,
    Transform,
    batches,
    shuffles,
    train,
)
from shared.training.optimizers import step_of
from shared.training.specs import AugmentSpec
from shared.training.subnetworks.pruning import importance
from shared.training.subnetworks.units import resized

Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Samples and targets."""
Source = tuple[npt.NDArray[Any], npt.NDArray[Any], Indices]
"""Samples and targets, and the positions of some of them."""
MEASURED = 512
"""Batch size in which the importance of units is measured; a different one would change its last bits."""


@dataclass
class LocalTrainer:
    """The `Trainer` that hooks get: the training loop on one client's samples.

    Attributes:
        experiment: of the run.
        task: epochs or steps, batch size.
        train: positions of the client's training samples in the data set.
        find_tests: returns the client's test samples; many visits do not look at them.
        stopped: called between batches; True ends training with `Cancelled`.
        seat: the client's, whose training samples may have faults; None means an edge or the cloud.
    """

    experiment: Experiment
    task: Task
    train: Indices
    find_tests: Callable[[], Samples]
    stopped: Stopped | None = None
    seat: int | None = None
    _copies: dict[tuple[str, bytes], Arrays] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def tests(self) -> Samples:
        """The client's test samples."""
        return self.find_tests()

    @property
    def n_samples(self) -> int:
        """Number of training samples of this visit: the client's weight."""
        return len(self.train)

    @property
    def samples(self) -> Samples:
        """The training samples of this visit."""
        return Samples("train", self.train)

    def arrays(self, part: Literal["train", "test"]) -> Arrays:
        """Samples and targets of one part of the data set."""
        data = self.experiment.data
        return self._train_arrays if part == "train" else (data.test_x, data.test_y)

    @cached_property
    def _train_arrays(self) -> Arrays:
        faults = self.experiment.faults
        data = self.experiment.data if faults is None else faults.data_of(self.seat)
        return data.train_x, data.train_y

    def inputs(self, samples: Samples) -> Tensor:
        """Samples as the model takes them, (n, ...), on the compute device."""
        x, _ = self.arrays(samples.part)
        return self.experiment.data.encode(x[samples.indices]).to(self.experiment.device.device)

    @property
    def test_sets(self) -> Mapping[str, TestSet]:
        """The run's named test sets, each made of clients' test samples."""
        return self.experiment.population.test_sets

    def batches(
        self,
        ctx: Context,
        *,
        samples: Samples | None = None,
        purpose: str = "batches",
        epochs: int | None = None,
        steps: int | None = None,
        augment: bool = True,
    ) -> Iterator[Batch]:
        """Shuffled training batches on the compute device, augmented if the spec says so."""
        samples = self.samples if samples is None else samples  # an empty set is a choice, too
        how = ctx.spec.augment if augment else None
        x, y, indices = self.source(ctx, samples, augment=augment)
        device, anew = self.experiment.device.device, how is not None and how.when == "load"
        stored = x is self.experiment.data.train_x or x is self.experiment.data.test_x
        cache = self.experiment.samples if stored and not anew else None
        drawing = self._drawing(ctx, purpose, epochs, steps)
        encode, own = (as_batch, CPU) if anew else (self.experiment.data.encode, device)  # pixels are augmented
        drawn = batches(x, y, indices, device=own, cache=cache, encode=encode, **drawing)
        if how is None or not anew:
            return drawn
        draws = ctx.rng(f"{purpose} augmented")
        seeds = (int(torch.randint(2**62, (), generator=draws)) for _ in count())
        changed = ((augmented(as_pixels(x), how, seed), y) for (x, y), seed in zip(drawn, seeds, strict=False))
        normalisation = self.experiment.data.normalisation
        return ((as_floats(x.to(device), normalisation), y.to(device)) for x, y in changed)

    def order(self, ctx: Context) -> list[Tensor]:
        """Positions, among the samples of `source`, of each batch that `batches` yields by default."""
        return list(shuffles(len(self.train) * ctx.spec.versions, **self._drawing(ctx, "batches")))

    def _drawing(
        self, ctx: Context, purpose: str, epochs: int | None = None, steps: int | None = None
    ) -> dict[str, Any]:
        """The arguments of `shuffles`: how many batches of which size, and the stream that shuffles them."""
        if epochs is None and steps is None:
            steps = self.task.steps
        if epochs is None and steps is None:
            epochs = ctx.spec.local_epochs if self.task.epochs is None else self.task.epochs
        return {
            "batch_size": self.task.batch_size,
            "generator": ctx.rng(purpose),
            "epochs": epochs,
            "steps": steps,
            "least": ctx.model.least_batch,
        }

    def source(self, ctx: Context, samples: Samples, *, augment: bool = True) -> Source:
        """Where samples and targets lie: in the data set or, augmented before training, in arrays of the client's own.

        Arrays that are expanded hold the images in the order of `samples`, then a copy of each in the same order.
        """
        how = ctx.spec.augment if augment else None
        if how is None or how.when == "load":
            return *self.arrays(samples.part), samples.indices
        key = (samples.part, samples.indices.tobytes())
        if key not in self._copies:
            self._copies[key] = self._augmented(ctx, samples, how)
        x, y = self._copies[key]
        return x, y, np.arange(len(y), dtype=np.int64)

    def _augmented(self, ctx: Context, samples: Samples, how: AugmentSpec) -> Arrays:
        """An augmented copy of these samples, after the samples themselves if copies expand them.

        The augmentation of an image depends on the spec's seed and the image's index alone; if it expands, also on
        seat and visit, so that each visit has copies of its own, the same in all of its epochs.
        """
        x, y = self.arrays(samples.part)
        names = [f"augmented|{samples.part} {index}" for index in samples.indices]
        seeds = [ctx.seed(name) if how.when == "expand" else stream_seed(f"{ctx.spec.seed}|{name}") for name in names]
        own, targets = x[samples.indices], y[samples.indices]
        made = augmented_apart(as_pixels(as_batch(own)), how, seeds)
        images = (made[:, 0] if x.ndim == 3 else made.permute(0, 2, 3, 1)).numpy()
        if how.when == "once":
            return images, targets
        return np.concatenate([own, images]), np.concatenate([targets, targets])

    def fit(
        self,
        ctx: Context,
        start: Mapping[str, Any],
        *,
        samples: Samples | None = None,
        purpose: str = "batches",
        epochs: int | None = None,
        steps: int | None = None,
        trains: Collection[str] | None = None,
        objective: Objective | None = None,
        correct: Correct | None = None,
        transform: Transform | None = None,
        step: Step | None = None,
    ) -> Fit:
        """Trains from `start` for the task's epochs or steps, or for those given; see `Trainer.fit`."""
        model, spec = self._network(start), ctx.spec
        others = () if trains is None else ((name, p) for name, p in model.named_parameters() if name not in trains)
        frozen = [p for _, p in others if p.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            trained = train(
                model,
                self.batches(ctx, samples=samples, purpose=purpose, epochs=epochs, steps=steps),
                lr=ctx.lr,
                momentum=spec.momentum,
                weight_decay=spec.weight_decay,
                loss=self.experiment.scoring.batch_loss,
                objective=objective_for(self.experiment, ctx, objective),
                correct=correct,
                transform=transform,
                step=step or step_of(spec.optimizer, ctx.lr, spec.weight_decay),
                stopped=self.stopped,
                target=self.experiment.data.target,
                weight_of=self.experiment.scoring.weight_of,
            )
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
        found = models.read_state(model)
        _check_same(found, start, spec.model.name)
        return Fit(found, trained)

    def evaluate(
        self, model: Mapping[str, Tensor], samples: Samples | None = None, *, transform: Transform | None = None
    ) -> Score:
        """Evaluates a model on the client's test samples, or on `samples`."""
        samples = self.tests if samples is None else samples
        x, y = self.arrays(samples.part)
        data, scoring = self.experiment.data, self.experiment.scoring
        with self.experiment.evaluating():
            found = evaluate(
                self._network(model),
                x,
                y,
                samples.indices,
                transform=transform,
                stopped=self.stopped,
                target=data.target,
                encode=data.encode,
                loss_sum_of=scoring.loss_sum,
                states_of=scoring.states,
                weight_of=scoring.weight_of,
            )
        return Score(
            n=found.n,
            n_correct=found.n_correct,
            loss_sum=found.loss_sum,
            loss_weight=found.loss_weight,
            states=dict(found.states),
        )

    def importance(self, model: Mapping[str, Tensor], samples: Samples) -> TensorMap:
        """Importance of each unit of a model on these samples."""
        parts = range(0, len(samples), MEASURED)
        images = (self.inputs(Samples(samples.part, samples.indices[at : at + MEASURED])) for at in parts)
        return importance(self._network(model), self.experiment.units, images)

    def moments(self, model: Mapping[str, Tensor], samples: Samples) -> TensorMap:
        """Mean and mean square of what each batch-norm of a model receives on these samples."""
        parts = np.array_split(samples.indices, math.ceil(len(samples) / MEASURED) or 1)  # none of a single sample
        images = (self.inputs(Samples(samples.part, part)) for part in parts)
        return moments(self._network(model), images)

    def _network(self, state: Mapping[str, Tensor]) -> nn.Module:
        """The scratch model as it was made, with this state, or, for a sub-network's state, that sub-network."""
        whole, shapes = self.experiment.model, self.experiment.shapes
        if state.keys() == shapes.keys() and any(tensor.shape != shapes[key].shape for key, tensor in state.items()):
            return resized(whole, self.experiment.units, state)
        models.write_state(whole, state)
        return whole


def _check_same(found: Mapping[str, Tensor], start: Mapping[str, Tensor], model: str) -> None:
    """Checks that training has left a model the tensors that it began with.

    Raises:
        BadInput: naming a tensor that appeared, went or has another shape.
    """
    for name in sorted(found.keys() | start.keys()):
        if name not in found or name not in start or found[name].shape != start[name].shape:
            why = "appears, goes or has another shape in training: make it in `__init__`"
            raise BadInput(f"{name} of the model {model} {why}", field="model.name")


def trainer_for(
    experiment: Experiment,
    task: Task,
    own: Indices,
    tests: Samples | Callable[[], Samples],
    stopped: Stopped | None = None,
    seat: int | None = None,
) -> LocalTrainer:
    """The trainer of one visit: on the samples that the task names, else on all of the client's own.

    Raises:
        BadInput: this machine lacks the spec's `device`.
    """
    experiment.device.make_repeatable()
    chosen = own if task.samples is None else task.samples.numpy().astype(np.int64)
    return LocalTrainer(experiment, task, chosen, tests if callable(tests) else lambda: tests, stopped, seat)


def objective_for(experiment: Experiment, ctx: Context, given: Objective | None) -> Objective | None:
    """The local objective: from the hooks, else from the spec's `algorithm.local`; None means that of the target.

    Raises:
        BadInput: the hooks give one although the spec names another.
    """
    if given is not None and experiment.spec.algorithm.local is not None:
        raise BadInput(f"{experiment.algorithm.name} has a local objective of its own", field="algorithm.local")
    if given is not None or experiment.local.objective is None:
        return given
    return experiment.local.objective(ctx.at(params=experiment.local_params))
