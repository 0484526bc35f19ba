"""`Ctx`: what a hook may know of where it stands, and its random streams.

A stream is keyed by (seed, who, round, edge round, wave, purpose). `who` is the seat at a device, the home edge's
number at an edge: so a seat draws the same however seats are spread over agents and edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
from shared.training.models import Layer
from shared.training.subnetworks.units import Units

Params = TypeVar("Params", default=Any)


@dataclass(frozen=True)
class Context(Generic[Params]):
    """Where a hook stands.

    Attributes:
        spec: the resolved spec.
        params: the algorithm's own parameters.
        phase: name of the present phase.
        round_no, edge_round, wave: 1-based round; 0-based edge round and wave.
        edge: number of the home edge, None at the cloud.
        seat: None at cloud and edge.
        n_clients: training clients of the run (seats, or edges with `client: edge`).
        n_updates: in `aggregate`, how many updates the mean is one of; an edge's own counts as one.
        buffer_names: names of the model's buffers; all other names are parameters.
        layers: the model's layers with parameters, from input to output.
        read_units: gives `units`.
        buffers: what happens to float buffers: `average`, `local` or `drop`.
        flops: operations of training the model on one sample; of an objective that draws what it does, the mean.
        least_batch: samples that a batch must have for the model to train on it.
        model_bytes: of its tensors.
        passes: how many samples a visit passes through the model.
        model_use: bytes of the model as a device receives it, and of the tensors that it sends up, in the forms that
            spec and algorithm give them.
        sample_bytes: of a training sample as it travels.
        losses: at an edge that selects by them, by seat, the training loss of the last visit that it heard of.
        twins: at an edge that keeps them, by seat, as they are when work is scheduled.
        unfinished: in a further wave, the samples that are still to be trained on; None: all.
        n_samples: in `aggregate`, and at an edge that finishes a round, those behind the update: its weight; 0 where
            nobody answered.
        total_samples: training samples of all seats of the run.
        total_clients: seats of the run that train, whether anybody sits there or not.
        image_shape: (channels, height, width) of the run's images.
        n_classes: of its labels.
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
    buffer_names: frozenset[str] = frozenset()
    layers: tuple[Layer, ...] = ()
    read_units: Callable[[], Units] | None = None
    buffers: str = "average"
    flops: int = 0
    least_batch: int = 1
    model_bytes: int = 0
    passes: Passes = field(default_factory=Passes)
    model_use: LinkUse = field(default_factory=LinkUse)
    sample_bytes: int = 0
    n_updates: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)
    twins: Mapping[int, Twin] = field(default_factory=dict)
    unfinished: npt.NDArray[np.int64] | None = None
    n_samples: int = 0
    total_samples: int = 0
    total_clients: int = 1
    image_shape: tuple[int, int, int] = (0, 0, 0)
    n_classes: int = 0

    def at(self, **changes: Any) -> Self:
        """The same context elsewhere: `ctx.at(edge_round=1, wave=0)`."""
        return replace(self, **changes)

    @property
    def units(self) -> Units:
        """The model's units, of which sub-networks keep some.

        Raises:
            BadInput: they are not known of this model.
        """
        if self.read_units is None:
            raise BadInput("units are not known here", field="model.name")
        return self.read_units()

    @property
    def client_id(self) -> str:
        """Key of this client in `Each` fields: `device-3`, or `edge-1` where the edge is the client."""
        if self.spec.client == "edge" or self.seat is None:
            return f"edge-{self.edge}"
        return f"device-{self.seat}"

    def seed(self, purpose: str) -> int:
        """A 63-bit seed for one purpose here and now."""
        who = "cloud" if self.edge is None and self.seat is None else ""
        who = who or (f"edge {self.edge}" if self.seat is None else f"seat {self.seat}")
        key = f"{self.spec.seed}|{who}|{self.round_no}|{self.edge_round}|{self.wave}|{purpose}"
        return stream_seed(key)

    def rng(self, purpose: str) -> torch.Generator:
        """A torch generator for one purpose here and now."""
        return torch.Generator().manual_seed(self.seed(purpose))

    def numpy_rng(self, purpose: str) -> np.random.Generator:
        """A numpy generator for one purpose here and now."""
        return np.random.default_rng(self.seed(purpose))


class NoParams(Record):
    """An algorithm without parameters of its own."""
