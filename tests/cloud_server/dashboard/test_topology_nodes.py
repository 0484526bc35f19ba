"""The nodes of the topology page: their states, parents and details, and how the graph draws them."""

from __future__ import annotations

import json

import pytest

from cloud_server.dashboard.charts import LIGHT
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.topology_graph import graph
from cloud_server.dashboard.topology_nodes import STATES, device_counts, nodes_of
from shared.run_records.rounds import EdgeRow
from shared.run_records.visits import VisitRow
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo
from shared.simulation.digital_twin import Telemetry, Twin
from tests.strata.samples import a_round, a_run, a_seat


def an_agent(name: str, **changes) -> AgentInfo:
    fields = {"agent": name, "name": name, "state": "alive", "last_seen_s": 0.1, "devices": 1, "profile": "standard"}
    return AgentInfo.model_validate({**fields, "edge": "edge-1", **changes})


def a_topology(*agents: AgentInfo, **changes) -> TopologyInfo:
    edge = EdgeInfo(edge="edge-1", url="http://e", state="alive", last_seen_s=0.1, n_agents=len(agents))
    return TopologyInfo(n_devices=len(agents), n_agents=len(agents), edges=(edge,), agents=agents, **changes)


def a_run_view(*rows: VisitRow, n_seats: int = 8, **states: str) -> RunView:
    """A run with one round; `seat_3="lost"` sets the state of a seat, else it is taken."""
    edge = EdgeRow(edge="edge-1", home=0, outcome="used", n_used=1, up_bytes=50, down_bytes=70)
    run_view = RunView(a_run(run="r1"))
    run_view.add_round(a_round(1, seats=rows, edges=(edge,)))
    run_view.rounds = (a_round(1, figures={"cloud": {"groups": [["1"], ["0"]]}}),)
    run_view.seats = tuple(
        a_seat(number, edge="edge-1", agent=f"a{number}", state=states.get(f"seat_{number}", "taken"))
        for number in range(n_seats)
    )
    return run_view


def a_row(seat: int, outcome: str, **changes) -> VisitRow:
    return VisitRow(seat=seat, edge="edge-1", outcome=outcome, **changes)


def test_a_device_with_data_faults_is_said_to_have_them() -> None:
    run_view = a_run_view()
    run_view.seats = (*run_view.seats[:7], a_seat(7, faulty=True))
    details = [node.details for node in nodes_of(a_topology(), run_view) if node.tier == "device"]
    assert ["faulty data" in own for own in details] == [False] * 7 + [True]


def test_state_of_a_device_follows_from_seat_last_visit_and_heartbeat() -> None:
    rows = (
        a_row(0, "used", up_bytes=5, down_bytes=7),
        a_row(1, "refused", reason="late"),
        a_row(2, "refused", label="C"),
        a_row(3, "failed", reason="timeout"),
        a_row(4, "failed", reason="unavailable"),
        a_row(5, "used"),
        a_row(6, "used"),
    )
    run_view = a_run_view(*rows, seat_5="lost", seat_6="offline")
    topology = a_topology(an_agent("a0", visiting=0), an_agent("a9", visiting=2), active_run="r2")
    nodes = {node.name: node for node in nodes_of(topology, run_view) if node.tier == "device"}
    states = [nodes[str(number)].state for number in range(8)]
    assert states == ["used", "late", "refused", "failed", "offline", "lost", "offline", "waiting"]
    assert set(states) | {"training"} == set(STATES)
    assert "round 1: refused, class C, 0 s" in nodes["2"].details
    assert (nodes["0"].up_bytes, nodes["0"].down_bytes) == (5, 7)
    of_active_run = {
        node.name: node.state for node in nodes_of(a_topology(an_agent("a0", visiting=0), active_run="r1"), run_view)
    }
    assert of_active_run["0"] == "training"


def test_details_of_an_edge_name_environment_and_group() -> None:
    edge = next(node for node in nodes_of(a_topology(), a_run_view()) if node.tier == "edge")
    assert (edge.state, edge.up_bytes, edge.down_bytes) == ("used", 50, 70)
    assert any(line.startswith("edge 0: 1 updates used") for line in edge.details)
    assert "group 2" in edge.details


def test_details_of_an_edge_give_total_and_free_compute() -> None:
    run_view = a_run_view(n_seats=2)
    run_view.seats = (
        a_seat(0, edge="edge-1", agent="a0", compute_sps=100.0),
        a_seat(1, edge="edge-1", agent="a1", compute_sps=50.5),
        a_seat(2, edge="edge-2", agent="a2", compute_sps=7.0),
    )
    without = next(node for node in nodes_of(a_topology(), run_view) if node.tier == "edge")
    assert "devices can train 150.5 samples/s" in without.details
    assert not any("twins" in line for line in without.details)
    twins = (Twin(seat=0, telemetry=Telemetry(free_sps=40.0)), Twin(seat=1, telemetry=Telemetry(free_sps=9, on=False)))
    run_view.twins = {"edge-1": twins, "edge-2": (Twin(seat=2, telemetry=Telemetry(free_sps=1.0)),)}
    edge = next(node for node in nodes_of(a_topology(), run_view) if node.tier == "edge")
    assert "40 samples/s are free according to 2 digital twins" in edge.details


def test_agents_without_a_seat_are_shown_beside_the_seats() -> None:
    topology = a_topology(an_agent("a1"), an_agent("new"), an_agent("gone", state="lost"))
    keys = [node.key for node in nodes_of(topology, a_run_view(n_seats=2))]
    assert keys == ["cloud", "edge edge-1", "seat 0", "seat 1", "agent new"]


def test_without_a_run_agents_are_shown_and_an_empty_topology_has_only_the_cloud() -> None:
    topology = a_topology(an_agent("a0", state="lost"), an_agent("a1", online=False), an_agent("a2"))
    devices = [node for node in nodes_of(topology, None) if node.tier == "device"]
    assert [(node.key, node.state) for node in devices] == [
        ("agent a0", "lost"),
        ("agent a1", "offline"),
        ("agent a2", "waiting"),
    ]
    assert device_counts(devices) == {"waiting": 1, "offline": 1, "lost": 1}
    empty = TopologyInfo(n_devices=0, n_agents=0, edges=(), agents=())
    assert [node.tier for node in nodes_of(empty, None)] == ["cloud"]
    assert graph(nodes_of(empty, None), LIGHT)["series"][0]["links"] == []


@pytest.mark.parametrize("n_seats", [1, 20, 100, 1000])
def test_no_two_nodes_have_the_same_position(n_seats: int) -> None:
    nodes = nodes_of(a_topology(), a_run_view(n_seats=n_seats))
    drawn = graph(nodes, LIGHT)["series"][0]
    positions = [(node["x"], node["y"]) for node in drawn["data"]]
    assert len(set(positions)) == len(positions) == n_seats + 2
    assert len(drawn["links"]) == n_seats + 1
    assert len(json.dumps(drawn)) < 1000 * (n_seats + 10)


def test_positions_stay_when_states_change_and_marks_differ() -> None:
    before, after = (
        graph(nodes_of(a_topology(), a_run_view(a_row(0, outcome))), LIGHT) for outcome in ("used", "failed")
    )
    positions = [{n["id"]: (n["x"], n["y"]) for n in drawn["series"][0]["data"]} for drawn in (before, after)]
    assert positions[0] == positions[1]
    marks = [drawn["series"][0]["data"][2] for drawn in (before, after)]
    assert marks[0]["symbol"] != marks[1]["symbol"]
    assert marks[0]["itemStyle"] != marks[1]["itemStyle"]


def test_names_of_agents_are_escaped() -> None:
    hostile = an_agent("<img src=x onerror=alert(1)>{a}")
    drawn = graph(nodes_of(a_topology(hostile), None), LIGHT)["series"][0]["data"][-1]
    assert "<img" not in drawn["tooltip"]["formatter"]
    assert "{" not in drawn["label"]["formatter"] + drawn["tooltip"]["formatter"]
