"""The fleet as the cloud knows it: how many devices and edges are wanted, what it runs, and what it may stop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from cloud_server.nodes.registry import Registry
from cloud_server.nodes.revocation import forget
from shared.core.bounds import LARGEST_DEVICES
from shared.core.errors import BadInput, Conflict, UnknownName
from shared.service.api.membership import FleetOrders, FleetReport
from shared.service.api.nodes import FleetInfo
from shared.storage import redis_keys
from shared.storage.key_value import Store

NO_FLEET = (
    "no fleet is connected that could change the number of devices or edges: `strata up`, `strata run` and the core's "
    "job on Slurm have one; for containers start it by `docker compose --profile scale up -d fleet`, in Kubernetes by "
    "the chart's value `fleet.enabled`"
)

NO_EDGES = "the connected fleet starts and stops no edges; in Compose `docker compose up -d --scale edge=N` does"


@dataclass
class _ReceivedReport:
    """The last report of the connected fleet, and the times (monotonic) of its first and last report."""

    report: FleetReport
    since: float
    at: float


class Fleet:
    """Takes reports of the fleet, one at a time, and returns what is wanted. It never affects a result.

    Args:
        store: stores the wanted numbers.
        registry: knows which nodes are alive.
        seats_by_agent: returns the seats of each agent that has any in the run that trains.
        edges_in_use: returns the edges of runs that have not ended, each with its run.
        ttl_s: a fleet that is silent for longer counts as disconnected.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        seats_by_agent: Callable[[], Mapping[str, object]],
        edges_in_use: Callable[[], Awaitable[Mapping[str, str]]],
        ttl_s: float,
    ) -> None:
        self.store, self.registry, self.ttl_s = store, registry, ttl_s
        self.seats_by_agent, self.edges_in_use = seats_by_agent, edges_in_use
        self._heard: _ReceivedReport | None = None

    async def wanted_devices(self) -> dict[str, int]:
        """The wanted devices by service, as last set; empty if never."""
        stored = await self.store.get(redis_keys.cloud_topology())
        return dict(json.loads(stored)) if stored else {}

    async def wanted_edges(self) -> int | None:
        """The wanted edges, as last set; None if never."""
        stored = await self.store.get(redis_keys.cloud_wanted_edges())
        return int(stored) if stored else None

    # ---- the fleet's side

    async def receive_report(self, report: FleetReport) -> FleetOrders:
        """Take a report; returns what is wanted, the leaving agents that no round needs, and edges that no run needs.

        Raises:
            Conflict: another fleet is connected.
        """
        now, before = self.registry.clock(), self._connected()
        if before is not None and before.report.fleet != report.fleet:
            raise Conflict(f"fleet {before.report.fleet} is connected already", field="fleet")
        if report.begins:
            await self.store.delete(redis_keys.cloud_topology())
            await self.store.delete(redis_keys.cloud_wanted_edges())
        for agents in self.registry.agents_by_name(report.left).values():
            for agent in agents:
                await self.registry.mark_left(agent)
        for edges in self._edges(report.left).values():
            for edge in edges:
                await forget(self.registry, "edge", edge)
        ending = self._edges(set(report.edges or ()).intersection(report.leaving))
        leaving = self.registry.agents_by_name(name for name in report.leaving if name not in ending)
        agents_ending = (agent for agents in leaving.values() for agent in agents)
        self.registry.mark_leaving(agents_ending, (edge for edges in ending.values() for edge in edges), self.ttl_s)
        self._heard = _ReceivedReport(report, before.since if before else now, now)
        seated, in_use = self.seats_by_agent(), await self.edges_in_use() if ending else {}
        released = [name for name, agents in leaving.items() if seated.keys().isdisjoint(agents)]
        released += [name for name, edges in sorted(ending.items()) if in_use.keys().isdisjoint(edges)]
        return FleetOrders(
            wanted=await self.wanted_devices(), wanted_edges=await self.wanted_edges(), released=tuple(released)
        )

    def _edges(self, names: Iterable[str]) -> dict[str, list[str]]:
        """By name, the edges of that name, alive or not: any edge may say that it has the name of another."""
        found: dict[str, list[str]] = {name: [] for name in names}
        for edge, entry in sorted(self.registry.edges.items()):
            if entry.name in found:
                found[entry.name].append(edge)
        return found

    def _connected(self) -> _ReceivedReport | None:
        heard = self._heard
        return heard if heard is not None and self.registry.clock() - heard.at <= self.ttl_s else None

    # ---- the user's side

    async def set_wanted(self, devices: int | Mapping[str, int] | None = None, edges: int | None = None) -> None:
        """Set how many devices and edges are wanted; None leaves a number as it is.

        Raises:
            Conflict: no fleet is connected, it scales no edges, or a run needs edges that would be stopped.
            BadInput: the fleet cannot run that number of devices; names the field and the cause.
        """
        heard = self._connected()
        if heard is None:
            raise Conflict(NO_FLEET, field="edges" if devices is None else "devices")
        if edges is not None:
            await self._check_edges(edges, heard.report)
        if devices is not None:
            await self._set_devices(devices, heard.report)
        if edges is not None:
            await self.store.put(redis_keys.cloud_wanted_edges(), str(edges).encode())

    async def _check_edges(self, edges: int, report: FleetReport) -> None:
        """Check that the fleet can have so many edges.

        A run keeps its edges until it ends; only spare ones can be stopped before.

        Raises:
            Conflict: it cannot; the message says what would help.
        """
        if report.edges is None:
            raise Conflict(NO_EDGES, field="edges")
        if edges >= len(report.edges):
            return
        in_use = await self.edges_in_use()
        found = ({in_use[edge] for edge in known if edge in in_use} for known in self._edges(report.edges).values())
        if needed := [runs for runs in found if runs]:
            users = ", ".join(sorted(set().union(*needed)))
            why = f"of {len(report.edges)} edges {len(needed)} are needed until the end of {users}"
            raise Conflict(f"{why}: fewer are possible then, or once it has been stopped", field="edges")

    async def _set_devices(self, devices: int | Mapping[str, int], report: FleetReport) -> None:
        """Set the wanted number of devices; numbers of services that the fleet no longer has are forgotten.

        Raises:
            BadInput: the fleet cannot run that number; names the field and the cause.
        """
        services = report.services
        named = _by_service(devices, services)
        before = {name: number for name, number in (await self.wanted_devices()).items() if name in services}
        wanted = {**before, **named}
        if sum(wanted.values()) > LARGEST_DEVICES:
            raise BadInput(f"{sum(wanted.values())} devices, at most {LARGEST_DEVICES}", field="devices")
        await self.store.put(redis_keys.cloud_topology(), json.dumps(wanted, sort_keys=True).encode())

    def present(self) -> dict[str, int]:
        """By service, the devices of the fleet's agents that are alive and not leaving."""
        heard = self._connected()
        if heard is None:
            return {}
        staying = {entry.name for entry in self.registry.agents.values() if self._stays(entry.agent)}
        report = heard.report
        found = Counter(dict.fromkeys(report.services, 0))
        found.update(_devices((agent.service, agent.devices) for agent in report.agents if agent.name in staying))
        return dict(sorted(found.items()))

    def present_edges(self) -> int | None:
        """The edges of the fleet that are alive and not leaving; None if it scales none."""
        heard = self._connected()
        if heard is None or heard.report.edges is None:
            return None
        open_edges = set(self.registry.open_edges())
        return sum(not open_edges.isdisjoint(edges) for edges in self._edges(heard.report.edges).values())

    def _stays(self, agent: str) -> bool:
        return self.registry.agent_is_live(agent) and not self.registry.is_leaving(agent)

    def info(self) -> FleetInfo | None:
        """The connected fleet, None if there is none."""
        heard = self._connected()
        if heard is None:
            return None
        now, report = self.registry.clock(), heard.report
        return FleetInfo(
            fleet=report.fleet,
            since_s=round(now - heard.since, 3),
            last_seen_s=round(now - heard.at, 3),
            services=dict(report.services),
            wanted=dict(report.wanted),
            wanted_edges=report.wanted_edges,
            running_edges=None if report.edges is None else len(report.edges),
            running=dict(_devices((agent.service, agent.devices) for agent in report.agents)),
            leaving=report.leaving,
            error=report.error,
        )


def _devices(agents: Iterable[tuple[str, int]]) -> Counter[str]:
    """Devices by service."""
    found: Counter[str] = Counter()
    for service, devices in agents:
        found[service] += devices
    return found


def _by_service(devices: int | Mapping[str, int], services: Mapping[str, int | None]) -> dict[str, int]:
    """The wanted numbers by service.

    Raises:
        BadInput: it is not clear which service is meant, there is none of that name, or it cannot have that number.
    """
    if isinstance(devices, int):
        if len(services) > 1:
            raise BadInput(
                f"the fleet scales {', '.join(sorted(services))}: say how many of each, as a mapping", field="devices"
            )
        named = dict.fromkeys(services, devices)
    else:
        named = dict(devices)
    for service, number in named.items():
        field = "devices" if isinstance(devices, int) else f"devices.{service}"
        if service not in services:
            raise UnknownName("service", service, list(services), field=field)
        each = services[service] or 1
        if number % each:
            low = number - number % each
            raise BadInput(
                f"an agent of {service} hosts {each} devices: {number} is not a multiple of {each}; "
                f"{low} and {low + each} are",
                field=field,
            )
    return named
