"""The cards of the topology page, as the browser gets them."""

from __future__ import annotations

import json

from cloud_server.dashboard.topology_grid import model_of, svg_of
from cloud_server.dashboard.topology_nodes import STATES, Node


def a_device(number: int, state: str = "used", parent: str | None = "edge edge-1", **changes) -> Node:
    return Node(f"seat {number}", str(number), "device", state, parent, up_bytes=500, down_bytes=1500, **changes)


EDGE = Node(
    "edge edge-1", "edge-1", "edge", "used", "cloud", ("serves edge number 0",), 2000, 3000, word="answered in round 4"
)


def test_each_device_is_in_the_card_of_its_edge_and_all_are_counted() -> None:
    nodes = [EDGE, a_device(0), a_device(1, "late"), a_device(2, "lost", None), a_device(3, "lost", "edge unknown")]
    model = model_of(nodes, hidden=6)
    first, others = model["cards"]
    assert [device["key"] for device in first["devices"]] == ["seat 0", "seat 1"]
    assert [device["key"] for device in others["devices"]] == ["seat 2", "seat 3"]
    assert model["counts"] == dict.fromkeys(STATES, 0) | {"used": 1, "late": 1, "lost": 2}
    assert (model["hidden"], others["state"]) == (6, "")


def test_a_card_gives_the_bytes_on_the_links_of_its_edge_and_of_its_devices() -> None:
    (card,) = model_of([EDGE, a_device(0), a_device(1)])["cards"]
    assert card["lines"] == ["cloud ↑ 2 kB ↓ 3 kB", "2 devices ↑ 1 kB ↓ 3 kB"]
    assert (card["word"], card["tip"]) == ("answered in round 4", "edge-1: answered in round 4\nserves edge number 0")


def test_marks_have_numbers_below_them_where_they_fit() -> None:
    cards = [model_of([EDGE, *map(a_device, range(number))])["cards"][0] for number in (60, 61)]
    assert [card["numbered"] for card in cards] == [True, False]


def test_marks_have_the_ages_of_used_updates_and_cards_their_range() -> None:
    flying = ("task in flight, 1 version old",)
    devices = [a_device(0, staleness=4), a_device(1, staleness=1), a_device(2, "failed", staleness=2, in_flight=flying)]
    (card,) = model_of([EDGE, *devices])["cards"]
    assert [device["age"] for device in card["devices"]] == [4, 1, None]
    assert [device["flies"] for device in card["devices"]] == [False, False, True]
    assert card["lines"][-2:] == ["1 task in flight", "updates 1 to 4 versions old"]


def test_states_differ_in_shape_and_no_two_have_the_same_mark() -> None:
    shapes = {svg_of(state).split('"')[1] for state in STATES}
    assert len(shapes) == len(STATES)


def test_a_thousand_devices_are_few_bytes() -> None:
    model = model_of([EDGE, *(a_device(number, details=("profile standard",) * 4) for number in range(1000))])
    assert len(json.dumps(model)) < 200_000
