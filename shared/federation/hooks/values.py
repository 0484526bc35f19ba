"""What hooks work with: FedAvg's records, which are the defaults, and the values that hooks answer with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from shared.core.aggregation_rules import Mean
from shared.core.records import ModelState, Record, Tensor, TensorMap
from shared.core.scores import Score
from shared.federation.context import Context
from shared.federation.messages import Task
from shared.federation.test_sets import Samples, TestSet
from shared.training.loop import Batch, Correct, Objective, Step, Trained, Transform

# ---- FedAvg's records, the defaults


class Broadcast(Record):
    """Down: the global model (at the edge: the edge's)."""

    model: ModelState


class Update(Record):
    """Up: trained minus received, weighted by samples."""

    delta: Annotated[ModelState, Mean(weight="samples")]


class GlobalModel(Record):
    """The cloud's state: the global model."""

    model: ModelState


class EdgeModel(Record):
    """The edge's state: within a round the model from which the edge round started and the one after it.

    The default hooks keep the fields that a subclass adds.
    """

    start: ModelState = Field(default_factory=dict)
    received: ModelState = Field(default_factory=dict)
    model: ModelState = Field(default_factory=dict)


class OwnBuffers(Record):
    """The device's state: its own batch-norm statistics, where they stay local."""

    buffers: ModelState = Field(default_factory=dict)


# ---- what hooks work with


@dataclass(frozen=True)
class Fit:
    """A trained model and what the training counted."""

    model: TensorMap
    trained: Trained


class Trainer(Protocol):
    """The workbench of a client: its samples, its model, the one training loop. All in torch's own memory."""

    @property
    def task(self) -> Task:
        """What the visit is to do."""
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
        """Images and labels of one part of the data set; `Samples` are positions in them. Read-only."""
        ...

    def images(self, samples: Samples) -> Tensor:
        """Images as the model gets them: float32, (n, channels, height, width)."""
        ...

    @property
    def test_sets(self) -> Mapping[str, TestSet]:
        """The run's named test sets that consist of clients' own; see `Population`."""
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
        """What `fit` with the same arguments trains on: shuffled batches, augmented where the spec says so."""
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
        """Train from `start` as the work says, on the visit's samples or on others; see `shared.training.loop.train`.

        Args:
            ctx: of the visit.
            start: all of the model's tensors; those of a sub-network (`Ctx.units`) train that, physically smaller.
            samples: others than the visit's.
            purpose: names the stream that shuffles, and that which augments.
            epochs: others than the work's.
            trains: names of the parameters that get a gradient, and are handed to `correct` and `step`; None = all.
            objective, correct, transform, step: of the loop. A transform comes after the augmentation.
        """
        ...

    def evaluate(
        self, model: Mapping[str, Any], samples: Samples | None = None, *, transform: Transform | None = None
    ) -> Score:
        """Evaluate a model, or a sub-network, on the client's test samples, or on others; they are not augmented."""
        ...

    def importance(self, model: Mapping[str, Any], samples: Samples) -> TensorMap:
        """How much each unit of a model counts on these samples, by group; see `shared.training.pruning`."""
        ...


@dataclass(frozen=True)
class Begin:
    """How an edge's round begins.

    Attributes:
        through: the sums of the only edge round go up as they are; the edge forms no model of its own.
    """

    state: Any
    edge_rounds: int = 1
    through: bool = False


@dataclass(frozen=True)
class Verdict:
    """Whether a seat's held update is fetched, with the algorithm's word for it and figures for the record.

    Attributes:
        keep: whether a refused seat keeps the state of this visit; None = as the algorithm's `on_refusal` says.
    """

    upload: bool
    keep: bool | None = None
    label: str | None = None
    reason: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission:
    """The verdicts on the reports of a wave, by seat."""

    state: Any
    verdicts: dict[int, Verdict]


@dataclass(frozen=True)
class Advance:
    """After a wave: another one for the seats in `again`? Who is retired, and why?"""

    state: Any
    again: Sequence[int] = ()
    retire: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finish:
    """What the edge remembers and what it sends: its own update, or None for the sums of the round as they are."""

    state: Any
    update: Record | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Local:
    """What a visit leaves behind: the seat's state, its update (None: no contribution), its model to be tested.

    Attributes:
        n_passed: samples passed through the model to learn something besides, counted as often as that; their time is
            that of training; what is expected of it says `Footprint.passes`.
        n_trained: where other networks than the run's model were trained, on how many samples that could have been in
            as many operations; None: on those of `trained` and `n_passed`.
    """

    state: Any
    update: Record | None
    model: TensorMap | None = None
    trained: Trained | None = None
    n_passed: int = 0
    n_trained: int | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """A named stretch of rounds; in `collect` seats compute updates without training."""

    name: str
    num_rounds: int
    kind: Literal["train", "collect"] = "train"
