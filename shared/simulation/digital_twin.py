"""Digital twins: an edge's model of each of its devices, as a typed record and pure functions of it.

A twin consists of a behaviour model (how fast the device is), telemetry (its free compute, the samples it has
collected), rules (whether tasks are planned for it) and a bounded history of predictions and outcomes. It learns from
simulated seconds (with `clock: real`, from measured ones), edge round by edge round; equal tasks give equal twins.

*Behaviour.* The free compute that a device reports implies how long its task takes. The twin learns the ratio of actual
to implied seconds as an exponentially weighted mean and variance (T. Finch: Incremental calculation of weighted mean
and variance, 2009), starting at the profile, that is at ratio 1. A profile says nothing about measured seconds: with
`clock: real` the first task sets the ratio, and does not count as slow.

*Rules.* A task is bad if it failed, was late, or took longer than predicted by more than half and by more than
`SLOW_SDS` standard deviations. Each consecutive bad task is a strike.

    the device is off when the edge plans             -> offline until it is on again
    strike, and the contribution was really lost      -> offline for 1, 2, 4, then 8 edge rounds, as strikes go on
    first strike otherwise (dropped, late, slow)      -> recovering
    further strike otherwise                          -> degraded, for the same number of edge rounds
    battery below `MIN_CHARGE`                        -> degraded until it is charged
    offline or degraded, and the time is over         -> recovering: planned with `CAUTION` of its compute
    recovering, `GOOD_VISITS` good tasks in a row    -> healthy, no strikes
"""

from __future__ import annotations

from typing import Annotated, Literal

from shared.core.bounds import Count
from shared.core.records import LEFT_OUT, Record
from shared.runtime.cpu_use import CpuUse
from shared.simulation.telemetry import Heard

Health = Literal["healthy", "recovering", "degraded", "offline"]

PRIOR_SD = 0.25
"""Standard deviation of the ratio before the first task: a profile may be wrong by a quarter."""
LEARNING_RATE = 0.3
"""Weight of the newest task in the mean, after the first few tasks."""
MIN_RATIO = 0.1
"""Lower bound on a learned ratio: a device that claims to be arbitrarily fast would otherwise get every sample."""
SLOW_SDS = 3.0
"""A task is slow if it takes this many standard deviations longer than predicted (and half as long again)."""
MIN_CHARGE = 0.1
"""Charge of a battery, 0 to 1, below which no task is planned for the device."""
CAUTION = 0.5
"""Share of its free compute with which a recovering device is planned."""
GOOD_VISITS = 2
"""Number of consecutive good tasks after which a recovering device is healthy."""
MAX_EXCLUDED_ROUNDS = 8
"""Upper bound on the edge rounds for which a device is left out."""
HISTORY = 16
"""Number of newest tasks that a twin keeps."""


class Telemetry(Record):
    """What a twin knows of its device: what the device reports, or what is estimated from its messages.

    Attributes:
        at_s: the simulated time; of messages, when the newest that arrived was sent.
        on: whether the device is on.
        free_sps: free compute, in training samples of the reference model a second.
        n_collected: number of training samples collected so far.
        charge: charge of its battery, 0 to 1; None if it has none.
        cpu: with `clock: real`, the CPUs of its container as its process reports them; None without a limit.
    """

    at_s: float = 0.0
    on: bool = True
    free_sps: float = 0.0
    n_collected: Count = 0
    charge: float | None = None
    cpu: Annotated[CpuUse | None, LEFT_OUT] = None


class VisitObservation(Record):
    """One task as the twin saw it, predicted and actual; `error_s` is the actual minus the predicted duration.

    Where telemetry comes in messages, also how old the newest message was (`telemetry_age_s`), the free compute that
    was estimated (`estimated_sps`) and that which the task had (`actual_sps`, its delay included), and its energy.
    """

    round_no: Count
    edge_round: Count
    wave: Count
    at_s: float
    n_trained: Count
    predicted_s: float
    predicted_sd_s: float
    took_s: float | None = None
    error_s: float | None = None
    outcome: str
    reason: str | None = None
    telemetry_age_s: Annotated[float | None, LEFT_OUT] = None
    estimated_sps: Annotated[float | None, LEFT_OUT] = None
    actual_sps: Annotated[float | None, LEFT_OUT] = None
    energy_j: Annotated[float | None, LEFT_OUT] = None


class Twin(Record):
    """A device's digital twin.

    Attributes:
        seat: the device's number.
        health: whether, and how cautiously, tasks are planned for the device.
        ratio, ratio_var: mean and variance of the ratio of actual seconds to those that its free compute implies.
        n_learned: number of tasks from which the ratio was learned.
        strikes: number of consecutive bad tasks.
        n_good: number of good tasks since it began to recover.
        rest: number of edge rounds for which it is still left out.
        spent_j: energy that its tasks took, and its messages.
        telemetry: the newest telemetry.
        history: the newest tasks, oldest first.
        heard: what came in messages, where telemetry does.
    """

    seat: int
    health: Health = "healthy"
    ratio: float = 1.0
    ratio_var: float = PRIOR_SD**2
    n_learned: Count = 0
    strikes: Count = 0
    n_good: Count = 0
    rest: Count = 0
    spent_j: float = 0.0
    telemetry: Telemetry = Telemetry()
    history: tuple[VisitObservation, ...] = ()
    heard: Annotated[Heard | None, LEFT_OUT] = None

    def spent_by_j(self, at_s: float) -> float:
        """Return the energy that its tasks had taken that began before a simulated time, as far as they are known."""
        return self.spent_j - sum(seen.energy_j or 0.0 for seen in self.history if seen.at_s >= at_s)

    @property
    def caution(self) -> float:
        """Share of its free compute that plans rely on."""
        return {"healthy": 1.0, "recovering": CAUTION}.get(self.health, 0.0)


class TwinList(Record):
    """The twins of one run, ordered by device."""

    twins: tuple[Twin, ...] = ()

    def by_seat(self) -> dict[int, Twin]:
        """Return the twins as a map from device to twin."""
        return {twin.seat: twin for twin in self.twins}


def refresh(twin: Twin, telemetry: Telemetry, *, new_edge_round: bool) -> Twin:
    """Return the twin with new telemetry, before an edge round (or a further dispatch of it) is planned."""
    found = twin.replace(telemetry=telemetry)
    if not telemetry.on:
        return found.replace(health="offline")
    if telemetry.charge is not None and telemetry.charge < MIN_CHARGE:
        return found.replace(health="degraded")
    if not new_edge_round or twin.health not in ("offline", "degraded"):
        return found
    if twin.rest:
        return found.replace(rest=twin.rest - 1)
    return found.replace(health="recovering", n_good=0)


def predict(twin: Twin, implied_s: float) -> tuple[float, float]:
    """Return mean and standard deviation of a task's seconds, given the seconds that free compute implies."""
    return twin.ratio * implied_s, twin.ratio_var**0.5 * implied_s


def learn(twin: Twin, ratio: float, *, measured: bool = False) -> Twin:
    """Return the twin whose behaviour model has learned one more task, in simulated or `measured` seconds."""
    ratio = max(ratio, MIN_RATIO)
    if measured and not twin.n_learned:
        return twin.replace(ratio=ratio, ratio_var=(PRIOR_SD * ratio) ** 2, n_learned=1)
    n_before = twin.n_learned if measured else twin.n_learned + 1  # a profile counts like one visit
    weight = max(LEARNING_RATE, 1 / (n_before + 1))
    apart = ratio - twin.ratio
    return twin.replace(
        ratio=twin.ratio + weight * apart,
        ratio_var=(1 - weight) * (twin.ratio_var + weight * apart**2),
        n_learned=twin.n_learned + 1,
    )


def observe(
    twin: Twin, seen: VisitObservation, *, ratio: float | None, energy_j: float = 0.0, measured: bool = False
) -> Twin:
    """Return the twin after a task.

    Args:
        twin: the twin before the task.
        seen: the task, predicted and actual.
        ratio: ratio of actual to implied seconds; None if the task taught nothing about it.
        energy_j: energy that the task took from the battery.
        measured: whether the seconds are wall seconds.
    """
    after = twin if ratio is None else learn(twin, ratio, measured=measured)
    after = after.replace(spent_j=after.spent_j + energy_j, history=(*after.history, seen)[-HISTORY:])
    # Lost for any other reason: a run with `losses` repeats it as left out.
    lost = seen.outcome == "failed" and seen.reason not in ("dropped", "late")
    guessed = measured and not twin.n_learned and seen.took_s is not None
    return judge(after, bad=is_bad(seen) and not guessed, silent=lost)


def is_bad(seen: VisitObservation) -> bool:
    """Return whether a task failed, was refused, or took far longer than predicted."""
    if seen.outcome in ("failed", "refused") or seen.took_s is None:
        return True
    beyond = max(seen.predicted_s / 2, SLOW_SDS * seen.predicted_sd_s)
    return seen.took_s > seen.predicted_s + beyond


def judge(twin: Twin, *, bad: bool, silent: bool) -> Twin:
    """Return the twin after the rules have judged a task."""
    if not bad:
        n_good = twin.n_good + 1
        if twin.health == "healthy" or n_good >= GOOD_VISITS:
            return twin.replace(health="healthy", strikes=0, n_good=0)
        return twin.replace(n_good=n_good)
    strikes = twin.strikes + 1
    health: Health = "offline" if silent else "degraded" if strikes > 1 else "recovering"
    rest = 0 if health == "recovering" else min(2 ** (strikes - 1), MAX_EXCLUDED_ROUNDS)
    return twin.replace(health=health, strikes=strikes, n_good=0, rest=rest)
