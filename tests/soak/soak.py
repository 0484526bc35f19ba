"""The soak: a chain of runs in a topology that is hurt all the time, each held against an undisturbed one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from tests.soak import leftovers
from tests.soak.faults import Mischief
from tests.soak.memory import Memory
from tests.soak.plan import actions
from tests.soak.records import faults_in, losses_of, miscounts, reasons_of, undisturbed
from tests.soak.summary import Summary
from tests.soak.waits import Hang, until
from tests.soak.world import FINAL, World

T = TypeVar("T")
RUN_LIMIT_S = 180.0
ANSWER_S = 60.0
MAX_RESUMES = 8
SAMPLE_S = 2.0
PROXIED = ("agent-1", "agent-2", "edge-1", "edge-2")
SPARED = ("agent-1", "edge-1")
"""Killed only together with all others: so that some processes grow old."""
BASE: dict[str, Any] = {
    "data": "digits",
    "num_edges": 2,
    "num_devices": 8,
    "num_rounds": 5,
    "quorum": 0.25,
    "timeouts": {"visit_s": 5, "ready_s": 90, "reseat_after_s": 6},
}
FEDAVG = {**BASE, "local_epochs": 30, "batch_size": 8}
SPECS: tuple[dict[str, Any], ...] = (
    FEDAVG,
    {**BASE, "algorithm": {"name": "probe_counter", "params": {"pause_s": 0.4}}},
    {**FEDAVG, "select": "random", "fraction_train": 0.6},
)


@dataclass
class Soak:
    """A soak in progress.

    Args:
        rough: the world that is hurt.
        quiet: the undisturbed one, of another layout.
        mischief: what hurts.
        summary: what is found.
        say: tells how it goes.
    """

    rough: World
    quiet: World
    mischief: Mischief
    summary: Summary
    say: Callable[[str], None]
    memory: Memory = field(default_factory=Memory)
    _sampled_at: float = 0.0

    def wait(self, what: str, look: Callable[[], T | bool | None], limit_s: float) -> T:
        """Wait while faults go on; see `until`."""
        return until(what, look, limit_s, 0.1, self._meanwhile)

    def _meanwhile(self) -> None:
        self.mischief.tick()
        self.sample()

    def sample(self) -> None:
        """Take samples of memory, now and then."""
        if time.monotonic() - self._sampled_at >= SAMPLE_S:
            self._sampled_at = time.monotonic()
            for kind, world in (("rough", self.rough), ("quiet", self.quiet)):
                self.memory.look({f"{kind} {name}": p.pid for name, p in world.topology.processes.items()})

    # ---- runs

    def warm_up(self) -> None:
        """A short run of each algorithm in each world, undisturbed: what is imported late is no growth of memory."""
        for world in (self.rough, self.quiet):
            for spec in SPECS[:2]:
                world.complete(spec | {"num_rounds": 1})

    def one(self, number: int) -> None:
        """One disturbed run with its checks, and the undisturbed one that it describes."""
        info = self._disturbed(SPECS[number % len(SPECS)] | {"seed": self.summary.seed * 1000 + number})
        details, events = self._details(info), self.rough.events(info.run, ANSWER_S, self._meanwhile)
        problems = faults_in(info, details, events)
        if info.algorithm == "probe_counter":
            problems += miscounts(details)
        self._count(info, details, events)
        problems += self._compare(info, details)
        self.summary.problems += [f"run {number} ({info.run}): {what}" for what in problems]
        lost = sum(row.outcome == "failed" for detail in details for row in detail.seats)
        faults = self.mischief.counts().total()
        self.say(f"run {number} {info.algorithm}: {lost} lost, {len(problems)} problems; {faults} faults so far")

    def _disturbed(self, spec: dict[str, Any]) -> RunInfo:
        client, key = self.rough.client, f"soak-{spec['seed']}"
        run = self.wait("an answer to POST /runs", lambda: client.create_run(spec, key).run, ANSWER_S)
        for _ in range(MAX_RESUMES):
            self._until_final(run)
            info = self._info(run)
            if info.status == "completed":
                return info
            self.summary.resumed.append(f"{run} round {info.rounds + 1}: {info.status}: {info.reason}")
            self.wait(f"resume of {run}", lambda: client.run(run).status not in FINAL or client.resume(run), ANSWER_S)
        raise Hang(f"{run} failed {MAX_RESUMES} times: {self.summary.resumed[-MAX_RESUMES:]}")

    def _until_final(self, run: str) -> None:
        try:
            self.wait(f"the end of {run}", lambda: self.rough.client.run(run).status in FINAL, RUN_LIMIT_S)
        except Hang as hang:
            raise Hang(f"{hang}; {self.rough.stands(run)}") from None

    def _info(self, run: str) -> RunInfo:
        return self.wait(f"GET /runs/{run}", lambda: self.rough.client.run(run), ANSWER_S)

    def _details(self, info: RunInfo) -> list[RoundDetail]:
        return [
            self.wait(f"round {n} of {info.run}", lambda n=n: self.rough.client.round(info.run, n), ANSWER_S)  # type: ignore[misc]
            for n in range(1, info.rounds + 1)
        ]

    def _compare(self, info: RunInfo, details: Sequence[RoundDetail]) -> list[str]:
        """Problems of the comparison with an undisturbed run that leaves out what was lost."""
        if info.algorithm != "fedavg" and any(row.fresh_state for detail in details for row in detail.seats):
            return []  # a counter that began anew cannot be told by `losses`
        spec = undisturbed(info, details)
        run = self.wait("the quiet world's answer", lambda: self.quiet.client.create_run(spec).run, ANSWER_S)
        self.wait(f"the quiet run {run}", lambda: self.quiet.client.run(run).status in FINAL, RUN_LIMIT_S)
        calm = self.quiet.client.run(run)
        self.summary.compared += 1
        if calm.status != "completed":
            return [f"the undisturbed run {calm.status}: {calm.reason}"]
        rounds = self.quiet.client.rounds(run).rounds
        differ = [d.round_no for d, r in zip(details, rounds, strict=True) if d.model_sha256 != r.model_sha256]
        if differ or calm.model_sha256 != info.model_sha256:
            return [
                f"other bits than the undisturbed run {run} from round {differ[:1]} on; losses {losses_of(details)}"
            ]
        self.summary.equal += 1
        return []

    def _count(self, info: RunInfo, details: Sequence[RoundDetail], events: Sequence[Event]) -> None:
        told, rows = self.summary, [row for detail in details for row in detail.seats]
        told.runs[info.algorithm] += 1
        told.rounds += len(details)
        told.contributions += len(rows)
        told.lost += reasons_of(details)
        told.retried_rounds += sum(detail.attempts > 1 for detail in details)
        told.fresh_states += sum(row.fresh_state for row in rows)
        told.seats_moved += sum(event.kind == "seat.moved" for event in events)
        told.node_events += Counter(event.kind for event in events if event.kind.startswith("node."))

    # ---- the end

    def end(self) -> None:
        """Undo all faults; see that nothing is left, delete everything, see that nothing of it is left."""
        self.mischief.undo_all()
        self.rough.wait_all(self.mischief.gone)
        told, worlds = self.summary, (self.rough, self.quiet)
        told.leftovers["after the runs"] = [what for world in worlds for what in leftovers.unreferenced(world)]
        for world in worlds:
            for info in until("the list of runs", lambda world=world: world.client.runs(1000), 30):  # type: ignore[misc]
                world.delete(info.run)
        gone = self.mischief.gone
        told.leftovers["after deleting the runs"] = [w for world in worlds for w in leftovers.after_delete(world, gone)]
        self.sample()
        told.memory = self.memory.table()
        told.problems += self.memory.grown()


def soak(
    minutes: float,
    seed: int,
    folder: Path,
    *,
    away_s: float = 20.0,
    gap_s: float = 6.0,
    say: Callable[[str], None] = print,
) -> Summary:
    """Run a soak and tell what it found.

    Args:
        minutes: until no further run is begun.
        seed: decides kinds, victims and moments of the faults.
        folder: everything lies there.
        away_s: how long Redis is away when it is away for long.
        gap_s: seconds between two faults, in the mean.
        say: tells how it goes.
    """
    summary = Summary(seed, minutes)
    rough = World(
        folder / "rough",
        edges=3,
        devices=8,
        agents=4,
        seed=seed,
        proxied=PROXIED,
        small_disks=("agent-3",),
        clocks=("cloud", "edge-2", "agent-4"),
    )
    quiet = World(folder / "quiet", edges=2, devices=8, agents=1)
    ports: list[int] = []
    try:
        with rough, quiet:
            ports = _ports(rough) + _ports(quiet)
            found = Soak(rough, quiet, Mischief(rough, actions(seed, _nodes(rough), gap_s), away_s), summary, say)
            if not rough.small_disks:
                summary.notes.append("no small disk could be mounted here: no disk was filled")
            found.warm_up()
            ends, number = time.monotonic() + 60 * minutes, 0
            while time.monotonic() < ends:
                found.one(number)
                number += 1
            found.end()
    except AssertionError as hang:
        summary.problems.append(str(hang))
    summary.faults, summary.skipped = found.mischief.counts(), found.mischief.skipped
    summary.leftovers["after the stop"] = leftovers.after_stop(folder, ports)
    summary.problems += [f"left over {when}: {what}" for when, kinds in summary.leftovers.items() for what in kinds]
    return summary


def _nodes(world: World) -> dict[str, list[str]]:
    """Names by the role that faults give them."""
    mortal = {tier: [name for name in world.of(tier) if name not in SPARED] for tier in ("agent", "edge")}
    return {**mortal, "proxied": list(PROXIED), "disk": world.small_disks, "clock": ["cloud", "edge-2", "agent-4"]}


def _ports(world: World) -> list[int]:
    urls = [world.topology.url, *(edge.url for edge in world.client.edges().edges)]
    routes = [port for route in world.proxy.routes.values() for port in (route.port, route.upstream())]
    return [*routes, *(int(url.rpartition(":")[2]) for url in urls)]
