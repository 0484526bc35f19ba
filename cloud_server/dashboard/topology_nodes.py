"""The content of the topology page: cloud, edges and devices as nodes, each in one state (drawn by `topology_grid`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloud_server.dashboard.run_views import SHOWN_SEATS, RunView
from shared.run_records.rounds import EdgeRow
from shared.run_records.runs import SeatInfo
from shared.run_records.visits import ENDS, VisitRow, end_of
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo

STATES = {
    "training": "a visit is in progress",
    "used": "last update was used",
    "tested": "last visit only tested a model or collected samples",
    "waiting": "no visit yet, not selected, or not in this run",
    "late": "last update came too late, or was not waited for",
    "refused": "last update was refused by the algorithm, or the device is retired",
    "failed": "last visit failed",
    "busy": "could not begin a visit: still at work on a late update",
    "offline": "taken offline, switched off, or left out of runs",
    "lost": "sends no heartbeats",
}
"""The states of devices with their meaning, in the order of the legend. Each device is in one of them."""
_LATE = ("late", "surplus")
_GONE = ("lost", "left", "leaving")
_STOPPED = ("left", "leaving")
_OFF = ("unavailable", "offline", "absent")


@dataclass(frozen=True)
class Node:
    """The cloud, an edge, or a device.

    Attributes:
        key: `cloud`, `edge NAME`, `seat NUMBER`, or `agent ID NUMBER` for a device that is in no run.
        parent: the key of the edge of a device; None if it is not known.
        details: lines of text for its label and dialog.
        up_bytes, down_bytes: bytes sent to and received from the node above in the newest round.
        host: the name of a device's agent.
        in_flight: a line for each order in flight to an edge, or for the visit in flight of a device, where the tier
            above does not wait for all.
        staleness: of a device, by how many versions its last used update was old; None unless the run has versions.
    """

    key: str
    name: str
    tier: str
    state: str
    parent: str | None = None
    details: tuple[str, ...] = ()
    up_bytes: int = 0
    down_bytes: int = 0
    host: str = ""
    in_flight: tuple[str, ...] = ()
    staleness: int | None = None


def nodes_of(topology: TopologyInfo, run_view: RunView | None) -> list[Node]:
    """All nodes: the cloud, the edges, the run's devices once they are placed, and the devices that are not in it.

    At most `SHOWN_SEATS` devices that are not in the run are shown.
    """
    agents = {agent.agent: agent for agent in topology.agents}
    rows, groups = _edge_rows(run_view), _groups(run_view)
    state = "training" if topology.active_run else "waiting"
    edges = [_edge(edge, rows.get(edge.edge, ()), run_view, groups) for edge in topology.edges]
    seats = _seats(topology, run_view, agents)
    placed = [_seat(seat, run_view, agents, _is_active(topology, run_view)) for seat in seats] if run_view else []
    hosted = _hosted(topology, run_view, seats)
    spare = [node for agent in topology.agents for node in _spare(agent, hosted[agent.agent])][:SHOWN_SEATS]
    return [Node("cloud", "cloud", "cloud", state), *edges, *placed, *spare]


def n_devices(topology: TopologyInfo, run_view: RunView | None) -> int:
    """The number of devices: those that agents can host or host in a run, lost agents included, stopped ones not."""
    agents = {agent.agent: agent for agent in topology.agents}
    hosted = _hosted(topology, run_view, _seats(topology, run_view, agents))
    kept = [agent for agent in topology.agents if agent.state not in _STOPPED]
    others = hosted.total() - sum(hosted[agent.agent] for agent in kept)
    return others + sum(max(agent.devices, len(agent.seats), hosted[agent.agent]) for agent in kept)


def _hosted(topology: TopologyInfo, run_view: RunView | None, seats: Sequence[SeatInfo]) -> Counter[str | None]:
    """By agent, its devices in the run, also those that are not shown."""
    if run_view is None or run_view.shows_all or not _is_active(topology, run_view):
        return Counter(seat.agent for seat in seats)
    return Counter({agent.agent: len(agent.seats) for agent in topology.agents if agent.state not in _STOPPED})


def _seats(topology: TopologyInfo, run_view: RunView | None, agents: Mapping[str, AgentInfo]) -> list[SeatInfo]:
    """The run's devices: seats without an agent have none, nor have those of an earlier run whose agent was stopped."""
    if run_view is None:
        return []
    found = [seat for seat in run_view.seats if seat.role != "worker" and seat.agent is not None]
    if _is_active(topology, run_view):
        return found
    kept = {name for name, agent in agents.items() if agent.state not in _STOPPED}
    return [seat for seat in found if seat.agent in kept]


def _is_active(topology: TopologyInfo, run_view: RunView) -> bool:
    return run_view.info.run in (topology.active_run, *topology.active_runs)


def _spare(agent: AgentInfo, hosted: int) -> list[Node]:
    """An agent's devices beyond those in the run."""
    if agent.state in _STOPPED:
        return []
    elsewhere = 0 if hosted else len(agent.seats)
    visits = agent.visiting is not None and elsewhere > 0
    state = "lost" if agent.state == "lost" else "offline" if agent.reason or not agent.online else "waiting"
    why = f" ({agent.reason})" if agent.reason else ""
    details = (
        "takes part in another run" if elsewhere else "in no run",
        f"on agent {agent.name}, {agent.state}{why}, profile {agent.profile}",
        f"last heartbeat {agent.last_seen_s:.0f} s ago",
    )
    total = max(agent.devices, elsewhere)
    numbers = range(hosted, min(total, hosted + SHOWN_SEATS))
    parent = f"edge {agent.edge}" if agent.edge else None
    return [
        Node(
            key=f"agent {agent.agent} {number}",
            name=f"{agent.name} {number + 1}" if total > 1 else agent.name,
            tier="device",
            state="training" if visits and number == hosted and state == "waiting" else state,
            parent=parent,
            details=details,
            host=agent.name,
        )
        for number in numbers
    ]


# ---- edges


def _edge_rows(run_view: RunView | None) -> Mapping[str, list[EdgeRow]]:
    """The rows of the newest round by edge: one for each home that it served, or for each answer that counted."""
    rows: dict[str, list[EdgeRow]] = defaultdict(list)
    for row in run_view.newest.edges if run_view and run_view.newest else ():
        rows[row.edge].append(row)
    return rows


def _edge(edge: EdgeInfo, rows: Sequence[EdgeRow], run_view: RunView | None, groups: Mapping[str, int]) -> Node:
    details = [f"{edge.state}, {edge.n_agents} agents connected"]
    details += [edge.reason] if edge.reason else []
    for row in rows:
        old = f", {_old(row.staleness)}" if run_view and run_view.info.spec.sync.edges.asynchronous else ""
        time = f"{row.n_used} updates used, {row.simulated_s:.3g} s in the last {_word(run_view)}{old}"
        details.append(f"home edge {row.home}: {time}{f' ({row.reason})' if row.reason else ''}")
        group = groups.get(f"edge-{row.home}")
        details += [f"home edge {row.home} is in group {group}"] if group else []
    in_flight = _in_flight(edge.edge, run_view)
    details += [*in_flight, *_compute(edge.edge, run_view)]
    traffic = sum(row.up_bytes for row in rows), sum(row.down_bytes for row in rows)
    state = "lost" if edge.state in _GONE else _edge_state([row.outcome for row in rows])
    return Node(
        f"edge {edge.edge}", edge.edge, "edge", state, "cloud", tuple(details), *traffic, in_flight=tuple(in_flight)
    )


def _edge_state(outcomes: Sequence[str]) -> str:
    """The state of an edge by what its homes did: the worst of it."""
    words = {"failed": "failed", "away": "lost", "idle": "waiting"}
    found = {words.get(outcome, "used") for outcome in outcomes}
    return next((state for state in ("lost", "failed", "used") if state in found), "waiting")


def _in_flight(edge: str, run_view: RunView | None) -> list[str]:
    """The orders in flight of the homes that an edge serves, each with its age."""
    if run_view is None:
        return []
    homes = {seat.home for seat in run_view.seats if seat.edge == edge}
    made = run_view.newest.round_no if run_view.newest else 0
    versions = [version for home, version in run_view.in_flight.items() if home in homes]
    return [f"order in flight, {_old(max(made - version, 0))}" for version in versions]


def _old(staleness: int) -> str:
    return f"{staleness} version{'' if staleness == 1 else 's'} old"


def _word(run_view: RunView | None) -> str:
    return run_view.info.spec.sync.round_word if run_view else "round"


def _compute(edge: str, run_view: RunView | None) -> list[str]:
    """The total compute of an edge's devices and, according to its digital twins, how much of it is free."""
    seats = run_view.seats if run_view and run_view.shows_all else ()
    total = sum(seat.compute_sps or 0.0 for seat in seats if seat.edge == edge)
    details = [f"devices can train {total:.4g} samples/s"] if total else []
    twins = run_view.twins.get(edge, ()) if run_view else ()
    if twins:
        free = sum(twin.telemetry.free_sps for twin in twins if twin.telemetry.on)
        details.append(f"{free:.4g} samples/s are free according to {len(twins)} digital twins")
    return details


def _groups(run_view: RunView | None) -> Mapping[str, int]:
    """The number of each client's group by the client's key (`edge-0`: home edge 0), if the algorithm forms groups."""
    for row in reversed(run_view.rounds if run_view else ()):
        groups = row.figures.get("cloud", {}).get("groups")
        if groups:
            return {client: number for number, members in enumerate(groups, 1) for client in members}
    return {}


# ---- devices


def _seat(seat: SeatInfo, run_view: RunView, agents: Mapping[str, AgentInfo], is_active: bool) -> Node:
    visits = run_view.last_visits.get(seat.seat, [])
    last = visits[-1] if visits else None
    agent = agents.get(seat.agent or "")
    visits_now = is_active and agent is not None and agent.visiting == seat.seat and agent.state not in _GONE
    state = _state(seat, last[1] if last else None, is_training=visits_now)
    details = [f"profile {seat.profile}{', straggler' if seat.straggler else ''}", f"{seat.n_train} training samples"]
    details += ["faulty data"] if seat.faulty else []
    details += [f"on agent {agent.name}, {agent.state}"] if agent else []
    details += [seat.reason] if seat.reason else []
    if last is not None:
        details.append(f"{_word(run_view)} {last[0]}: {outcome_of(last[1])}, {last[1].simulated_s:.3g} s")
    used = next((row for _, row in reversed(visits) if row.outcome in ("used", "used_late")), None)
    staleness = used.staleness if used and run_view.info.spec.sync.devices.asynchronous else None
    details += [f"last used update was {_old(staleness)}"] if staleness is not None else []
    age = run_view.visits_in_flight.get(seat.seat)
    in_flight = () if age is None else (f"visit in flight, {_old(age)}",)
    details += in_flight
    fresh = last is not None and run_view.newest is not None and last[0] == run_view.newest.round_no
    traffic = (last[1].up_bytes, last[1].down_bytes) if last and fresh else (0, 0)
    parent = f"edge {seat.edge}" if seat.edge else None
    name, host = str(seat.seat), agent.name if agent else ""
    return Node(f"seat {name}", name, "device", state, parent, tuple(details), *traffic, host, in_flight, staleness)


def outcome_of(row: VisitRow) -> str:
    """What a visit came to, in words."""
    return ", ".join(filter(None, (row.outcome, row.reason, row.label and f"class {row.label}")))


def state_of(row: VisitRow) -> str:
    """The state in which a visit leaves its device."""
    if row.reason in _LATE:
        return "late"
    if row.reason in _OFF:
        return "offline"
    if row.reason == "busy":
        return "busy"
    words = {"refused": "refused", "failed": "failed", "idle": "waiting", "evaluated": "tested", "collected": "tested"}
    return words.get(row.outcome, "used")


def _state(seat: SeatInfo, last: VisitRow | None, *, is_training: bool) -> str:
    if seat.state in ("lost", "offline"):
        return seat.state
    if seat.state == "retired":
        return "refused"
    if is_training:
        return "training"
    return state_of(last) if last else "waiting"


def device_counts(nodes: Iterable[Node]) -> dict[str, int]:
    """The number of devices in each state, in the order of the legend."""
    counts = Counter(node.state for node in nodes if node.tier == "device")
    return {state: counts[state] for state in STATES}


def visit_counts(run_view: RunView) -> dict[str, int]:
    """The visits of the newest round by their ends, in the order of `ENDS`, without zeros; they add up."""
    rows = run_view.newest.seats if run_view.newest else ()
    counts = Counter(end_of(row.outcome, row.reason) for row in rows)
    return {end: counts[end] for end in ENDS if counts[end]}


def devices_by_parent(nodes: Sequence[Node]) -> dict[str | None, list[Node]]:
    """Devices by the key of their parent."""
    children: dict[str | None, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.tier == "device":
            children[node.parent].append(node)
    return children
