"""Digital twins: what an edge knows of each worker, as a typed record and pure functions of it.

A twin is a behaviour model (how fast), telemetry (how much is free, what was collected), rules (whether work is planned
onto the worker) and a bounded history of predictions beside what came. It learns from simulated seconds (with
`clock: real` from measured ones), edge round by edge round, so that the same visits make the same twin.

*Behaviour.* A worker that says how much compute it has free implies how long its work takes. The twin learns the ratio
of real seconds to these: an exponentially weighted mean and variance (T. Finch: Incremental calculation of weighted
mean and variance, 2009), begun from the profile, that is at the ratio 1. Of measured seconds a profile says nothing:
there the first visit is taken as it is, and it is never slow.

*Rules.* A visit is bad if it failed, came too late, or took longer than predicted by more than half and by more than
`SLOW_SDS` standard deviations. Each bad visit in a row is a strike.

    off at the instant of planning                    -> offline until it is on again
    a strike, its contribution was lost in this world -> offline for 1, 2, 4, then 8 edge rounds, as strikes go on
    the first strike else (dropped, late, slow)       -> recovering
    a further strike else                             -> degraded, for as many edge rounds as above
    battery below `LEAST_CHARGE`                      -> degraded until it is charged
    offline or degraded, and its time is over         -> recovering: planned with `CAUTION` of its compute
    recovering, `GOOD_VISITS` good visits in a row    -> healthy, no strikes
"""

from __future__ import annotations

from typing import Literal

from shared.core.records import Count, Record

Health = Literal["healthy", "recovering", "degraded", "offline"]

PRIOR_SD = 0.25
"""Of the ratio before anything was seen: a profile may be a quarter wrong."""
LEARNING_RATE = 0.3
"""Weight of the newest visit, once there are some."""
LEAST_RATIO = 0.1
"""No visit counts as quicker: who says that it trained on next to nothing would else be given everything."""
SLOW_SDS = 3.0
LEAST_CHARGE = 0.1
CAUTION = 0.5
GOOD_VISITS = 2
MOST_REST = 8
HISTORY = 16


class Telemetry(Record):
    """What a worker says of itself at a simulated instant.

    Attributes:
        at_s: the instant.
        on: whether it is there.
        free_sps: compute that is free, training samples of the reference model a second.
        n_collected: training samples that it has collected so far.
        charge: of its battery, 0 to 1; None without one.
    """

    at_s: float = 0.0
    on: bool = True
    free_sps: float = 0.0
    n_collected: Count = 0
    charge: float | None = None


class Sighting(Record):
    """One visit as the twin saw it: predicted, and what came. `error_s` is what came minus what was predicted."""

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


class Twin(Record):
    """A worker's digital twin.

    Attributes:
        seat: the worker's.
        health: whether work is planned onto it.
        ratio, ratio_var: mean and variance of real seconds of work over those that its free compute implies.
        n_learned: visits from which these were learned.
        strikes: bad visits in a row.
        n_good: good visits since it is recovering.
        rest: edge rounds that it sits out.
        spent_j: energy that its visits took.
        telemetry: the newest.
        history: the newest visits, oldest first.
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
    history: tuple[Sighting, ...] = ()

    @property
    def caution(self) -> float:
        """Which part of its free compute is counted on."""
        return {"healthy": 1.0, "recovering": CAUTION}.get(self.health, 0.0)


class TwinList(Record):
    """Twins of one run, by seat in order."""

    twins: tuple[Twin, ...] = ()

    def by_seat(self) -> dict[int, Twin]:
        """The same as a map."""
        return {twin.seat: twin for twin in self.twins}


def refresh(twin: Twin, told: Telemetry, *, new_edge_round: bool) -> Twin:
    """The twin before an edge round (or a further wave of it) is planned, by what the worker says of itself now."""
    found = twin.replace(telemetry=told)
    if not told.on:
        return found.replace(health="offline")
    if told.charge is not None and told.charge < LEAST_CHARGE:
        return found.replace(health="degraded")
    if not new_edge_round or twin.health not in ("offline", "degraded"):
        return found
    if twin.rest:
        return found.replace(rest=twin.rest - 1)
    return found.replace(health="recovering", n_good=0)


def predict(twin: Twin, implied_s: float) -> tuple[float, float]:
    """Mean and standard deviation of the seconds of work for which its free compute implies so many."""
    return twin.ratio * implied_s, twin.ratio_var**0.5 * implied_s


def learn(twin: Twin, ratio: float, *, measured: bool = False) -> Twin:
    """The behaviour model after one more visit, whose seconds were simulated or `measured`."""
    ratio = max(ratio, LEAST_RATIO)
    if measured and not twin.n_learned:
        return twin.replace(ratio=ratio, ratio_var=(PRIOR_SD * ratio) ** 2, n_learned=1)
    n_before = twin.n_learned if measured else twin.n_learned + 1  # what a profile says counts like one visit
    weight = max(LEARNING_RATE, 1 / (n_before + 1))
    apart = ratio - twin.ratio
    return twin.replace(
        ratio=twin.ratio + weight * apart,
        ratio_var=(1 - weight) * (twin.ratio_var + weight * apart**2),
        n_learned=twin.n_learned + 1,
    )


def observe(twin: Twin, seen: Sighting, *, ratio: float | None, energy_j: float = 0.0, measured: bool = False) -> Twin:
    """The twin after a visit.

    Args:
        twin: before it.
        seen: what was predicted and what came.
        ratio: of the seconds of its work to those implied; None where nothing was learned of it.
        energy_j: what it took of a battery.
        measured: whether its seconds are wall seconds.
    """
    after = twin if ratio is None else learn(twin, ratio, measured=measured)
    after = after.replace(spent_j=after.spent_j + energy_j, history=(*after.history, seen)[-HISTORY:])
    # Whatever else took it: `losses` repeats it as left out.
    lost = seen.outcome == "failed" and seen.reason not in ("dropped", "late")
    guessed = measured and not twin.n_learned and seen.took_s is not None
    return judge(after, bad=is_bad(seen) and not guessed, silent=lost)


def is_bad(seen: Sighting) -> bool:
    """Whether a visit failed, was not waited for, or took far longer than predicted."""
    if seen.outcome in ("failed", "refused") or seen.took_s is None:
        return True
    beyond = max(seen.predicted_s / 2, SLOW_SDS * seen.predicted_sd_s)
    return seen.took_s > seen.predicted_s + beyond


def judge(twin: Twin, *, bad: bool, silent: bool) -> Twin:
    """The rules after a visit."""
    if not bad:
        n_good = twin.n_good + 1
        if twin.health == "healthy" or n_good >= GOOD_VISITS:
            return twin.replace(health="healthy", strikes=0, n_good=0)
        return twin.replace(n_good=n_good)
    strikes = twin.strikes + 1
    health: Health = "offline" if silent else "degraded" if strikes > 1 else "recovering"
    rest = 0 if health == "recovering" else min(2 ** (strikes - 1), MOST_REST)
    return twin.replace(health=health, strikes=strikes, n_good=0, rest=rest)
