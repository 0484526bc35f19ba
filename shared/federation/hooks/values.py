"""FedAvg's records, which are the hooks' defaults; the trainer; and the values that hooks return."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field
from typing_extensions import TypeVar

from shared.core.aggregation_rules import Mean
from shared.core.records import Nothing, Record
from shared.core.scores import Score
from shared.core.tensor_records import ModelState, Tensor, TensorMap
from shared.federation.context import Context
from shared.federation.messages import Task
from shared.federation.test_sets import Samples, TestSet
from shared.training.loop import Batch, Correct, Objective, Step, Trained, Transform

# ---- FedAvg's records, the defaults


class Broadcast(Record):
    """Down: the global model from the cloud, the edge's model from an edge."""

    model: ModelState


class Update(Record):
    """Up: trained minus received, averaged by number of samples."""

    delta: Annotated[ModelState, Mean(weight="samples")]


class GlobalModel(Record):
    """The cloud's state: the global model."""

    model: ModelState


class EdgeModel(Record):
    """The edge's state, empty between rounds; the default hooks keep the fields that a subclass adds.

    Attributes:
        start: the model from which the present edge round starts.
        received: the model received from the cloud in this round.
        model: the edge's model, after the last wave.
    """

    start: ModelState = Field(default_factory=dict)
    received: ModelState = Field(default_factory=dict)
    model: ModelState = Field(default_factory=dict)


class OwnBuffers(Record):
    """The device's state: its own batch-norm statistics, if they stay local."""

    buffers: ModelState = Field(default_factory=dict)


# ---- the records that an algorithm's hook classes name; FedAvg's unless they are named

CloudState = TypeVar("CloudState", bound=GlobalModel, default=GlobalModel)
EdgeState = TypeVar("EdgeState", bound=EdgeModel, default=EdgeModel)
DeviceState = TypeVar("DeviceState", bound=Record, default=OwnBuffers)
Down = TypeVar("Down", bound=Broadcast, default=Broadcast)
Up = TypeVar("Up", bound=Record, default=Update)
Message = TypeVar("Message", bound=Broadcast, default=Down)
Report = TypeVar("Report", bound=Record, default=Nothing)


# ---- the trainer


@dataclass(frozen=True)
class Fit:
    """A trained model, and the steps, samples, loss and hits that its training counted."""

    model: TensorMap
    trained: Trained


class Trainer(Protocol):
    """Trains and evaluates models on one client's samples. Its tensors are torch's own, never views of a message."""

    @property
    def task(self) -> Task:
        """The task of this visit: kind, epochs or steps, batch size."""
        ...

    @property
    def n_samples(self) -> int:
        """Number of training samples of this visit: the client's weight."""
        ...

    @property
    def samples(self) -> Samples:
        """The training samples of this visit."""
        ...

    @property
    def tests(self) -> Samples:
        """The client's own test samples."""
        ...

    def arrays(self, part: Literal["train", "test"]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Returns all images and labels of one part of the data set, read-only; `Samples` are positions in them.

        Images are uint8, (n, height, width) or (n, height, width, channels); labels are int64, (n,).
        """
        ...

    def images(self, samples: Samples) -> Tensor:
        """Returns images as the model gets them: float32, (n, channels, height, width), from -1 to 1."""
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
        trains: Collection[str] | None = None,
        objective: Objective | None = None,
        correct: Correct | None = None,
        transform: Transform | None = None,
        step: Step | None = None,
    ) -> Fit:
        """Trains from `start` as the task says; see `shared.training.loop.train`.

        Args:
            ctx: context of the visit.
            start: all tensors of the model, or of a physically smaller sub-network of it (`Context.units`).
            samples: training samples; None = those of the visit.
            purpose: name of the random streams that shuffle and augment.
            epochs: number of epochs; None = as the task says.
            trains: names of the parameters that get a gradient and are passed to `correct` and `step`; None = all.
            objective: replaces the mean cross-entropy; returns the loss of a batch, and the logits.
            correct: changes the gradients in place before each step.
            transform: applied to the images of each batch, after the augmentation.
            step: replaces the spec's optimiser.
        """
        ...

    def evaluate(
        self, model: Mapping[str, Any], samples: Samples | None = None, *, transform: Transform | None = None
    ) -> Score:
        """Returns a model's or sub-network's score on samples that are not augmented; None = the client's tests."""
        ...

    def importance(self, model: Mapping[str, Any], samples: Samples) -> TensorMap:
        """Returns the importance of each unit of a model on these samples, by group of units.

        See `shared.training.subnetworks.pruning`.
        """
        ...


# ---- what hooks return


@dataclass(frozen=True)
class Begin(Generic[EdgeState]):
    """The beginning of an edge's round.

    Attributes:
        state: the edge's state, with the broadcast taken in.
        edge_rounds: number of edge rounds that follow.
        through: whether the exact sum of the devices' updates goes up unchanged: the edge forms no model.
    """

    state: EdgeState
    edge_rounds: int = 1
    through: bool = False


@dataclass(frozen=True)
class Verdict:
    """The decision on a seat's update, which waits at the device.

    Attributes:
        upload: whether the update is uploaded.
        keep: whether a refused seat keeps the state of this visit; None = as the algorithm's `on_refusal` says.
        label: the algorithm's name for the decision, such as a class of devices.
        reason: why it was refused.
        figures: JSON values for the visit's record.
    """

    upload: bool
    keep: bool | None = None
    label: str | None = None
    reason: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission(Generic[EdgeState]):
    """The edge's state after it has decided on a wave's reports, and the verdicts by seat."""

    state: EdgeState
    verdicts: dict[int, Verdict]


@dataclass(frozen=True)
class Advance(Generic[EdgeState]):
    """The end of a wave.

    Attributes:
        state: the edge's state.
        again: the seats that are visited in a further wave of this edge round; none = the edge round ends.
        retire: the seats that take no further part in the run, with the reason.
    """

    state: EdgeState
    again: Sequence[int] = ()
    retire: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finish(Generic[EdgeState, Up]):
    """The end of an edge's round.

    Attributes:
        state: the edge's state until the next round.
        update: the edge's update; None = the exact sum of its devices' updates goes up unchanged.
        figures: JSON values for the round's record.
    """

    state: EdgeState
    update: Up | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Local(Generic[DeviceState, Up]):
    """What a training visit leaves behind.

    Attributes:
        state: the seat's new state.
        update: the seat's update; None = it contributes nothing.
        model: the trained model, which `personalise` may return to be tested.
        trained: the steps, samples, loss and hits of the training.
        n_passed: samples passed through the model for training besides those in `trained`, each pass counted; they take
            as much simulated time. `Footprint.passes` predicts them.
        n_trained: if other networks than the run's model were trained: the number of samples on which the run's model
            could have been trained in as many operations. None = those of `trained` and `n_passed`.
        figures: numbers for the visit's record.
    """

    state: DeviceState
    update: Up | None
    model: TensorMap | None = None
    trained: Trained | None = None
    n_passed: int = 0
    n_trained: int | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """Consecutive rounds under one name. In a phase of kind `collect` seats compute their updates without training."""

    name: str
    num_rounds: int
    kind: Literal["train", "collect"] = "train"
