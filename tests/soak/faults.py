"""Does faults to a world, and undoes them when their time has come."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.soak.plan import Action
from tests.soak.proxy import Fault
from tests.soak.world import World

LATE_S = 16.0
"""Longer than an order may take in the soak's specs."""
JUMPS_S = (-400 * 86400.0, -3600.0, 3600.0, 400 * 86400.0)


@dataclass
class Mischief:
    """Faults that come one after another, while whoever calls `tick` goes on with its work.

    Args:
        world: whose parts are hurt.
        plan: what is to be done, without end.
        away_s: how long Redis is away when it is away for long.
        max_gone: agents that go for good, at most.

    Attributes:
        done: how often each kind was done; the network's are counted by the proxy, when they come to pass.
        skipped: how often one met a victim that was down already.
        gone: agents that will not come back.
    """

    world: World
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

    def tick(self) -> None:
        """Do and undo what is due."""
        self._undo_due(time.monotonic())
        if self._next is None:
            self._next = next(self.plan)
            self._due = time.monotonic() + self._next.after_s
        if time.monotonic() >= self._due:
            action, self._next = self._next, None
            self._do(action)

    def undo_all(self) -> None:
        """Undo everything now: who was killed starts, who was frozen goes on."""
        self._undo_due(float("inf"))
        self.world.proxy.disarm()

    def counts(self) -> Counter[str]:
        """All faults that came to pass, by kind."""
        return self.done + Counter(f"net_{kind}" for kind, _ in self.world.proxy.done)

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
                self.world.proxy.arm(action.victim, Fault(how, LATE_S if how != "loris_down" else LATE_S / 2))
                return  # counted when it comes to pass
            case "agent" | "edge":
                self._hit_node(action, how)
            case "cloud":
                self._kill(["cloud"], 0.2 + 2 * action.share)
            case "redis":
                self._kill(["redis"], self.away_s if how == "away" else 0.0)
            case "all":
                everybody = [name for name in self.world.names if name not in self.gone]
                self._kill(["redis", *everybody], 0.5 + 2 * action.share)
            case "disk":
                self.world.fill_disk(action.victim)
                self._later(2 + 4 * action.share, lambda: self.world.free_disk(action.victim))
            case "clock":
                self.world.set_clock(action.victim, JUMPS_S[int(action.share * len(JUMPS_S))])
            case unknown:
                raise AssertionError(f"no such fault: {unknown}")
        self.done[action.kind] += 1

    def _hit_node(self, action: Action, how: str) -> None:
        name, ttl_s = action.victim, self.world.ttl_s
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
        return name in self.world.down or name in self.world.frozen

    def _kill(self, names: list[str], for_s: float) -> None:
        hit = [name for name in names if name not in self.world.down]
        self.world.kill(*hit)
        self._later(for_s, lambda: self.world.start(*(name for name in hit if name in self.world.down)))

    def _freeze(self, name: str, for_s: float) -> None:
        self.world.freeze(name)
        self._later(for_s, lambda: self.world.thaw(name))

    def _replace(self, name: str) -> None:
        """An agent goes for good; another comes in its place."""
        if len(self.gone) >= self.max_gone:
            self._kill([name], 0.0)
            return
        self.world.kill(name)
        self.gone.append(name)
        room = self.world.topology.rooms[int(name.rpartition("-")[2]) - 1]
        self._later(1.0, lambda: self._come(room))

    def _come(self, room: int) -> None:
        self.world.topology.add_agent(room)
