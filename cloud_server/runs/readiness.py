"""The barriers before a run and before each round: how many edges and devices must be alive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.nodes.registry import Registry
from cloud_server.runs.placement import PlacementChange, PlacementManager
from shared.core.errors import NotReady
from shared.spec.experiment import ExperimentSpec

POLL_S = 0.1
"""Wall seconds between two checks of a wait."""


@dataclass(frozen=True)
class Barrier:
    """Waits for edges and devices.

    Args:
        registry: knows which nodes are alive.
        agents: returns the live agents that may host seats of the run.
        settle_s: with fewer devices than requested, a run starts once no new one has registered for so many seconds.
        may_continue: whether to go on waiting.
    """

    registry: Registry
    agents: Callable[[], Sequence[AgentEntry]]
    settle_s: float
    may_continue: Callable[[], bool]

    async def start(self, spec: ExperimentSpec, *, resumed: bool) -> AsyncIterator[str]:
        """Wait until a run can start; yields what is missing whenever that changes.

        The run starts at once when all edges and devices that the spec requests are alive. With fewer devices, or
        fewer edges for a resumed run, it starts once no new node has registered for a while.

        Raises:
            NotReady: too few came in time; says how many of how many.
        """
        ends = time.monotonic() + spec.timeouts.ready_s
        reported = ""
        while self.may_continue():
            missing = self._missing(spec, resumed=resumed)
            if missing is None:
                return
            if time.monotonic() > ends:
                raise NotReady(f"waited {spec.timeouts.ready_s:g} s for {missing}")
            if missing != reported:
                yield missing
                reported = missing
            await asyncio.sleep(POLL_S)

    def _missing(self, spec: ExperimentSpec, *, resumed: bool) -> str | None:
        n_edges, room = len(self.registry.open_edges()), sum(entry.devices for entry in self.agents())
        all_edges, all_devices = spec.num_edges or 1, spec.num_devices or spec.min_devices
        settled = self.registry.clock() - self.registry.changed_at >= self.settle_s
        named = spec.num_edges is not None and spec.num_devices is not None
        if n_edges >= all_edges and room >= all_devices and (named or settled):
            return None
        if settled and n_edges >= (1 if resumed else all_edges) and room >= spec.min_devices:
            return None
        if n_edges >= all_edges and room >= all_devices:
            return f"more devices: {room} so far (edges: {n_edges})"
        left_out = self.registry.left_out()
        why = (
            f"; left out: {left_out}" if left_out else _more_edges(all_edges) if settled and n_edges < all_edges else ""
        )
        return _counts(n_edges, all_edges, room, all_devices) + why

    async def round(
        self, spec: ExperimentSpec, placement: PlacementManager, changes: list[PlacementChange]
    ) -> AsyncIterator[str]:
        """Wait until `min_devices` devices and enough edges are alive; yields what is missing, once.

        One edge is enough, because the devices of a lost edge visit another one; where edges are the clients, their
        quorum must be alive.

        Args:
            spec: of the run.
            placement: of the run; refreshed while waiting.
            changes: changes of the placement are added here.

        Raises:
            NotReady: too few were alive in time; names the seats.
        """
        ends = time.monotonic() + spec.timeouts.ready_s
        reported = False
        while self.may_continue():
            changes += placement.refresh()
            missing = _missing_in_round(spec, placement)
            if missing is None:
                return
            if time.monotonic() > ends:
                raise NotReady(f"waited {spec.timeouts.ready_s:g} s for {missing}")
            if not reported:
                yield missing
                reported = True
            await asyncio.sleep(POLL_S)


def _counts(n_edges: int, need_edges: int, n_devices: int, need_devices: int) -> str:
    if n_edges < need_edges:
        return f"edges: {n_edges} of {need_edges} (devices: {n_devices}, need {need_devices})"
    return f"devices: {n_devices} of {need_devices} (edges: {n_edges}, need {need_edges})"


def _more_edges(n: int) -> str:
    return f"; `strata scale edge={n}` or `docker compose up -d --scale edge={n}` starts the others"


def _missing_in_round(spec: ExperimentSpec, placement: PlacementManager) -> str | None:
    edges, seats = placement.placement.edges, placement.placement.taken
    absent, offline, served = placement.absent(), placement.offline(), placement.served()
    n_live = len(seats) - len(absent) - len(offline)
    need = spec.quorum_of(len(edges)) if spec.client == "edge" else 1
    if n_live >= spec.min_devices and len(served) >= need:
        return None
    missing = _counts(len(served), need, n_live, spec.min_devices)
    lost = [name for edge, name in sorted(edges.items()) if edge not in served]
    missing += f"; lost devices: {list(islice(absent, 50))}" if absent else ""
    missing += f"; offline devices: {list(islice(offline, 50))}" if offline else ""
    return missing + (f"; lost edges: {', '.join(lost[:20])}" if lost else "")
