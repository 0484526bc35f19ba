"""The soak: runs in a deployment under continuous faults, each compared with an undisturbed run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shared.core.errors import StrataError
from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from tests.soak import leftovers
from tests.soak.deployment import FINAL, Deployment
from tests.soak.injector import FaultInjector
from tests.soak.memory import Memory
from tests.soak.plan import actions
from tests.soak.records import errors_in, losses_of, miscounts, reasons_of, undisturbed
from tests.soak.summary import Summary
from tests.waits import Hang, until

T = TypeVar("T")
RUN_LIMIT_S = 360.0
ANSWER_S = 120.0
MAX_RESUMES = 8
SAMPLE_S = 2.0
TTL_S = 3.0
PROXIED = ("agent-1", "agent-2", "edge-1", "edge-2")
UP = ("agent-3", "edge-3")
"""These dial out; faults of the network meet them at the edges that they call and serve."""
SPARED = ("agent-1", "edge-1")
"""These are killed only together with all others, so that some processes live long enough to measure their memory."""
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
        disturbed: the deployment that gets the faults.
        reference: a deployment without faults, of another layout.
        injector: injects the faults.
        summary: collects the results.
        say: prints progress.
    """

    disturbed: Deployment
    reference: Deployment
    injector: FaultInjector
    summary: Summary
    say: Callable[[str], None]
    memory: Memory = field(default_factory=Memory)
    _sampled_at: float = 0.0

    def wait(self, what: str, look: Callable[[], T | bool | None], limit_s: float) -> T:
        """Wait while faults are injected, but no new ones after half of the limit; see `until`.

        Under faults that follow each other faster than a slow machine starts a process again no run ends. One that
        does not end after the faults have ended hangs.
        """
        quiet = time.monotonic() + limit_s / 2
        return until(what, look, limit_s, 0.1, lambda: self._meanwhile(new_faults=time.monotonic() < quiet))

    def _meanwhile(self, *, new_faults: bool = True) -> None:
        self.injector.tick(new_faults=new_faults)
        self.sample()

    def sample(self) -> None:
        """Take samples of memory every `SAMPLE_S`."""
        if time.monotonic() - self._sampled_at >= SAMPLE_S:
            self._sampled_at = time.monotonic()
            for kind, deployment in (("disturbed", self.disturbed), ("reference", self.reference)):
                self.memory.look({f"{kind} {name}": p.pid for name, p in deployment.topology.processes.items()})

    # ---- runs

    def warm_up(self) -> None:
        """Complete a short run of each algorithm in each deployment: late imports must not count as memory growth."""
        for deployment in (self.disturbed, self.reference):
            for spec in SPECS[:2]:
                deployment.complete(spec | {"num_rounds": 1})

    def run_one(self, number: int) -> None:
        """Complete and check one run with faults, and compare it with the undisturbed run that its record describes."""
        info = self._run_with_faults(SPECS[number % len(SPECS)] | {"seed": self.summary.seed * 1000 + number})
        details, events = self._details(info), self.disturbed.events(info.run, self._meanwhile)
        problems = errors_in(info, details, events)
        if info.algorithm == "probe_counter":
            problems += miscounts(details)
        self._count(info, details, events)
        problems += self._compare(info, details)
        self.summary.problems += [f"run {number} ({info.run}): {what}" for what in problems]
        lost = sum(row.outcome == "failed" for detail in details for row in detail.seats)
        faults = self.injector.counts().total()
        self.say(f"run {number} {info.algorithm}: {lost} lost, {len(problems)} problems; {faults} faults so far")

    def _run_with_faults(self, spec: dict[str, Any]) -> RunInfo:
        client, key = self.disturbed.client, f"soak-{spec['seed']}"
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
            self.wait(f"the end of {run}", lambda: self.disturbed.client.run(run).status in FINAL, RUN_LIMIT_S)
        except Hang as hang:
            raise Hang(f"{hang}; {self.disturbed.describe(run)}") from None

    def _info(self, run: str) -> RunInfo:
        return self.wait(f"GET /runs/{run}", lambda: self.disturbed.client.run(run), ANSWER_S)

    def _details(self, info: RunInfo) -> list[RoundDetail]:
        return [
            self.wait(f"round {n} of {info.run}", lambda n=n: self.disturbed.client.round(info.run, n), ANSWER_S)  # type: ignore[misc]
            for n in range(1, info.rounds + 1)
        ]

    def _compare(self, info: RunInfo, details: Sequence[RoundDetail]) -> list[str]:
        """Returns the differences from an undisturbed run that leaves out what was lost."""
        if info.algorithm != "fedavg" and any(row.fresh_state for detail in details for row in detail.seats):
            return []  # `losses` cannot express a counter that started again
        spec = undisturbed(info, details)
        run = self.wait(
            "the answer of the reference deployment", lambda: self.reference.client.create_run(spec).run, ANSWER_S
        )
        self.wait(f"the reference run {run}", lambda: self.reference.client.run(run).status in FINAL, RUN_LIMIT_S)
        expected = self.reference.client.run(run)
        self.summary.compared += 1
        if expected.status != "completed":
            return [f"the undisturbed run {expected.status}: {expected.reason}"]
        rounds = self.reference.client.rounds(run).rounds
        differ = [d.round_no for d, r in zip(details, rounds, strict=True) if d.model_sha256 != r.model_sha256]
        if differ or expected.model_sha256 != info.model_sha256:
            return [
                f"different bits from the undisturbed run {run} from round {differ[:1]} on; losses {losses_of(details)}"
            ]
        self.summary.equal += 1
        return []

    def _count(self, info: RunInfo, details: Sequence[RoundDetail], events: Sequence[Event]) -> None:
        summary, rows = self.summary, [row for detail in details for row in detail.seats]
        summary.runs[info.algorithm] += 1
        summary.rounds += len(details)
        summary.contributions += len(rows)
        summary.lost += reasons_of(details)
        summary.retried_rounds += sum(detail.attempts > 1 for detail in details)
        summary.fresh_states += sum(row.fresh_state for row in rows)
        summary.seats_moved += sum(event.data["n_seats"] for event in events if event.kind == "seat.moved")
        summary.node_events += Counter(event.kind for event in events if event.kind.startswith("node."))

    # ---- the end

    def end(self) -> None:
        """Undo all faults, check for leftovers, delete all runs, and check for leftovers again."""
        self.injector.undo_all()
        self.disturbed.wait_all(self.injector.gone)
        summary, deployments = self.summary, (self.disturbed, self.reference)
        summary.leftovers["after the runs"] = [
            what for deployment in deployments for what in leftovers.unreferenced(deployment)
        ]
        for deployment in deployments:
            for info in until("the list of runs", lambda deployment=deployment: deployment.client.runs(1000)):  # type: ignore[misc]
                deployment.delete(info.run)
        gone = self.injector.gone
        summary.leftovers["after deleting the runs"] = [
            w for deployment in deployments for w in leftovers.after_delete(deployment, gone)
        ]
        self.sample()
        summary.memory = self.memory.table()
        summary.problems += self.memory.grown()


def run_soak(
    minutes: float,
    seed: int,
    folder: Path,
    *,
    away_s: float = 20.0,
    gap_s: float = 6.0,
    say: Callable[[str], None] = print,
) -> Summary:
    """Run a soak and return what it found.

    Args:
        minutes: after which no further run is started.
        seed: determines the kinds, targets and times of the faults.
        folder: holds all files of the soak.
        away_s: duration of a long outage of Redis.
        gap_s: mean seconds between two faults.
        say: prints progress.
    """
    summary = Summary(seed, minutes)
    disturbed = Deployment(
        folder / "disturbed",
        edges=3,
        devices=8,
        agents=4,
        seed=seed,
        proxied=PROXIED,
        small_disks=("agent-3",),
        clocks=("cloud", "edge-2", "agent-4"),
        up=UP,
        ttl_s=TTL_S,
    )
    reference = Deployment(folder / "reference", edges=2, devices=8, agents=1)
    ports: list[int] = []
    try:
        with disturbed, reference:
            soak = Soak(
                disturbed,
                reference,
                FaultInjector(disturbed, actions(seed, _nodes(disturbed), gap_s), away_s),
                summary,
                say,
            )
            if not disturbed.small_disks:
                summary.notes.append("no small disk could be mounted here: no disk was filled")
            try:
                soak.warm_up()
                ends, number = time.monotonic() + 60 * minutes, 0
                while time.monotonic() < ends:
                    soak.run_one(number)
                    number += 1
                soak.end()
            finally:
                with suppress(StrataError):  # the cloud is away, which the error in progress says
                    ports = _ports(disturbed) + _ports(reference)  # processes that were killed came back on others
    except AssertionError as error:
        summary.problems.append(str(error))
    summary.faults, summary.skipped = soak.injector.counts(), soak.injector.skipped
    summary.leftovers["after the stop"] = leftovers.after_stop(folder, ports)
    summary.problems += [f"left over {when}: {what}" for when, kinds in summary.leftovers.items() for what in kinds]
    return summary


def _nodes(deployment: Deployment) -> dict[str, list[str]]:
    """Returns the names of processes by the kind of fault that may hit them."""
    killable = {tier: [name for name in deployment.of(tier) if name not in SPARED] for tier in ("agent", "edge")}
    return {
        **killable,
        "proxied": list(PROXIED),
        "disk": deployment.small_disks,
        "clock": ["cloud", "edge-2", "agent-4"],
    }


def _ports(deployment: Deployment) -> list[int]:
    urls = [deployment.topology.url, *(edge.url for edge in deployment.client.edges().edges)]
    routes = [port for route in deployment.proxy.routes.values() for port in (route.port, route.upstream())]
    return [*routes, *(int(url.rpartition(":")[2]) for url in urls)]
