"""The key of an order: run, round, edge round, wave and seat, read from the body before it is decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from shared.core.errors import WireError
from shared.federation.messages import VisitOrder, WaveId
from shared.federation.spec_parser import parse_spec
from shared.spec.experiment import ExperimentSpec
from shared.wire import codec


def seat_key(spec: ExperimentSpec, seats: Sequence[int]) -> int | None:
    """Which orders of a place stand beside each other: with `clock: real` each seat has its own.

    Raises:
        WireError: with `clock: real` an order speaks of one seat.
    """
    if spec.clock == "simulated":
        return None
    if len(seats) != 1:
        raise WireError(f"with clock: real an order is for one seat, not for {len(seats)}", field="visits")
    return seats[0]


def check_order(order: VisitOrder[Any], n_seats: int) -> None:
    """See that an order names seats of the run, each once, and messages that it brings.

    Raises:
        WireError: it does not.
    """
    seats = [visit.seat for visit in order.visits]
    if len(set(seats)) != len(seats) or not all(0 <= seat < n_seats for seat in seats):
        raise WireError(f"seats {seats[:50]}: each once, of a run of {n_seats}", field="visits")
    if not all(0 <= visit.message < len(order.messages) for visit in order.visits):
        raise WireError(f"a visit names a message beyond the {len(order.messages)} there are", field="visits")


def spec_of(body: bytearray) -> ExperimentSpec:
    """The spec that travels in an order, read before the order itself can be decoded.

    Raises:
        WireError: there is none.
        BadInput: it is malformed.
    """
    raw = codec.peek(body)
    if not isinstance(raw, Mapping) or not isinstance(raw.get("spec"), Mapping):
        raise WireError("the order holds no spec", field="spec")
    return parse_spec(raw["spec"])


def lane_in(body: bytearray) -> int | None:
    """The lane of an order of visits, read before it is decoded.

    Raises:
        WireError: with `clock: real` it is not for one seat.
    """
    raw = codec.peek(body)
    spec, visits = (raw.get("spec"), raw.get("visits")) if isinstance(raw, Mapping) else (None, None)
    if not isinstance(spec, Mapping) or spec.get("clock") != "real":
        return None
    seats = [visit.get("seat") for visit in visits if isinstance(visit, Mapping)] if isinstance(visits, list) else []
    if len(seats) != 1 or type(seats[0]) is not int:
        raise WireError("with clock: real an order is for one seat", field="visits")
    return seats[0]


def stage_of(body: bytearray) -> tuple[WaveId, int]:
    """Stage and home edge of an order, read before it is decoded."""
    raw = codec.peek(body)
    stage, edge = (raw.get("stage"), raw.get("edge")) if isinstance(raw, Mapping) else (None, None)
    if not isinstance(stage, Mapping) or type(edge) is not int:
        raise WireError("the order names no stage", field="stage")
    try:
        return WaveId.model_validate(dict(stage)), edge
    except ValidationError as error:
        raise codec.misfit(WaveId, error) from None


def order_place(body: bytearray) -> tuple[str, int, int]:
    """Run, round and home of an order, read before it is decoded.

    Raises:
        WireError: the order does not name them.
    """
    raw = codec.peek(body)
    if isinstance(raw, dict):
        place = (raw.get("run_id"), raw.get("round_no"), raw.get("edge"))
        if isinstance(place[0], str) and type(place[1]) is int and type(place[2]) is int:
            return place[0], place[1], place[2]
    raise WireError("the order names no run, round and edge", field="run_id")
