"""The content of the topology page: cloud, edges and devices as nodes with a state (drawn by `topology_graph`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloud_server.dashboard.run_views import RunView
from shared.run_records.rounds import EdgeRow
from shared.run_records.runs import SeatInfo
from shared.run_records.visits import VisitRow
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo

STATES = {
    "training": "a visit is in progress",
    "used": "last update was used",
    "waiting": "no visit yet, or not selected",
    "late": "last update came too late, or was not waited for",
    "refused": "last update was refused by the algorithm, or the device is retired",
    "failed": "last visit failed",
    "offline": "taken offline, unavailable or busy",
    "lost": "sends no heartbeats",
}
"""The states of devices with their meaning, in the order of the legend."""
_LATE = ("late", "surplus")
_GONE = ("lost", "left", "leaving")
_OFF = ("unavailable", "busy", "absent")


@dataclass(frozen=True)
class Node:
    """The cloud, an edge, or a device.

    Attributes:
        key: `cloud`, `edge NAME`, `seat NUMBER` or `agent ID`.
        parent: the key of the node above it in the topology.
        details: lines of text for its tooltip and dialog.
        up_bytes, down_bytes: bytes sent to and received from the parent in the newest round.
    """

    key: str
    name: str
    tier: str
    state: str
    parent: str | None = None
    details: tuple[str, ...] = ()
    up_bytes: int = 0
    down_bytes: int = 0


def nodes_of(topology: TopologyInfo, run_view: RunView | None) -> list[Node]:
    """All nodes: cloud, edges, the run's seats once they are placed, and the agents that host none of them."""
    seats = run_view.seats if run_view else ()
    agents = {agent.agent: agent for agent in topology.agents}
    training = _training_seats(run_view, topology, agents)
    rows = _edge_rows(run_view)
    cloud = Node(
        "cloud", "cloud", "cloud", "training" if topology.active_run else "waiting", details=_cloud_details(topology)
    )
    edges = [_edge(edge, rows.get(edge.edge), run_view) for edge in topology.edges]
    if run_view is not None and seats:
        taken = [seat for seat in seats if seat.state != "empty"]
        seated = {seat.agent for seat in taken}
        others = [agent for agent in topology.agents if agent.agent not in seated and agent.state not in _GONE]
        return [cloud, *edges, *(_seat(seat, run_view, agents, training) for seat in taken), *map(_agent, others)]
    return [cloud, *edges, *map(_agent, topology.agents)]


def _cloud_details(topology: TopologyInfo) -> tuple[str, ...]:
    run = f"run {topology.active_run} is training" if topology.active_run else "no run is training"
    return (f"{topology.n_devices} devices on {topology.n_agents} agents", run)


def _edge_rows(run_view: RunView | None) -> Mapping[str, EdgeRow]:
    return {row.edge: row for row in run_view.newest.edges} if run_view and run_view.newest else {}


def _edge(edge: EdgeInfo, row: EdgeRow | None, run_view: RunView | None) -> Node:
    gone = edge.state in _GONE
    state = "lost" if gone else {"failed": "failed", "away": "lost"}.get(row.outcome, "used") if row else "waiting"
    details = [f"{edge.state}, {edge.n_agents} agents connected"]
    if row is not None:
        details.append(f"edge {row.home}: {row.n_used} updates used, {row.simulated_s:.3g} s in the last round")
        group = _group(run_view, str(row.home))
        details += [f"group {group}"] if group else []
        details += [row.reason] if row.reason else []
    details += _compute(edge.edge, run_view)
    traffic = (row.up_bytes, row.down_bytes) if row else (0, 0)
    return Node(f"edge {edge.edge}", edge.edge, "edge", state, "cloud", tuple(details), *traffic)


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


def _group(run_view: RunView | None, client: str) -> str | None:
    """The number of a client's group, if the algorithm forms groups."""
    for row in reversed(run_view.rounds if run_view else ()):
        groups = row.figures.get("cloud", {}).get("groups")
        if groups:
            return next((str(number) for number, members in enumerate(groups, 1) if client in members), None)
    return None


def _training_seats(run_view: RunView | None, topology: TopologyInfo, agents: Mapping[str, AgentInfo]) -> set[int]:
    """The seats whose visit is running according to heartbeats; none unless this is the active run."""
    if run_view is None or topology.active_run != run_view.info.run:
        return set()
    return {agent.visiting for agent in agents.values() if agent.visiting is not None and agent.state not in _GONE}


def _seat(seat: SeatInfo, run_view: RunView, agents: Mapping[str, AgentInfo], training: set[int]) -> Node:
    visits = run_view.last_visits.get(seat.seat, [])
    last = visits[-1] if visits else None
    state = _state(seat, last[1] if last else None, is_training=seat.seat in training)
    agent = agents.get(seat.agent or "")
    details = [f"profile {seat.profile}{', straggler' if seat.straggler else ''}", f"{seat.n_train} training samples"]
    details += ["faulty data"] if seat.faulty else []
    details += [f"on agent {agent.name}, {agent.state}"] if agent else []
    details += [seat.reason] if seat.reason else []
    if last is not None:
        details.append(f"round {last[0]}: {_outcome(last[1])}, {last[1].simulated_s:.3g} s")
    fresh = last is not None and run_view.newest is not None and last[0] == run_view.newest.round_no
    traffic = (last[1].up_bytes, last[1].down_bytes) if last and fresh else (0, 0)
    parent = f"edge {seat.edge}" if seat.edge else None
    return Node(f"seat {seat.seat}", str(seat.seat), "device", state, parent, tuple(details), *traffic)


def _outcome(row: VisitRow) -> str:
    return ", ".join(filter(None, (row.outcome, row.reason, row.label and f"class {row.label}")))


def _state(seat: SeatInfo, last: VisitRow | None, *, is_training: bool) -> str:
    if seat.state in ("lost", "offline"):
        return seat.state
    if seat.state == "retired":
        return "refused"
    if is_training:
        return "training"
    if last is None:
        return "waiting"
    if last.reason in _LATE:
        return "late"
    if last.reason in _OFF:
        return "offline"
    return {"refused": "refused", "failed": "failed", "idle": "waiting"}.get(last.outcome, "used")


def _agent(agent: AgentInfo) -> Node:
    state = "lost" if agent.state in _GONE else "offline" if agent.reason or not agent.online else "waiting"
    why = f" ({agent.reason})" if agent.reason else ""
    heartbeat = f"{agent.state}{why}, last heartbeat {agent.last_seen_s:.0f} s ago"
    details = (f"{agent.devices} devices, profile {agent.profile}", heartbeat)
    parent = f"edge {agent.edge}" if agent.edge else None
    return Node(f"agent {agent.agent}", agent.name, "device", state, parent, details)


def device_counts(nodes: Iterable[Node]) -> dict[str, int]:
    """The number of devices by state, without zeros, in the order of the legend."""
    counts: dict[str, int] = defaultdict(int)
    for node in nodes:
        counts[node.state] += node.tier == "device"
    return {state: counts[state] for state in STATES if counts[state]}


def devices_by_parent(nodes: Sequence[Node]) -> dict[str | None, list[Node]]:
    """Devices by the key of their parent."""
    children: dict[str | None, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.tier == "device":
            children[node.parent].append(node)
    return children
