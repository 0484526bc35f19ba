"""The values that hooks return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

from shared.core.tensor_records import TensorMap
from shared.federation.hooks.records import DeviceState, EdgeState, Up
from shared.training.loop import Trained


@dataclass(frozen=True)
class Begin(Generic[EdgeState]):
    """The beginning of an edge's round.

    Attributes:
        state: the edge's state, with the broadcast taken in.
        edge_rounds: number of edge rounds that follow.
        forward_sum: whether the exact sum of the devices' updates goes up unchanged: the edge forms no model.
    """

    state: EdgeState
    edge_rounds: int = 1
    forward_sum: bool = False


@dataclass(frozen=True)
class Verdict:
    """The decision on an update, which waits at its device.

    Attributes:
        upload: whether the update is uploaded.
        keep: whether a refused device keeps the state of this task; None means that the algorithm's `on_refusal`
            decides.
        label: the algorithm's name for the decision, such as a class of devices.
        reason: why it was refused.
        figures: JSON values for the task's record.
    """

    upload: bool
    keep: bool | None = None
    label: str | None = None
    reason: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission(Generic[EdgeState]):
    """The edge's state after it has decided on a dispatch's reports, and the verdicts by device."""

    state: EdgeState
    verdicts: dict[int, Verdict]


@dataclass(frozen=True)
class Advance(Generic[EdgeState]):
    """The end of a dispatch.

    Attributes:
        state: the edge's state.
        revisit: the devices that get a task in a further dispatch; without any the edge round ends.
        retire: the devices that take no further part in the run, with the reason.
    """

    state: EdgeState
    revisit: Sequence[int] = ()
    retire: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finish(Generic[EdgeState, Up]):
    """The end of an edge's round.

    Attributes:
        state: the edge's state until the next round.
        update: the edge's update; None means that the exact sum of its devices' updates goes up unchanged.
        figures: JSON values for the round's record.
    """

    state: EdgeState
    update: Up | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Local(Generic[DeviceState, Up]):
    """What a training task leaves behind.

    Attributes:
        state: the device's new state.
        update: the device's update; None means that it contributes nothing.
        model: the trained model, which `personalise` may return to be tested.
        trained: the steps, samples, loss and hits of the training.
        n_passed: samples passed through the model for training besides those in `trained`, each pass counted; they take
            as much simulated time. `Footprint.passes` predicts them.
        n_trained: if other networks than the run's model were trained: the number of samples on which the run's model
            could have been trained in as many operations. None means those of `trained` and `n_passed`.
        figures: numbers for the task's record.
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
    """Consecutive rounds of one purpose. In a phase of kind `collect` devices compute updates without training."""

    name: str
    num_rounds: int
    kind: Literal["train", "collect"] = "train"
