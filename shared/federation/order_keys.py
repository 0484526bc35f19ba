"""The key of an order, read from its header before the order itself can be decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ConfigDict, ValidationError

from shared.core.errors import WireError
from shared.core.records import Record
from shared.federation.messages import VisitOrder, WaveId
from shared.federation.spec_parser import parse_spec
from shared.spec.experiment import ExperimentSpec
from shared.wire import codec


class OrderQueue(NamedTuple):
    """A queue of orders: they follow each other, and the answer to the newest replaces those before it.

    A run has one queue for each edge. With `clock: real` each seat of a wave has its own in an agent, since visits of
    several seats last at the same time; with asynchronous devices the orders that begin with the same seat.

    Attributes:
        wave: with `clock: real` round, edge round and wave; else empty.
        seat: with `clock: real` the seat; with asynchronous devices the first.
    """

    run_id: str
    edge: int
    wave: tuple[int, ...] = ()
    seat: int | None = None

    def may_continue(self, newest: OrderQueue) -> bool:
        """Whether more orders of this queue may come after one of the newest queue: the waves of an edge follow each
        other.
        """
        same = (self.run_id, self.edge) == (newest.run_id, newest.edge)
        return not same or self.wave >= newest.wave


@dataclass(frozen=True)
class OrderKey:
    """Identifies an order within its run: a tier answers the same order (same key, same digest) only once.

    Attributes:
        edge_round, wave: of an order to an agent; 0 in an order to an edge.
        edge: number of the edge in the run.
        seat: the one seat of an order to an agent with `clock: real`; else None.
        spec: the run's spec, needed to decode the order.
        seats: of an order to an agent, those that it visits or whose updates it fetches.
    """

    run_id: str
    round_no: int
    edge_round: int
    wave: int
    edge: int
    seat: int | None
    spec: ExperimentSpec
    seats: tuple[int, ...] = ()

    @property
    def queue(self) -> OrderQueue:
        """The queue to which the order belongs."""
        if self.spec.sync.devices.asynchronous:
            return OrderQueue(self.run_id, self.edge, seat=min(self.seats, default=None))
        if self.seat is None:
            return OrderQueue(self.run_id, self.edge)
        return OrderQueue(self.run_id, self.edge, (self.round_no, self.edge_round, self.wave), self.seat)


class _Fields(Record):
    """Some fields of a record; the others are ignored here and validated when the record is decoded."""

    model_config = ConfigDict(extra="ignore")


class EdgeOrderFields(_Fields):
    """The fields of a `RoundOrder` that make up its key."""

    run_id: str
    round_no: int
    edge: int
    spec: dict[str, Any]


class _Seat(_Fields):
    seat: int


class AgentOrderFields(_Fields):
    """The fields of a `VisitOrder` (`visits`) or an `UploadOrder` (`seats`, `late`) that make up its key."""

    stage: WaveId
    edge: int
    spec: dict[str, Any]
    visits: tuple[_Seat, ...] = ()
    seats: tuple[int, ...] = ()
    late: tuple[int, ...] = ()


def read_order_key(header: codec.Header) -> OrderKey:
    """Reads the key of an order that the cloud or an edge has sent.

    Raises:
        WireError: naming the field that is missing or malformed; with `clock: real` also if an order to an agent is
            not for exactly one seat.
        BadInput: the spec is malformed.
    """
    raw = header.record
    kind: type[EdgeOrderFields | AgentOrderFields] = (
        AgentOrderFields if isinstance(raw, dict) and "stage" in raw else EdgeOrderFields
    )
    try:
        found = kind.model_validate(raw)
    except ValidationError as error:
        raise codec.misfit(kind, error) from None
    spec = parse_spec(found.spec)
    if isinstance(found, EdgeOrderFields):
        return OrderKey(found.run_id, found.round_no, 0, 0, found.edge, None, spec)
    seats = (*(visit.seat for visit in found.visits), *found.seats, *found.late)
    wave_id, seat = found.stage, _one_seat(found, seats) if spec.clock == "real" else None
    return OrderKey(wave_id.run_id, wave_id.round_no, wave_id.edge_round, wave_id.wave, found.edge, seat, spec, seats)


def _one_seat(order: AgentOrderFields, seats: Sequence[int]) -> int:
    if len(seats) != 1:
        field = "visits" if "visits" in order.model_fields_set else "seats"
        raise WireError(f"with clock: real a request is for one device, not for {len(seats)}", field=field)
    return seats[0]


def check_order(order: VisitOrder[Any], n_seats: int) -> None:
    """Checks that an order visits seats of the run, each once, with messages that the order holds.

    Raises:
        WireError: a seat appears twice or is not of the run, or a message is missing.
    """
    seats = [visit.seat for visit in order.visits]
    if len(set(seats)) != len(seats) or not all(0 <= seat < n_seats for seat in seats):
        raise WireError(f"devices {seats[:50]}: each may come once, in a run of {n_seats} devices", field="visits")
    if not all(0 <= visit.message < len(order.messages) for visit in order.visits):
        raise WireError(f"a task names a message beyond the request's {len(order.messages)}", field="visits")
