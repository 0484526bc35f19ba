"""Injects faults into a deployment and undoes them when they are due."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.soak.deployment import Deployment
from tests.soak.plan import Action
from tests.soak.proxy import Fault

LATE_S = 16.0
"""This is longer than the timeout of an order in the soak's specs."""
JUMPS_S = (-400 * 86400.0, -3600.0, 3600.0, 400 * 86400.0)


@dataclass
class FaultInjector:
    """Injects one fault after another; the caller calls `tick` regularly while it does other work.

    Args:
        deployment: gets the faults.
        plan: an endless sequence of faults.
        away_s: duration of a long outage of Redis.
        max_gone: largest number of agents that are removed for good.

    Attributes:
        done: how often each kind was injected; the proxy counts network faults when they take effect.
        skipped: how often the target of a fault was already down.
        gone: agents that were removed for good.
    """

    deployment: Deployment
    plan: Iterator[Action]
    away_s: float = 20.0
    max_gone: int = 3
    done: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    gone: list[str] = field(default_factory=list)
    _undo: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=itertools.count)
    _next: Action | None = None
    _due: float = 0.0

    def tick(self, *, new_faults: bool = True) -> None:
        """Undo the faults that are due, and inject those that are due unless there are to be no new ones."""
        self._undo_due(time.monotonic())
        if not new_faults:
            return
        if self._next is None:
            self._next = next(self.plan)
            self._due = time.monotonic() + self._next.after_s
        if time.monotonic() >= self._due:
            action, self._next = self._next, None
            self._do(action)

    def undo_all(self) -> None:
        """Undo all faults now: killed processes start, frozen ones continue."""
        self._undo_due(float("inf"))
        self.deployment.proxy.disarm()

    def counts(self) -> Counter[str]:
        """Returns how many faults took effect, by kind."""
        return self.done + Counter(f"net_{kind}" for kind, _ in self.deployment.proxy.done)

    def _undo_due(self, now: float) -> None:
        while self._undo and self._undo[0][0] <= now:
            heapq.heappop(self._undo)[2]()

    def _later(self, after_s: float, undo: Callable[[], None]) -> None:
        heapq.heappush(self._undo, (time.monotonic() + after_s, next(self._number), undo))

    # ---- kinds

    def _do(self, action: Action) -> None:
        what, _, how = action.kind.partition("_")
        if action.victim and self._is_down(action.victim):
            self.skipped[action.kind] += 1
            return
        match what:
            case "net":
                self.deployment.proxy.arm(action.victim, Fault(how, LATE_S if how != "loris_down" else LATE_S / 2))
                return  # counted by the proxy when it takes effect
            case "agent" | "edge":
                self._disturb_node(action, how)
            case "cloud":
                self._kill(["cloud"], 0.2 + 2 * action.share)
            case "redis":
                self._kill(["redis"], self.away_s if how == "away" else 0.0)
            case "all":
                all_names = [name for name in self.deployment.names if name not in self.gone]
                self._kill(["redis", *all_names], 0.5 + 2 * action.share)
            case "disk":
                self.deployment.fill_disk(action.victim)
                self._later(2 + 4 * action.share, lambda: self.deployment.free_disk(action.victim))
            case "clock":
                self.deployment.set_clock(action.victim, JUMPS_S[int(action.share * len(JUMPS_S))])
            case unknown:
                raise AssertionError(f"no such fault: {unknown}")
        self.done[action.kind] += 1

    def _disturb_node(self, action: Action, how: str) -> None:
        name, ttl_s = action.victim, self.deployment.ttl_s
        match how:
            case "kill_soon":
                self._kill([name], 0.5 * ttl_s * action.share)
            case "kill_late":
                self._kill([name], ttl_s * (1.5 + 2 * action.share))
            case "freeze_short":
                self._freeze(name, ttl_s * 0.6 * action.share)
            case "freeze_long":
                self._freeze(name, ttl_s * (1.5 + action.share))
            case "gone":
                self._replace(name)
            case unknown:
                raise AssertionError(f"no such fault: {unknown}")

    def _is_down(self, name: str) -> bool:
        return name in self.deployment.down or name in self.deployment.frozen

    def _kill(self, names: list[str], for_s: float) -> None:
        killed = [name for name in names if name not in self.deployment.down]
        self.deployment.kill(*killed)
        self._later(for_s, lambda: self.deployment.start(*(name for name in killed if name in self.deployment.down)))

    def _freeze(self, name: str, for_s: float) -> None:
        self.deployment.freeze(name)
        self._later(for_s, lambda: self.deployment.thaw(name))

    def _replace(self, name: str) -> None:
        """Remove an agent for good; a new one takes its place."""
        if len(self.gone) >= self.max_gone:
            self._kill([name], 0.0)
            return
        self.deployment.kill(name)
        self.gone.append(name)
        n_devices = self.deployment.topology.devices_per_agent[int(name.rpartition("-")[2]) - 1]
        self._later(1.0, lambda: self._add_agent(n_devices))

    def _add_agent(self, n_devices: int) -> None:
        self.deployment.topology.add_agent(n_devices)
