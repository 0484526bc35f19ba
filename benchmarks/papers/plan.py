"""Which settings run: in order of their value, as long as the budget lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.papers.measured import Kept
from benchmarks.papers.page import Page
from benchmarks.papers.settings import Setting, Size, fingerprint_of
from shared.core.formatting import duration


@dataclass(frozen=True)
class Step:
    """The seeds of a setting that have not run.

    Attributes:
        seconds_a_round: measured wall seconds; None before the trial.
        fits: whether the budget is enough for it, after all steps before it that fit.
    """

    setting: Setting
    seeds: tuple[int, ...]
    rounds: int
    seconds_a_round: float | None
    fits: bool

    @property
    def seconds(self) -> float | None:
        """Estimated wall seconds of all of its runs."""
        return None if self.seconds_a_round is None else self.seconds_a_round * self.rounds * len(self.seeds)


def seconds_a_round(setting: Setting, kept: Kept) -> float | None:
    """Measured wall seconds of a round: of its slowest run, else of its trial; None if it has none."""
    now = {seed: fingerprint_of(setting, seed) for seed in setting.seeds}
    runs = [run for run in kept.runs if run.setting == setting.key and now.get(run.seed) == run.fingerprint]
    trials = [each for each in kept.trials if each.setting == setting.key and each.fingerprint in now.values()]
    measured = [run.seconds / len(run.series["n_used"]) for run in runs] or [each.seconds_a_round for each in trials]
    return max(measured, default=None)


def plan(page: Page, kept: Kept, sizes: Sequence[Size], budget_s: float) -> list[Step]:
    """The steps of a page, the most valuable first; a setting without a trial does not fit.

    Args:
        page: of the paper.
        kept: what has run, which counts towards the budget.
        sizes: of the settings to run.
        budget_s: wall seconds for all runs of these sizes together.
    """
    wanted = [each for each in page.settings if each.size in sizes]
    keys = {each.key for each in wanted}
    known = page.known(kept)
    left = budget_s - sum(run.seconds for run in known if run.setting in keys)
    steps = []
    for setting in wanted:
        have = {run.seed for run in known if run.setting == setting.key}
        seeds = tuple(seed for seed in setting.seeds if seed not in have)
        if seeds:
            step = Step(
                setting, seeds, setting.spec_of(seeds[0]).num_rounds, seconds_a_round(setting, kept), fits=False
            )
            fits = step.seconds is not None and step.seconds <= left
            left -= (step.seconds or 0.0) if fits else 0.0
            steps.append(Step(setting, seeds, step.rounds, step.seconds_a_round, fits=fits))
    return steps


def lines(page: Page, steps: Sequence[Step], budget_s: float) -> Iterator[str]:
    """The plan for a reader."""
    yield f"{page.name}: hypotheses"
    for number, hypothesis in enumerate(page.hypotheses, start=1):
        yield f"  {number}. {hypothesis}"
    yield f"\nruns, in order of value (budget {duration(budget_s)} in all, with what has run)"
    for step in steps:
        cost = (
            "needs a trial"
            if step.seconds is None
            else f"{step.seconds_a_round:.3g} s a round, {duration(step.seconds)}"
        )
        what = f"{step.setting.key}: {len(step.seeds)} x {step.rounds} rounds"
        yield f"  {'run    ' if step.fits else 'not run'}  {what}, {cost}"
    total = sum(step.seconds or 0.0 for step in steps if step.fits)
    yield f"  total {duration(total)}" if steps else "  all have run"
