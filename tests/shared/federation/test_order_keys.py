"""The key of an order: its fields from the header, refused keys, and parsing at most once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.core.errors import BadInput, WireError
from shared.core.parsing import parse
from shared.federation.order_keys import OrderQueue, read_order_key
from shared.wire import codec
from tests.federation import Federation, PassOn, small_spec

STAGE = {"run_id": "r1", "round_no": 3, "edge_round": 1, "wave": 2}
REAL = {"clock": "real"}
PLACE = {"run_id": "r1", "round_no": 3, "edge": 1}


def order(**fields: Any) -> codec.Header:
    """Returns the header of an order with these fields."""
    return codec.Header({"spec": small_spec(), **fields}, {}, 8)


def to_agent(spec: dict[str, Any] | None = None, **fields: Any) -> codec.Header:
    """Returns the header of an order to an agent."""
    return order(spec=small_spec(**(spec or {})), stage=STAGE, edge=1, **fields)


def test_the_key_of_an_order_to_an_edge() -> None:
    key = read_order_key(order(**PLACE, broadcast={"$t": 0}))
    assert (key.run_id, key.round_no, key.edge_round, key.wave, key.edge, key.seat) == ("r1", 3, 0, 0, 1, None)
    assert key.spec.num_devices == small_spec()["num_devices"]
    assert key.queue == OrderQueue("r1", 1)


@pytest.mark.parametrize(
    "seats", [{"visits": [{"seat": 4, "task": {}}]}, {"seats": [4]}, {"seats": [], "late": [4]}], ids=str
)
def test_the_key_of_an_order_to_an_agent_has_its_seat_with_a_real_clock(seats: dict[str, Any]) -> None:
    key = read_order_key(to_agent(REAL, **seats))
    assert (key.run_id, key.round_no, key.edge_round, key.wave, key.edge, key.seat) == ("r1", 3, 1, 2, 1, 4)
    assert key.queue == OrderQueue("r1", 1, (3, 1, 2), 4)
    simulated = read_order_key(to_agent(**seats))
    assert (simulated.seat, simulated.queue) == (None, OrderQueue("r1", 1))


def test_an_order_to_an_edge_has_no_seat_with_a_real_clock() -> None:
    assert read_order_key(order(spec=small_spec(**REAL), **PLACE)).seat is None


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"run_id": 1}, "run_id"),
        ({"round_no": None}, "round_no"),
        ({"edge": "one"}, "edge"),
        ({"spec": []}, "spec"),
        ({"stage": None}, "stage"),
        ({"stage": {**STAGE, "wave": []}}, "stage.wave"),
        ({"stage": {"run_id": "r1"}}, "stage.round_no"),
        ({"stage": {**STAGE, "lap": 1}}, "stage.lap"),
        ({"stage": STAGE, "visits": [{"task": {}}]}, "visits.0.seat"),
        ({"stage": STAGE, "seats": 4}, "seats"),
    ],
    ids=str,
)
def test_a_garbled_key_is_refused_with_the_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(WireError) as refused:
        read_order_key(order(**{**PLACE, **changed}))
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["run_id", "round_no", "edge"])
def test_a_key_that_lacks_a_field_is_refused_with_the_field(name: str) -> None:
    with pytest.raises(WireError, match="a value is required") as refused:
        read_order_key(order(**{key: value for key, value in PLACE.items() if key != name}))
    assert refused.value.field == name


@pytest.mark.parametrize("record", [None, [], "order", 3])
def test_a_record_other_than_an_order_is_refused(record: Any) -> None:
    with pytest.raises(WireError, match="EdgeOrderFields"):
        read_order_key(codec.Header(record, {}, 8))


def test_a_malformed_spec_is_refused_with_its_own_field() -> None:
    with pytest.raises(BadInput) as refused:
        read_order_key(to_agent({"num_rounds": -1}))
    assert refused.value.field == "num_rounds"


@pytest.mark.parametrize(
    ("seats", "field"),
    [
        ({"visits": [{"seat": 1}, {"seat": 2}]}, "visits"),
        ({"visits": []}, "visits"),
        ({"seats": [1], "late": [2]}, "seats"),
    ],
    ids=str,
)
def test_with_a_real_clock_an_order_to_an_agent_is_for_one_seat(seats: dict[str, Any], field: str) -> None:
    with pytest.raises(WireError, match="a request is for one device, not for") as refused:
        read_order_key(to_agent(REAL, **seats))
    assert refused.value.field == field


def test_a_queue_continues_at_other_edges_and_ends_with_its_run_or_wave() -> None:
    simulated = OrderQueue("r1", 0)
    assert simulated.may_continue(simulated)
    assert simulated.may_continue(OrderQueue("r1", 1))
    assert simulated.may_continue(OrderQueue("r2", 0))
    seat = OrderQueue("r1", 0, (1, 0, 1), 4)
    assert seat.may_continue(OrderQueue("r1", 0, (1, 0, 1), 5))
    assert seat.may_continue(OrderQueue("r1", 1, (1, 0, 2), 5))
    assert not seat.may_continue(OrderQueue("r1", 0, (1, 1, 0), 4))


async def test_each_order_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: dict[str, list[bytes]] = {"/rounds": [], "/visits": [], "/uploads": []}
    parsed: Counter[str] = Counter()

    def counted(text: str | bytes, what: str) -> Any:
        if what == "record":
            parsed[str(text)] += 1
        return parse(text, what)

    async def record_order(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path in bodies:
            bodies[request.url.path].append(request.content)
        return await pass_on()

    monkeypatch.setattr("shared.wire.codec.parse", counted)
    async with Federation(tmp_path / "f", n_edges=1, agent_devices=(2,)) as fed:
        fed.router.tamper = record_order
        spec = small_spec(num_edges=1, num_devices=2, num_rounds=1, round_deadline_s=1e6)  # held updates: uploads too
        assert (await fed.run(spec)).status == "completed"
    assert all(bodies.values())
    for body in [body for of_path in bodies.values() for body in of_path]:
        length = int.from_bytes(body[:8], "little")
        assert parsed[json.loads(body[8 : 8 + length])["__metadata__"]["record"]] == 1
