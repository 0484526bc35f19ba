"""The nodes of the topology page: their states, parents and details, and counts that add up."""

from __future__ import annotations

from cloud_server.dashboard.run_views import SHOWN_SEATS, RunView
from cloud_server.dashboard.topology_nodes import STATES, device_counts, n_devices, n_in_run, nodes_of, visit_counts
from shared.core.number_sets import NumberSet
from shared.run_records.rounds import EdgeRow
from shared.run_records.visits import VisitRow
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo
from shared.simulation.digital_twin import Telemetry, Twin
from shared.spec.synchronisation import Sync
from tests.strata.samples import SPEC, a_round, a_run, a_seat


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
    run_view.rounds = (a_round(1, figures={"cloud": {"groups": [["edge-1"], ["edge-0"]]}}),)
    run_view.seats = tuple(
        a_seat(number, edge="edge-1", agent=f"a{number}", state=states.get(f"seat_{number}", "taken"))
        for number in range(n_seats)
    )
    return run_view


def a_row(seat: int, outcome: str, **changes) -> VisitRow:
    return VisitRow(seat=seat, edge="edge-1", outcome=outcome, **changes)


def test_a_device_with_data_faults_is_said_to_have_them() -> None:
    run_view = a_run_view()
    run_view.seats = (*run_view.seats[:7], a_seat(7, agent="a7", faulty=True))
    topology = a_topology(active_run="r1")
    details = [node.details for node in nodes_of(topology, run_view) if node.tier == "device"]
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
        a_row(8, "refused", reason="surplus"),
        a_row(9, "failed", reason="busy"),
        a_row(10, "evaluated"),
        a_row(11, "failed", reason="dropped"),
        a_row(12, "used"),
        a_row(13, "used"),
    )
    run_view = a_run_view(*rows, n_seats=14, seat_5="offline", seat_12="lost", seat_13="retired")
    agents = [an_agent(f"a{number}") for number in (*range(1, 5), *range(7, 12), 13)]
    agents += [an_agent("a5", state="lost"), an_agent("a6", state="offline", online=False)]
    topology = a_topology(an_agent("a0", visiting=0), *agents, an_agent("b", visiting=2), active_run="r2")
    nodes = {node.name: node for node in nodes_of(topology, run_view) if node.tier == "device"}
    states = [nodes[str(number)].state for number in (*range(12), 13)]
    assert states[:8] == ["used", "late", "refused", "failed", "offline", "lost", "offline", "waiting"]
    assert states[8:] == ["late", "busy", "tested", "failed", "refused"]
    assert set(states) | {"training"} == set(STATES)
    expected = {1: "late", 2: "refused, class C", 3: "failed, timeout", 8: "surplus", 10: "only tested", 11: "dropped"}
    assert {number: nodes[str(number)].details[-1] for number in expected} == {
        number: f"round 1: {ended}, 0 s" for number, ended in expected.items()
    }
    assert nodes["11"].title == "device 11: failed"
    assert (nodes["0"].up_bytes, nodes["0"].down_bytes) == (5, 7)
    of_active_run = {
        node.name: node.state for node in nodes_of(a_topology(an_agent("a0", visiting=0), active_run="r1"), run_view)
    }
    assert (of_active_run["0"], of_active_run["12"]) == ("training", "lost")


def test_a_device_that_is_brought_back_is_so_before_seats_are_read_again() -> None:
    run_view = a_run_view(a_row(0, "used"), n_seats=1, seat_0="offline")
    (device,) = (node for node in nodes_of(a_topology(an_agent("a0")), run_view) if node.tier == "device")
    assert (device.title, device.agent) == ("device 0: used", "a0")
    assert any(line.endswith("alive") for line in device.details)


def test_an_edge_says_in_which_round_it_answered() -> None:
    run_view = a_run_view()
    titles = []
    for round_no, outcome in enumerate(("used", "failed", "idle", "away"), 2):
        run_view.add_round(a_round(round_no, seats=(), edges=(EdgeRow(edge="edge-1", home=0, outcome=outcome),)))
        titles += [node.title for node in nodes_of(a_topology(), run_view) if node.tier == "edge"]
    assert titles == ["edge-1: answered in round 2", "edge-1: failed in round 3", "edge-1: idle", "edge-1: lost"]


def test_details_of_an_edge_name_environment_and_group() -> None:
    edge = next(node for node in nodes_of(a_topology(an_agent("a0")), a_run_view()) if node.tier == "edge")
    assert edge.details[0] == "alive, hears the heartbeats of 1 agent"
    assert (edge.state, edge.up_bytes, edge.down_bytes) == ("used", 50, 70)
    assert any(line.startswith("serves edge number 0: 1 update used") for line in edge.details)
    assert "edge number 0 is in group 2" in edge.details


def test_details_of_an_edge_give_total_and_free_compute() -> None:
    run_view = a_run_view(n_seats=2)
    run_view.seats = (
        a_seat(0, edge="edge-1", agent="a0", compute_sps=100.0),
        a_seat(1, edge="edge-1", agent="a1", compute_sps=50.5),
        a_seat(2, edge="edge-2", agent="a2", compute_sps=7.0),
    )
    without = next(node for node in nodes_of(a_topology(), run_view) if node.tier == "edge")
    assert "its devices can train 150.5 samples/s of the reference model" in without.details
    assert not any("twins" in line for line in without.details)
    twins = (Twin(seat=0, telemetry=Telemetry(free_sps=40.0)), Twin(seat=1, telemetry=Telemetry(free_sps=9, on=False)))
    run_view.twins = {"edge-1": twins, "edge-2": (Twin(seat=2, telemetry=Telemetry(free_sps=1.0)),)}
    edge = next(node for node in nodes_of(a_topology(), run_view) if node.tier == "edge")
    assert "40 of them are free according to 2 digital twins" in edge.details


def test_agents_without_a_seat_are_shown_beside_the_seats() -> None:
    topology = a_topology(an_agent("a1"), an_agent("new"), an_agent("gone", state="lost"), active_run="r1")
    keys = [node.key for node in nodes_of(topology, a_run_view(n_seats=2))]
    assert keys == ["cloud", "edge edge-1", "seat 0", "seat 1", "agent new 0", "agent gone 0"]


def test_without_a_run_agents_are_shown_and_an_empty_topology_has_only_the_cloud() -> None:
    topology = a_topology(an_agent("a0", state="lost"), an_agent("a1", online=False), an_agent("a2"))
    devices = [node for node in nodes_of(topology, None) if node.tier == "device"]
    assert [(node.key, node.state) for node in devices] == [
        ("agent a0 0", "lost"),
        ("agent a1 0", "offline"),
        ("agent a2 0", "waiting"),
    ]
    assert device_counts(devices) == dict.fromkeys(STATES, 0) | {"waiting": 1, "offline": 1, "lost": 1}
    empty = TopologyInfo(n_devices=0, n_agents=0, edges=(), agents=())
    assert [node.tier for node in nodes_of(empty, None)] == ["cloud"]


def test_traffic_of_an_edge_adds_up_over_the_homes_that_it_serves() -> None:
    run_view = a_run_view()
    rows = [EdgeRow(edge="edge-1", home=home, outcome="used", up_bytes=50, down_bytes=70) for home in (0, 1)]
    run_view.add_round(a_round(2, seats=(), edges=rows))
    edge = next(node for node in nodes_of(a_topology(), run_view) if node.tier == "edge")
    assert (edge.up_bytes, edge.down_bytes) == (100, 140)
    homes = [line.partition(":")[0] for line in edge.details if "updates used" in line]
    assert homes == ["serves edge number 0", "serves edge number 1"]


def test_states_of_all_devices_add_up_to_the_number_of_devices() -> None:
    """Two devices of an agent are in the run, one waits; one agent was stopped, one is in another run, one is lost."""
    run_view = a_run_view(a_row(0, "used"), n_seats=2)
    run_view.seats = (*(seat.replace(agent="a0") for seat in run_view.seats), a_seat(2, role="worker", state="worker"))
    agents = (
        an_agent("a0", devices=3, seats=NumberSet(range(2)), visiting=1),
        an_agent("stopped", state="left", devices=7),
        an_agent("elsewhere", devices=2, seats=NumberSet(range(4, 6)), visiting=4),
        an_agent("gone", state="lost", devices=2),
    )
    topology = a_topology(*agents, active_run="r1", active_runs=("r1", "r2"))
    nodes = nodes_of(topology, run_view)
    counts = {state: number for state, number in device_counts(nodes).items() if number}
    assert counts == {"training": 2, "used": 1, "waiting": 2, "lost": 2}
    assert n_devices(topology, run_view) == sum(counts.values()) == 7
    assert n_in_run(topology, run_view) == 2
    finished = topology.replace(active_run=None, active_runs=())
    gone = run_view.seats[0].replace(seat=9, agent="stopped", state="lost")
    run_view.seats = (*run_view.seats, gone)
    assert n_devices(finished, run_view) == sum(device_counts(nodes_of(finished, run_view)).values()) == 7


def test_devices_that_are_not_shown_are_counted() -> None:
    """Of more devices than a page shows, the run's are those of the newest round; one agent is in another run."""
    run_view = a_run_view(a_row(0, "used"), n_seats=1)
    run_view.info = run_view.info.replace(spec=SPEC.replace(max_devices=6000))
    run_view.hosted = {"a0": NumberSet(range(5000))}
    agent = an_agent("a0", devices=5000, seats=NumberSet(range(5000)))
    other = an_agent("a1", devices=2, seats=NumberSet(range(2)))
    training = a_topology(agent, other, active_run="r2", active_runs=("r2", "r1"))
    completed = a_topology(agent.replace(seats=NumberSet(())), an_agent("a1", devices=2))
    for topology in (training, completed):
        assert n_in_run(topology, run_view) == 5000
        assert n_devices(topology, run_view) == 5002
        devices = [node.key for node in nodes_of(topology, run_view) if node.tier == "device"]
        assert devices == ["seat 0", "agent a1 0", "agent a1 1"]
    assert n_in_run(a_topology(agent.replace(state="left")), run_view) == 0
    assert len(nodes_of(a_topology(an_agent("a1", devices=5000)), None)) == 2 + SHOWN_SEATS


def test_visits_of_the_newest_round_add_up_whatever_came_of_them() -> None:
    rows = (
        a_row(0, "used"),
        a_row(1, "refused", reason="late"),
        a_row(2, "refused", reason="surplus"),
        a_row(3, "refused", label="C"),
        a_row(4, "failed", reason="busy"),
        a_row(5, "failed", reason="dropped"),
        a_row(6, "idle"),
        a_row(7, "used_late"),
    )
    expected = {"used": 1, "late": 1, "surplus": 1, "refused": 1, "dropped": 1, "failed": 1, "no update": 1}
    assert visit_counts(a_run_view(*rows)) == expected
    assert sum(expected.values()) == sum(row.outcome != "used_late" for row in rows)


def test_asynchronous_tiers_show_the_age_of_updates_and_orders() -> None:
    sync = {"devices": {"mode": "asynchronous", "buffer": 2}, "edges": {"mode": "asynchronous", "buffer": 1}}
    spec = SPEC.replace(sync=Sync.model_validate(sync))
    run_view = a_run_view(a_row(0, "used", staleness=3), a_row(1, "failed", reason="timeout"), n_seats=2)
    assert all(node.staleness is None for node in nodes_of(a_topology(), run_view))
    run_view.info = run_view.info.replace(spec=spec)
    run_view.in_flight, run_view.visits_in_flight = {0: 0, 5: 1}, {1: 2}
    _, edge, used, never_used = nodes_of(a_topology(active_run="r1"), run_view)
    assert (used.staleness, never_used.staleness) == (3, None)
    assert "last used update was 3 versions old" in used.details
    assert (used.in_flight, never_used.in_flight) == ((), ("task in flight, 2 versions old",))
    assert edge.in_flight == ("request in flight, 1 version old",)  # home 5 is another process's
