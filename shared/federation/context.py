"""`Context`: what a hook may know of where it stands, and its random streams.

A random stream is keyed by (seed, place, round, edge round, wave, purpose). The place is the seat's number at a device
and the edge's number at an edge, never a process, so that a seat draws the same numbers whichever agent hosts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import TypeVar

from shared.core.errors import BadInput
from shared.core.randomness import stream_seed
from shared.core.records import Record
from shared.simulation.cost_model import LinkUse, Passes
from shared.simulation.digital_twin import Twin
from shared.spec.experiment import ExperimentSpec
from shared.training.description import Classes, Sample, Target
from shared.training.models import Layer
from shared.training.subnetworks.units import Units

Params = TypeVar("Params", default=Any)


@dataclass(frozen=True)
class ModelInfo:
    """The model of a run, as hooks and policies see it.

    Attributes:
        trainable_names: names of the parameters that training changes, in the model's order: that in which a correction
            and a step get parameters and gradients.
        frozen_names: names of its other parameters (`requires_grad` is False). They have the same bits in all models of
            a run, travel down with the model, and never up.
        buffer_names: names of its buffers; all other names are parameters.
        norm_names: names of the parameters of its batch-norm.
        sample: one sample as it gets it.
        target: what it is to say of a sample; has the default loss.
        n_bytes: of its tensors.
        flops: operations of training it on one sample; if the objective draws at random what it computes, the mean.
        least_batch: samples that a batch must have for the model to train on it.
        passes: how many samples a visit passes through the model.
        link_use: bytes of the model as a device receives it, and of the tensors that a device sends, each in the
            encoding that spec and algorithm give it.
        sample_bytes: size of one training sample as it travels.
        read_layers: computes `layers`.
        read_units: computes `units`.
    """

    trainable_names: tuple[str, ...] = ()
    frozen_names: frozenset[str] = frozenset()
    buffer_names: frozenset[str] = frozenset()
    norm_names: frozenset[str] = frozenset()
    sample: Sample = field(default_factory=lambda: Sample((0, 0, 0), images=True))
    target: Target = field(default_factory=lambda: Classes(1))
    n_bytes: int = 0
    flops: int = 0
    least_batch: int = 1
    passes: Passes = field(default_factory=Passes)
    link_use: LinkUse = field(default_factory=LinkUse)
    sample_bytes: int = 0
    read_layers: Callable[[], tuple[Layer, ...]] = tuple
    read_units: Callable[[], Units] | None = None

    def trainable_in(self, names: Iterable[str]) -> list[str]:
        """Returns those of some names of the model that are trainable parameters, in the given order."""
        return [name for name in names if name not in self.buffer_names and name not in self.frozen_names]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The model's layers with parameters, from input to output as a forward pass uses them."""
        return self.read_layers()

    @property
    def units(self) -> Units:
        """The model's units, of which sub-networks keep some.

        Raises:
            BadInput: the units of this model are not known.
        """
        if self.read_units is None:
            raise BadInput("units are not known here", field="model.name")
        return self.read_units()


@dataclass(frozen=True)
class EdgeView:
    """What an edge knows when it selects seats and schedules their work.

    Attributes:
        losses: by seat, the training loss of the last visit whose answer arrived. An edge keeps losses of earlier
            rounds only if the spec's selection policy uses them.
        twins: in `schedule`, at an edge that keeps digital twins, their present state by seat.
        unfinished: in a further wave of planned shares, the samples that are still to be trained on; None means all.
    """

    losses: Mapping[int, float] = field(default_factory=dict)
    twins: Mapping[int, Twin] = field(default_factory=dict)
    unfinished: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Context(Generic[Params]):
    """Where a hook stands: in which run, round and wave, at which edge and seat.

    Attributes:
        spec: the resolved spec.
        params: the algorithm's own parameters.
        phase: name of the present phase.
        round_no: the round, from 1.
        edge_round: the edge round, from 0.
        wave: the wave, from 0.
        n_clients: training clients of the run (seats, or edges with `client: edge`).
        edge: number of the edge that this hook runs for. For a seat it is the edge that the seat visits; a selection
            policy is called for each home edge. None at the cloud.
        seat: number of the seat; None at cloud and edge.
        model: the run's model.
        buffers: what happens to float buffers: `average`, `local` or `drop`.
        n_updates: in `aggregate`, the number of updates of which the mean was taken; an edge's own counts as one.
        n_samples: in `aggregate`, in a visit, and at an edge that finishes a round, the training samples behind the
            update: its weight; 0 if no device answered.
        staleness_weight: in `aggregate`, the mean staleness weight of these updates; 1 where a tier waits for all.
        total_samples: training samples of all seats of the run.
        total_clients: seats of the run that train, whether an agent hosts them at present or not.
    """

    spec: ExperimentSpec
    params: Params
    phase: str
    round_no: int
    n_clients: int
    edge_round: int = 0
    wave: int = 0
    edge: int | None = None
    seat: int | None = None
    model: ModelInfo = field(default_factory=ModelInfo)
    buffers: str = "average"
    n_updates: int = 0
    n_samples: int = 0
    staleness_weight: float = 1.0
    total_samples: int = 0
    total_clients: int = 1

    @property
    def lr(self) -> float:
        """The learning rate of devices in this round."""
        return self.spec.lr_at(self.round_no)

    def at(self, **changes: Any) -> Self:
        """A copy with other values: `ctx.at(edge_round=1, wave=0)`. Made several times a visit, so not by `replace`."""
        if not changes.keys() <= vars(self).keys():
            raise TypeError(f"a context has no {sorted(changes.keys() - vars(self).keys())}")
        made = object.__new__(type(self))
        vars(made).update(vars(self) | changes)
        return made

    @property
    def client_id(self) -> str:
        """Key of this client in `PerClient` fields: `device-3`, or `edge-1` where the edge is the client."""
        if self.spec.client == "edge" or self.seat is None:
            return f"edge-{self.edge}"
        return device_id(self.seat)

    def seed(self, purpose: str) -> int:
        """A 63-bit seed for this purpose at this place and time of the run."""
        actor = "cloud" if self.edge is None and self.seat is None else ""
        actor = actor or (f"edge {self.edge}" if self.seat is None else f"seat {self.seat}")
        key = f"{self.spec.seed}|{actor}|{self.round_no}|{self.edge_round}|{self.wave}|{purpose}"
        return stream_seed(key)

    def rng(self, purpose: str) -> torch.Generator:
        """A torch generator for this purpose at this place and time of the run."""
        return torch.Generator().manual_seed(self.seed(purpose))

    def numpy_rng(self, purpose: str) -> np.random.Generator:
        """A numpy generator for this purpose at this place and time of the run."""
        return np.random.default_rng(self.seed(purpose))


def device_id(seat: int) -> str:
    """The key of a device in `PerClient` fields."""
    return f"device-{seat}"


class NoParams(Record):
    """An algorithm without parameters of its own."""
