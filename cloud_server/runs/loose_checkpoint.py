"""The state of a run whose cloud does not wait for all edges (`sync.edges`): a checkpoint with the orders in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field, TypeAdapter

from cloud_server.runs.checkpoint import Checkpoint
from cloud_server.runs.edge_client import EdgeReply
from shared.core.number_sets import NumberSet
from shared.core.records import Record
from shared.core.tensor_records import Tensor
from shared.federation.aggregation import PartialSum
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure, RoundAnswer

S = TypeVar("S")
Instant = Annotated[float, Field(ge=0)]


class Flight(Record):
    """An order in flight at one edge: what it takes to make the same order again.

    Attributes:
        edge: number of the edge, which has one order at a time.
        number: the order's `round_no`. It keys the order, the states that it saves and its random streams, so it grows
            from order to order of an edge and of a seat; it is above `version`, by one unless the edge had more orders
            than the model has versions.
        version: of the global model that was sent.
        clock_s: simulated seconds of the run at which it was sent.
        n_clients: training clients of the run at that instant.
        seats: that visit the edge.
    """

    edge: int
    number: int
    version: int
    clock_s: Instant
    n_clients: int
    seats: NumberSet


class Landed(Record):
    """A flight that has ended: with an answer, whose update and versions have been counted, or with a failure.

    Attributes:
        at_s: simulated seconds of the run at which the answer arrived, or the failure counts.
        staleness: versions that the global model was ahead of the one that was sent.
    """

    flight: Flight
    at_s: Instant
    staleness: int
    failure: Failure | None = None
    answer: RoundAnswer[Any] | None = None
    down_bytes: int = 0
    up_bytes: int = 0
    socket_bytes: int = 0
    testing_s: float = 0.0

    @classmethod
    def of(cls, flight: Flight, at_s: float, staleness: int, outcome: EdgeReply | Failure) -> Landed:
        """A flight with its outcome."""
        if isinstance(outcome, Failure):
            return cls(flight=flight, at_s=at_s, staleness=staleness, failure=outcome)
        counted: dict[str, Any] = {"partial_sum": None, "update": None, "bases": {}}
        fields = {**vars(outcome), "answer": RoundAnswer[Any].model_construct(**{**vars(outcome.answer), **counted})}
        return cls(flight=flight, at_s=at_s, staleness=staleness, **fields)

    def reply(self, begin_s: float) -> EdgeReply | None:
        """The answer for the record of a round that begins at this instant of the run; None of a failure."""
        if self.answer is None:
            return None
        shift_s = self.flight.clock_s - begin_s
        lines = tuple(line.model_copy(update={"begin_s": line.begin_s + shift_s}) for line in self.answer.lines)
        answer = self.answer.model_copy(update={"lines": lines})
        return EdgeReply(answer, self.down_bytes, self.up_bytes, self.socket_bytes, self.testing_s)


_LANDED = TypeAdapter(tuple[Landed, ...])


def packed(landed: Sequence[Landed]) -> Tensor:
    """Flights that have ended, as JSON in a tensor of bytes: the visits of many devices are too long for a header."""
    return torch.frombuffer(bytearray(_LANDED.dump_json(tuple(landed))), dtype=torch.uint8)


def unpacked(landed: Tensor | None) -> list[Landed]:
    """The flights in such a tensor."""
    return [] if landed is None else list(_LANDED.validate_json(landed.numpy().tobytes()))


class LooseCheckpoint(Checkpoint[S]):
    """The state of a run after a version of the global model, and while the next one is made of several answers.

    Attributes:
        begin_s: simulated seconds of the run at which the version `round_no` was made.
        clock_s: of the last event.
        flights: the orders in flight, by edge.
        states: the algorithm's earlier states from which they were made, by version.
        landed: the flights that have ended since `begin_s`, `packed`; None for none.
        total: the sum of their updates.
    """

    begin_s: Instant = 0.0
    clock_s: Instant = 0.0
    flights: tuple[Flight, ...] = ()
    states: dict[int, S] = Field(default_factory=dict)
    landed: Tensor | None = None
    total: PartialSum | None = None

    def state_of(self, version: int) -> S:
        """The algorithm's state of this version: the present one, or one that a flight needs."""
        return self.state if version == self.round_no else self.states[version]


def checkpoint_type(experiment: Experiment) -> Any:
    """The type in which a run's checkpoints are stored."""
    kind: Any = Checkpoint if experiment.spec.sync.edges.mode == "synchronous" else LooseCheckpoint
    return kind[experiment.algorithm.cloud_state]
