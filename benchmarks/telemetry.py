"""`python -m benchmarks.telemetry [PICTURE]`: what it costs that twins know their devices late and inexactly.

A user has ten devices, whose free compute walks also while tasks run, and a server (docs/telemetry-results.md); 20
rounds, three seeds. Rounds with telemetry in messages are compared with those of twins that know the free compute at
the instant of planning, and with equal shares. No device trains.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.schedules import COMPUTE, NEAR, EdgeSimulation, counted_experiment, spec_of
from shared.run_records.visits import VisitRecord

ROUNDS, SEEDS = 20, (1, 2, 3)
WALK = {"name": "random_walk", "every_s": 1, "step": 0.15, "low": 0.1, "high": 1, "during_tasks": True}
PROFILES: list[dict[str, Any]] = [{**COMPUTE, **NEAR, "load": WALK}]
PERIODS, NOISES, ESTIMATORS = (1, 5, 20, 60), (0.0, 0.2, 0.4), ("last", "ewma", "kalman")
DELAY_S = 0.1
SHOWN = {"period_s": 20, "noise": 0.2, "estimator": "last"}
"""The case whose planned and actual finishing times are drawn."""


class Result(NamedTuple):
    """Mean seconds of a round by seed, and the tasks of all rounds."""

    seconds: list[float]
    visits: list[VisitRecord]


def result(twins: Any, schedule: str = "finish_time", rounds: int = ROUNDS, seeds: Sequence[int] = SEEDS) -> Result:
    """The rounds of one way of knowing the devices; `twins` as in a spec."""
    means, visits = list[float](), list[VisitRecord]()
    for seed in seeds:
        edge, seconds = EdgeSimulation(counted_experiment(spec_of(PROFILES, schedule, seed, twins))), list[float]()
        for round_no in range(1, rounds + 1):
            seconds.append(edge.round_s(round_no))
            visits += edge.visits
        means.append(statistics.fmean(seconds))
    return Result(means, visits)


def messages(period_s: float, noise: float, estimator: str) -> dict[str, Any]:
    """The field `twins` of a case."""
    return {"period_s": period_s, "noise": noise, "estimator": estimator, "delay_s": DELAY_S}


def longer(found: Result, exact: Result) -> list[float]:
    """By how many percent the rounds of each seed are longer than with exact telemetry."""
    return [100 * (one / other - 1) for one, other in zip(found.seconds, exact.seconds, strict=True)]


Found = dict[tuple[str, float, float], Result]


def measured() -> Found:
    """The results of all cases, by estimator, noise and period."""
    return {
        (estimator, noise, period): result(messages(period, noise, estimator))
        for estimator in ESTIMATORS
        for noise in NOISES
        for period in PERIODS
    }


def table(found: Found, exact: Result, equal: Result) -> str:
    """The table: percent by which rounds are longer than with exact telemetry, mean and range of the seeds."""
    head = ("estimator", "noise", *(f"every {period} s" for period in PERIODS))
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for estimator in ESTIMATORS:
        for noise in NOISES:
            cells = (longer(found[estimator, noise, period], exact) for period in PERIODS)
            told = (f"{statistics.fmean(cell):.0f} ({min(cell):.0f} to {max(cell):.0f})" for cell in cells)
            lines.append(f"| `{estimator}` | {noise:g} | " + " | ".join(told) + " |")
    seconds, apart = statistics.fmean(exact.seconds), longer(equal, exact)
    shown = found[SHOWN["estimator"], SHOWN["noise"], SHOWN["period_s"]]  # type: ignore[index]
    lines.append(f"\nexact telemetry: {seconds:.2f} s a round; equal shares: {statistics.fmean(apart):.0f} % longer")
    lines.append(f"a task ends {off_plan_s(exact):.2f} s off its plan; in the case shown, {off_plan_s(shown):.2f} s")
    return "\n".join(lines)


def off_plan_s(found: Result) -> float:
    """Mean seconds between the planned and the actual end of a task."""
    return statistics.fmean(abs(visit.simulated_s - (visit.predicted_s or 0)) for visit in found.visits)


def draw(found: Found, exact: Result, equal: Result, path: Path) -> None:
    """Draw planned against actual finishing times of one case, and round lengths over the period of messages."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    times, rounds = figure.subplots(1, 2)
    shown = found[SHOWN["estimator"], SHOWN["noise"], SHOWN["period_s"]]  # type: ignore[index]
    told = f"messages every {SHOWN['period_s']} s, noise {SHOWN['noise']}"
    for one, label, colour in ((shown, told, "C1"), (exact, "exact telemetry", "C0")):
        planned, actual = [visit.predicted_s or 0 for visit in one.visits], [visit.simulated_s for visit in one.visits]
        times.plot(planned, actual, ".", markersize=2.5, color=colour, label=label, alpha=0.6, rasterized=True)
    times.plot((0, 30), (0, 30), color="0.4", linewidth=1, label="as planned")
    times.set(xlabel="planned seconds of a task", ylabel="actual seconds", xlim=(0, 12), ylim=(0, 30))
    for estimator, colour, mark in zip(ESTIMATORS, ("C1", "C2", "C3"), "os^", strict=True):
        for noise, style in ((0.0, "-"), (0.4, "--")):
            means = [statistics.fmean(found[estimator, noise, period].seconds) for period in PERIODS]
            rounds.plot(PERIODS, means, mark + style, color=colour, label=f"{estimator}, noise {noise:g}", markersize=4)
    for one, label, style in ((equal, "equal shares", ":"), (exact, "exact telemetry", "-.")):
        rounds.axhline(statistics.fmean(one.seconds), color="0.4", linewidth=1, linestyle=style, label=label)
    rounds.set(xlabel="seconds between messages", ylabel="seconds of a round", xscale="log", ylim=(0, 42))
    rounds.set_xticks(PERIODS, [str(period) for period in PERIODS])
    rounds.minorticks_off()
    for axes, columns in ((times, 1), (rounds, 2)):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small", ncols=columns, loc="upper left")
    with rc_context({"svg.hashsalt": "telemetry"}):  # the same picture has the same bytes
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Print the table, and draw the picture."""
    found, exact, equal = measured(), result(True), result(True, "equal")
    print(table(found, exact, equal))
    if len(sys.argv) > 1:
        draw(found, exact, equal, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
