"""Who must be there: the barrier before a run starts, and the one before each round. Both end with a named reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from cloud_server.nodes.registry import Registry
from cloud_server.runs.placement import PlacementChange, PlacementManager
from shared.core.errors import NotReady
from shared.spec.experiment import ExperimentSpec

POLL_S = 0.1


@dataclass(frozen=True)
class Barrier:
    """Waits for edges and devices.

    Args:
        registry: who is alive.
        settle_s: with fewer devices than wanted, how long no new one must have come.
        wanted: whether the wait is still wanted; if not, it ends.
    """

    registry: Registry
    settle_s: float
    wanted: Callable[[], bool]

    async def start(self, spec: ExperimentSpec, *, resumed: bool) -> AsyncIterator[str]:
        """Wait until a run can start; yields what is missing whenever that changes.

        With all that the spec names, at once; with fewer devices, or for a run that goes on with fewer edges, once
        nobody new has come for a while.

        Raises:
            NotReady: they did not come in time; says how many there are of how many.
        """
        ends = time.monotonic() + spec.timeouts.ready_s
        told = ""
        while self.wanted():
            missing = self._missing(spec, resumed=resumed)
            if missing is None:
                return
            if time.monotonic() > ends:
                raise NotReady(f"after {spec.timeouts.ready_s:g} s {missing}")
            if missing != told:
                yield missing
                told = missing
            await asyncio.sleep(POLL_S)

    def _missing(self, spec: ExperimentSpec, *, resumed: bool) -> str | None:
        n_edges, room = len(self.registry.live_edges()), self.registry.n_devices()
        all_edges, all_devices = spec.num_edges or 1, spec.num_devices or spec.min_devices
        settled = time.monotonic() - self.registry.changed_at >= self.settle_s
        named = spec.num_edges is not None and spec.num_devices is not None
        if n_edges >= all_edges and room >= all_devices and (named or settled):
            return None
        if settled and n_edges >= (1 if resumed else all_edges) and room >= spec.min_devices:
            return None
        return f"{n_edges} of {all_edges} edges, room for {room} of {all_devices} devices are there"

    async def round(
        self, spec: ExperimentSpec, table: PlacementManager, moves: list[PlacementChange]
    ) -> AsyncIterator[str]:
        """Wait until the devices of `min_devices` seats and enough edges are alive; yields what is missing, once.

        One edge is enough, since devices whose edge is lost visit another one; where edges are the clients, their
        quorum must be there.

        Args:
            spec: of the run.
            table: its seating, refreshed while waiting.
            moves: seats that changed hands are added here.

        Raises:
            NotReady: they did not come in time; names the seats.
        """
        ends = time.monotonic() + spec.timeouts.ready_s
        told = False
        while self.wanted():
            moves += table.refresh()
            missing = _missing_in_round(spec, table)
            if missing is None:
                return
            if time.monotonic() > ends:
                raise NotReady(f"after {spec.timeouts.ready_s:g} s {missing}")
            if not told:
                yield missing
                told = True
            await asyncio.sleep(POLL_S)


def _missing_in_round(spec: ExperimentSpec, table: PlacementManager) -> str | None:
    absent, offline = table.absent(), table.offline()
    n_edges, n_homes = len(table.served()), len(table.placement.edges)
    n_live = len(table.placement.agents) - len(absent) - len(offline)
    need = spec.quorum_of(n_homes) if spec.client == "edge" else 1
    if n_live >= spec.min_devices and n_edges >= need:
        return None
    missing = f"{n_live} of at least {spec.min_devices} devices and {n_edges} of at least {need} edges are alive"
    gone = [edge for home, edge in sorted(table.placement.edges.items()) if home not in table.served()]
    missing += f"; not heard: seats {list(absent)[:50]}" if absent else ""
    missing += f"; offline: seats {list(offline)[:50]}" if offline else ""
    return missing + (f"; not heard: {', '.join(gone[:20])}" if gone else "")
