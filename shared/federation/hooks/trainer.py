"""The trainer that device hooks get: it trains and evaluates models on one client's samples."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt

from shared.core.scores import Score
from shared.core.tensor_records import Tensor, TensorMap
from shared.federation.context import Context
from shared.federation.messages import Task
from shared.federation.test_sets import Samples, TestSet
from shared.training.loop import Batch, Correct, Objective, Step, Trained, Transform


@dataclass(frozen=True)
class Fit:
    """A trained model, and the steps, samples, loss and hits that its training counted."""

    model: TensorMap
    trained: Trained


@dataclass(frozen=True)
class Training:
    """One device's training: the arguments of `Trainer.fit`.

    Attributes:
        start: all tensors of the model.
        correct: changes the gradients before each step; `Elementwise` where devices are to be trained many at once.
    """

    start: TensorMap
    correct: Correct | None = None


class Trainer(Protocol):
    """Trains and evaluates models on one client's samples. Its tensors are torch's own, never views of a message."""

    @property
    def task(self) -> Task:
        """The task itself: kind, epochs or steps, batch size."""
        ...

    @property
    def n_samples(self) -> int:
        """Number of training samples of this task: the client's weight."""
        ...

    @property
    def samples(self) -> Samples:
        """The training samples of this task."""
        ...

    @property
    def tests(self) -> Samples:
        """The client's own test samples."""
        ...

    def arrays(self, part: Literal["train", "test"]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns all samples and targets of one part of the data set, read-only; `Samples` are positions in them.

        They are as stored, see `Dataset`: images are uint8, (n, height, width) or (n, height, width, channels).
        """
        ...

    def inputs(self, samples: Samples) -> Tensor:
        """Returns samples as the model gets them, (n, ...): images as float32, (n, channels, height, width)."""
        ...

    @property
    def test_sets(self) -> Mapping[str, TestSet]:
        """The run's named test sets, each made of clients' parts; see `Population`."""
        ...

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
        """Yields the batches on which `fit` trains with the same arguments, shuffled and augmented as the spec says."""
        ...

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
        """Trains from `start` as the task says; see `shared.training.loop.train`.

        Args:
            ctx: context of the task.
            start: all tensors of the model, or of a physically smaller sub-network of it (`Context.units`).
            samples: training samples; None means those of the task.
            purpose: name of the random streams that shuffle and augment.
            epochs: number of epochs; None, with `steps` too, means what the task gives.
            steps: number of steps in place of epochs.
            trains: names of the parameters that get a gradient and are passed to `correct` and `step`; None means all
                that are not frozen, `ctx.model.trainable_names`.
            objective: replaces the loss of the data's target; returns the loss of a batch, and the outputs.
            correct: changes the gradients in place before each step.
            transform: applied to the samples of each batch, after the augmentation.
            step: replaces the spec's optimiser.
        """
        ...

    def evaluate(
        self, model: Mapping[str, Any], samples: Samples | None = None, *, transform: Transform | None = None
    ) -> Score:
        """Returns the score of a model or sub-network on unaugmented samples; by default on the client's tests."""
        ...

    def importance(self, model: Mapping[str, Any], samples: Samples) -> TensorMap:
        """Returns the importance of each unit of a model on these samples, by group of units.

        See `shared.training.subnetworks.pruning`.
        """
        ...

    def moments(self, model: Mapping[str, Any], samples: Samples) -> TensorMap:
        """Returns mean and mean square of what each batch-norm of a model receives on these samples.

        See `shared.training.batch_norm`.
        """
        ...
