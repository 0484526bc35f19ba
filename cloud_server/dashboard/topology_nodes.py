"""The content of the topology page: cloud, edges and devices as nodes, each in one state (drawn by `topology_grid`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloud_server.dashboard.run_views import SHOWN_SEATS, RunView
from shared.core.clocks import is_off, told_clock
from shared.core.formatting import counted
from shared.run_records.groups import groups_text
from shared.run_records.rounds import EdgeRow
from shared.run_records.runs import SeatInfo
from shared.run_records.visits import ENDS, VisitRow, end_of
from shared.service.api.nodes import AgentInfo, EdgeInfo, TopologyInfo

STATES = {
    "training": "a task is in progress",
    "used": "last update was used",
    "tested": "last task only tested a model or collected samples",
    "waiting": "no task yet, not selected, or not in this run",
    "late": "last update came too late, or was not waited for",
    "refused": "last update was refused by the algorithm, or the device is retired",
    "failed": "last task failed or was dropped",
    "busy": "could not begin its task: still at work on a late update",
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
        agent: the id of a device's agent.
        word: the state in words, where they are others.
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
    agent: str = ""
    word: str = ""
    in_flight: tuple[str, ...] = ()
    staleness: int | None = None

    @property
    def title(self) -> str:
        """What it is and its state: `device 3: used`, `edge-1: answered in round 10`."""
        return f"{'device ' if self.tier == 'device' else ''}{self.name}: {self.word or self.state}"


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


def n_in_run(topology: TopologyInfo, run_view: RunView | None) -> int:
    """The number of them that are in the run."""
    agents = {agent.agent: agent for agent in topology.agents}
    return _hosted(topology, run_view, _seats(topology, run_view, agents)).total()


def _hosted(topology: TopologyInfo, run_view: RunView | None, seats: Sequence[SeatInfo]) -> Counter[str | None]:
    """By agent, its devices in the run, also those that are not shown."""
    if run_view is None or run_view.shows_all:
        return Counter(seat.agent for seat in seats)
    agents = {agent.agent: agent for agent in topology.agents}
    kept = (name for name in run_view.hosted if _is_kept(name, topology, run_view, agents))
    return Counter({name: len(run_view.hosted[name]) for name in kept})


def _seats(topology: TopologyInfo, run_view: RunView | None, agents: Mapping[str, AgentInfo]) -> list[SeatInfo]:
    """The run's devices: seats without an agent have none, nor have those whose agent is not kept."""
    if run_view is None:
        return []
    found = [seat for seat in run_view.seats if seat.role != "worker"]
    return [seat for seat in found if seat.agent and _is_kept(seat.agent, topology, run_view, agents)]


def _is_kept(name: str, topology: TopologyInfo, run_view: RunView, agents: Mapping[str, AgentInfo]) -> bool:
    """Whether an agent's devices in a run count: in an earlier run, those of an agent that was stopped do not."""
    return _is_active(topology, run_view) or (name in agents and agents[name].state not in _STOPPED)


def _is_active(topology: TopologyInfo, run_view: RunView) -> bool:
    return run_view.info.run in (topology.active_run, *topology.active_runs)


def _spare(agent: AgentInfo, hosted: int) -> list[Node]:
    """An agent's devices beyond those in the run."""
    if agent.state in _STOPPED:
        return []
    elsewhere = 0 if hosted else len(agent.seats)
    visits = agent.visiting is not None and elsewhere > 0
    state = _absence(agent) or "waiting"
    why = f" ({agent.reason})" if agent.reason else ""
    details = (
        "takes part in another run" if elsewhere else "in no run",
        f"on agent {agent.name}, {agent.state}{why}, profile {agent.profile}",
        f"last heartbeat {agent.last_seen_s:.0f} s ago",
        *_clock(agent),
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
            agent=agent.agent,
        )
        for number in numbers
    ]


def _clock(node: AgentInfo | EdgeInfo) -> list[str]:
    """A line for a node whose clock is wrong."""
    return [told_clock("it", node.clock_ahead_s or 0.0)] if is_off(node.clock_ahead_s) else []


# ---- edges


def _edge_rows(run_view: RunView | None) -> Mapping[str, list[EdgeRow]]:
    """The rows of the newest round by edge: one for each home that it served, or for each answer that counted."""
    rows: dict[str, list[EdgeRow]] = defaultdict(list)
    for row in run_view.newest.edges if run_view and run_view.newest else ():
        rows[row.edge].append(row)
    return rows


def _edge(edge: EdgeInfo, rows: Sequence[EdgeRow], run_view: RunView | None, groups: Mapping[str, int]) -> Node:
    details = [f"{edge.state}, hears the heartbeats of {counted(edge.n_agents, 'agent')}"]
    details += [edge.reason] if edge.reason else []
    details += _clock(edge)
    for row in rows:
        old = f", {_old(row.staleness)}" if run_view and run_view.info.spec.sync.edges.asynchronous else ""
        time = f"{counted(row.n_used, 'update')} used, {row.simulated_s:.3g} s in the last {_word(run_view)}{old}"
        details.append(f"serves edge number {row.home}: {time}{f' ({row.reason})' if row.reason else ''}")
        group = groups.get(f"edge-{row.home}")
        details += [f"edge number {row.home} is in group {group}"] if group else []
    in_flight = _in_flight(edge.edge, run_view)
    details += [*in_flight, *_compute(edge.edge, run_view)]
    traffic = sum(row.up_bytes for row in rows), sum(row.down_bytes for row in rows)
    state = "lost" if edge.state in _GONE else _edge_state([row.outcome for row in rows])
    return Node(
        f"edge {edge.edge}",
        edge.edge,
        "edge",
        state,
        "cloud",
        tuple(details),
        *traffic,
        word=_edge_word(state, run_view),
        in_flight=tuple(in_flight),
    )


def _edge_state(outcomes: Sequence[str]) -> str:
    """The state of an edge by what its homes did: the worst of it."""
    words = {"failed": "failed", "away": "lost", "idle": "waiting"}
    found = {words.get(outcome, "used") for outcome in outcomes}
    return next((state for state in ("lost", "failed", "used") if state in found), "waiting")


def _edge_word(state: str, run_view: RunView | None) -> str:
    """The state of an edge in words, with the round in which it answered or failed."""
    if run_view is None or run_view.newest is None or state not in ("used", "failed"):
        return {"waiting": "idle"}.get(state, state)
    return f"{'answered' if state == 'used' else state} in {_word(run_view)} {run_view.newest.round_no}"


def _in_flight(edge: str, run_view: RunView | None) -> list[str]:
    """The orders in flight of the homes that an edge serves, each with its age."""
    if run_view is None:
        return []
    homes = {seat.home for seat in run_view.seats if seat.edge == edge}
    made = run_view.newest.round_no if run_view.newest else 0
    versions = [version for home, version in run_view.in_flight.items() if home in homes]
    return [f"request in flight, {_old(max(made - version, 0))}" for version in versions]


def _old(staleness: int) -> str:
    return f"{counted(staleness, 'version')} old"


def _word(run_view: RunView | None) -> str:
    return run_view.info.spec.sync.round_word if run_view else "round"


def _compute(edge: str, run_view: RunView | None) -> list[str]:
    """The total compute of an edge's devices and, according to its digital twins, how much of it is free."""
    seats = run_view.seats if run_view and run_view.shows_all else ()
    total = sum(seat.compute_sps or 0.0 for seat in seats if seat.edge == edge)
    details = [f"its devices can train {total:.4g} samples/s of the reference model"] if total else []
    twins = run_view.twins.get(edge, ()) if run_view else ()
    if twins:
        free = sum(twin.telemetry.free_sps for twin in twins if twin.telemetry.on)
        details.append(f"{free:.4g} of them are free according to {counted(len(twins), 'digital twin')}")
    return details


def _groups(run_view: RunView | None) -> Mapping[str, int]:
    """The number of each client's group by the client's key (`edge-0`: home 0), if the algorithm forms groups."""
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
    state = _state(seat, agent, last[1] if last else None, is_training=visits_now)
    details = [f"profile {seat.profile}{', straggler' if seat.straggler else ''}", f"{seat.n_train} training samples"]
    details += [groups] if (groups := groups_text(seat)) else []
    details += ["faulty data"] if seat.faulty else []
    details += [f"on agent {agent.name}, {agent.state}"] if agent else []
    details += [seat.reason] if seat.reason else []
    if last is not None:
        details.append(f"{_word(run_view)} {last[0]}: {outcome_of(last[1])}, {last[1].simulated_s:.3g} s")
    used = next((row for _, row in reversed(visits) if row.outcome in ("used", "used_late")), None)
    staleness = used.staleness if used and run_view.info.spec.sync.devices.asynchronous else None
    details += [f"last used update was {_old(staleness)}"] if staleness is not None else []
    age = run_view.visits_in_flight.get(seat.seat)
    in_flight = () if age is None else (f"task in flight, {_old(age)}",)
    details += in_flight
    fresh = last is not None and run_view.newest is not None and last[0] == run_view.newest.round_no
    traffic = (last[1].up_bytes, last[1].down_bytes) if last and fresh else (0, 0)
    parent = f"edge {seat.edge}" if seat.edge else None
    name = str(seat.seat)
    return Node(
        f"seat {name}",
        name,
        "device",
        state,
        parent,
        tuple(details),
        *traffic,
        host=agent.name if agent else "",
        agent=seat.agent or "",
        in_flight=in_flight,
        staleness=staleness,
    )


def outcome_of(row: VisitRow) -> str:
    """How a visit ended, in the words of the run's tables, with a reason that says more."""
    end = end_of(row.outcome, row.reason)
    reason = None if row.reason == end else row.reason
    return ", ".join(filter(None, (end, reason, row.label and f"class {row.label}")))


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


def _state(seat: SeatInfo, agent: AgentInfo | None, last: VisitRow | None, *, is_training: bool) -> str:
    if seat.state == "retired":
        return "refused"
    absence = _absence(agent) if agent else seat.state
    if absence in ("lost", "offline"):
        return absence
    if is_training:
        return "training"
    return state_of(last) if last else "waiting"


def _absence(agent: AgentInfo) -> str | None:
    """`lost` or `offline` if an agent makes no visits now; seats say so too, but are read less often."""
    if agent.state in ("lost", "left"):
        return "lost"
    return "offline" if agent.reason or not agent.online else None


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
