"""What the topology page shows: cloud, edges and devices as nodes with a state, apart from how they are drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloud_server.dashboard.run_views import RunView
from shared.run_records.rounds import EdgeRow
from shared.run_records.runs import SeatInfo
from shared.run_records.visits import SeatRow
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo

STATES = {
    "trains": "is at work now",
    "used": "its last update was used",
    "waits": "has made no visit yet, or was not chosen",
    "late": "came too late, or was not waited for",
    "refused": "the algorithm refused its update",
    "failed": "its last visit was lost",
    "offline": "was taken offline, or is off",
    "lost": "is not heard any more",
}
"""Of devices, in the order of the legend, in words."""
_LATE = ("late", "surplus")
_GONE = ("lost", "left", "leaving")
_OFF = ("unavailable", "busy", "absent")


@dataclass(frozen=True)
class Node:
    """A cloud, an edge, or a device.

    Attributes:
        key: `cloud`, `edge NAME`, `seat NUMBER` or `agent ID`.
        above: the key of the node that it is linked to.
        words: what is to be known of it, line by line.
        up_bytes, down_bytes: on that link in the newest round.
    """

    key: str
    name: str
    tier: str
    state: str
    above: str | None = None
    words: tuple[str, ...] = ()
    up_bytes: int = 0
    down_bytes: int = 0


def topology_view(topology: TopologyInfo, watched: RunView | None) -> list[Node]:
    """All nodes: of a run that has started its seats, and the agents that have none of them."""
    seats = watched.seats if watched else ()
    agents = {agent.agent: agent for agent in topology.agents}
    at_work = _at_work(watched, topology, agents)
    rows = _edge_rows(watched)
    cloud = Node("cloud", "cloud", "cloud", "trains" if topology.active_run else "waits", words=_of_cloud(topology))
    edges = [_edge(edge, rows.get(edge.edge), watched) for edge in topology.edges]
    if watched is not None and seats:
        taken = [seat for seat in seats if seat.state != "empty"]
        seated = {seat.agent for seat in taken}
        others = [agent for agent in topology.agents if agent.agent not in seated and agent.state not in _GONE]
        return [cloud, *edges, *(_seat(seat, watched, agents, at_work) for seat in taken), *map(_agent, others)]
    return [cloud, *edges, *map(_agent, topology.agents)]


def _of_cloud(topology: TopologyInfo) -> tuple[str, ...]:
    found = [f"{topology.n_devices} devices by {topology.n_agents} agents"]
    return (*found, f"run {topology.active_run} trains" if topology.active_run else "no run trains")


def _edge_rows(watched: RunView | None) -> Mapping[str, EdgeRow]:
    return {row.edge: row for row in watched.newest.edges} if watched and watched.newest else {}


def _edge(edge: EdgeInfo, row: EdgeRow | None, watched: RunView | None) -> Node:
    gone = edge.state in _GONE
    state = "lost" if gone else {"failed": "failed", "away": "lost"}.get(row.outcome, "used") if row else "waits"
    words = [f"{edge.state}, agents that report to it: {edge.n_agents}"]
    if row is not None:
        words.append(f"environment {row.home}: {row.n_used} updates used, {row.simulated_s:.3g} s in the last round")
        group = _group(watched, str(row.home))
        words += [f"group {group}"] if group else []
        words += [row.reason] if row.reason else []
    words += _compute(edge.edge, watched)
    key, used = f"edge {edge.edge}", (row.up_bytes, row.down_bytes) if row else (0, 0)
    return Node(key, edge.edge, "edge", state, "cloud", tuple(words), *used)


def _compute(edge: str, watched: RunView | None) -> list[str]:
    """What the devices of an edge can do, and what of that is free by its digital twins."""
    able = sum(seat.compute_sps or 0.0 for seat in watched.seats if seat.edge == edge) if watched else 0.0
    found = [f"its devices can train {able:.4g} samples/s"] if able else []
    twins = watched.twins.get(edge, ()) if watched else ()
    if twins:
        free = sum(twin.telemetry.free_sps for twin in twins if twin.telemetry.on)
        found.append(f"{free:.4g} samples/s are free by its {len(twins)} digital twins")
    return found


def _group(watched: RunView | None, client: str) -> str | None:
    """The group of a client, where its algorithm puts clients into groups."""
    for row in reversed(watched.rounds if watched else ()):
        groups = row.figures.get("cloud", {}).get("groups")
        if groups:
            return next((str(number) for number, members in enumerate(groups, 1) if client in members), None)
    return None


def _at_work(watched: RunView | None, topology: TopologyInfo, agents: Mapping[str, AgentInfo]) -> set[int]:
    """Seats whose visit runs now, as heartbeats tell: only of the run that trains."""
    if watched is None or topology.active_run != watched.info.run:
        return set()
    return {agent.visiting for agent in agents.values() if agent.visiting is not None and agent.state not in _GONE}


def _seat(seat: SeatInfo, watched: RunView, agents: Mapping[str, AgentInfo], at_work: set[int]) -> Node:
    past = watched.history.get(seat.seat, [])
    last = past[-1] if past else None
    state = _state(seat, last[1] if last else None, working=seat.seat in at_work)
    agent = agents.get(seat.agent or "")
    words = [f"profile {seat.profile}{', straggler' if seat.straggler else ''}", f"{seat.n_train} training samples"]
    words += [f"on agent {agent.name}, {agent.state}"] if agent else []
    words += [seat.reason] if seat.reason else []
    if last is not None:
        words.append(f"round {last[0]}: {_outcome(last[1])}, {last[1].simulated_s:.3g} s")
    fresh = last is not None and watched.newest is not None and last[0] == watched.newest.round_no
    used = (last[1].up_bytes, last[1].down_bytes) if last and fresh else (0, 0)
    above = f"edge {seat.edge}" if seat.edge else None
    return Node(f"seat {seat.seat}", str(seat.seat), "device", state, above, tuple(words), *used)


def _outcome(row: SeatRow) -> str:
    return ", ".join(filter(None, (row.outcome, row.reason, row.label and f"class {row.label}")))


def _state(seat: SeatInfo, last: SeatRow | None, *, working: bool) -> str:
    if seat.state in ("lost", "offline"):
        return seat.state
    if seat.state == "retired":
        return "refused"
    if working:
        return "trains"
    if last is None:
        return "waits"
    if last.reason in _LATE:
        return "late"
    if last.reason in _OFF:
        return "offline"
    return {"refused": "refused", "failed": "failed", "idle": "waits"}.get(last.outcome, "used")


def _agent(agent: AgentInfo) -> Node:
    state = "lost" if agent.state in _GONE else "waits" if agent.online else "offline"
    words = (f"{agent.devices} devices, profile {agent.profile}", f"{agent.state}, heard {agent.last_seen_s:.0f} s ago")
    above = f"edge {agent.edge}" if agent.edge else None
    return Node(f"agent {agent.agent}", agent.name, "device", state, above, words)


def counted(nodes: Iterable[Node]) -> dict[str, int]:
    """Devices by state, of states that there are, in the order of the legend."""
    found: dict[str, int] = defaultdict(int)
    for node in nodes:
        found[node.state] += node.tier == "device"
    return {state: found[state] for state in STATES if found.get(state)}


def below(nodes: Sequence[Node]) -> dict[str | None, list[Node]]:
    """Devices by the node above them."""
    found: dict[str | None, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.tier == "device":
            found[node.above].append(node)
    return found
