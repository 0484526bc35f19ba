"""The fleet as the cloud knows it: the wanted numbers of devices, the agents that it runs, those that it may stop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cloud_server.nodes.registry import Registry
from shared.core.bounds import LARGEST_DEVICES
from shared.core.errors import BadInput, Conflict, UnknownName
from shared.service.api.membership import FleetOrders, FleetReport
from shared.service.api.nodes import FleetInfo
from shared.storage import redis_keys
from shared.storage.key_value import Store

NO_FLEET = (
    "no fleet is connected that could change the number of devices: `strata up` and `strata run` have one for local "
    "processes; for containers start it by `docker compose --profile scale up -d fleet`"
)


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
        ttl_s: a fleet that is silent for longer counts as disconnected.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        seats_by_agent: Callable[[], Mapping[str, object]],
        ttl_s: float,
    ) -> None:
        self.store, self.registry, self.seats_by_agent, self.ttl_s = store, registry, seats_by_agent, ttl_s
        self._heard: _ReceivedReport | None = None

    async def wanted_devices(self) -> dict[str, int]:
        """The wanted devices by service, as last set; empty if never."""
        stored = await self.store.get(redis_keys.cloud_topology())
        return dict(json.loads(stored)) if stored else {}

    # ---- the fleet's side

    async def receive_report(self, report: FleetReport) -> FleetOrders:
        """Take a report; returns what is wanted, and the leaving agents that no round needs any more.

        Raises:
            Conflict: another fleet is connected.
        """
        now, before = self.registry.clock(), self._connected()
        if before is not None and before.report.fleet != report.fleet:
            raise Conflict(f"fleet {before.report.fleet} is connected already", field="fleet")
        if report.begins:
            await self.store.delete(redis_keys.cloud_topology())
        for agents in self.registry.agents_by_name(report.left).values():
            for agent in agents:
                await self.registry.mark_left(agent)
        leaving, seated = self.registry.agents_by_name(report.leaving), self.seats_by_agent()
        self.registry.mark_leaving((agent for agents in leaving.values() for agent in agents), self.ttl_s)
        self._heard = _ReceivedReport(report, before.since if before else now, now)
        released = [name for name, agents in leaving.items() if seated.keys().isdisjoint(agents)]
        return FleetOrders(wanted=await self.wanted_devices(), released=tuple(released))

    def _connected(self) -> _ReceivedReport | None:
        heard = self._heard
        return heard if heard is not None and self.registry.clock() - heard.at <= self.ttl_s else None

    # ---- the user's side

    async def set_wanted_devices(self, devices: int | Mapping[str, int]) -> None:
        """Set the wanted number of devices; numbers of services that the fleet no longer has are forgotten.

        Raises:
            Conflict: no fleet is connected.
            BadInput: the fleet cannot run that number; names the field and the cause.
        """
        heard = self._connected()
        if heard is None:
            raise Conflict(NO_FLEET, field="devices")
        services = heard.report.services
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
