"""`python -m benchmarks.papers NAME`: runs what a paper's page reports, and writes the page's tables and pictures.

It prints a plan first: hypotheses, runs in order of value, measured seconds a round. Runs that do not fit into the
budget stand on the page as not run. What an earlier call has run is kept; an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from benchmarks.papers.gathered import NAMES, gathered, page_of
from benchmarks.papers.measured import Kept
from benchmarks.papers.page import DOCS, Page
from benchmarks.papers.plan import Step, lines, plan
from benchmarks.papers.settings import Size
from benchmarks.papers.train import trainer
from shared.core.files import write_file
from shared.results.matplotlib_figures import draw
from shared.runtime.host_limits import cpus
from strata.launcher.signals import as_interrupt, status_of


def main() -> None:
    """Plan, run, write."""
    parser = argparse.ArgumentParser(prog="benchmarks.papers", description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--size", choices=get_args(Size), default="small", help="which settings to run; default: small")
    parser.add_argument("--cpu-hours", type=float, default=4.0, help="budget of the size's runs; default: 4")
    parser.add_argument("--agents", type=int, default=cpus(), help="processes; default: one per core")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="of the results folders; default: runs")
    parser.add_argument("--plan", action="store_true", help="only print the plan, without trials")
    parser.add_argument("--page", action="store_true", help="only write the page, from what has run")
    options = parser.parse_args()
    page, budget_s = page_of(options.name), 3600 * options.cpu_hours / options.agents
    if not options.page:
        try:
            with as_interrupt():
                _train(page, options.size, budget_s, options.runs_dir, None if options.plan else options.agents)
        except KeyboardInterrupt as interrupt:
            print("interrupted; the same command goes on, and --page writes what has run", file=sys.stderr)
            sys.exit(status_of(interrupt))
    if not options.plan:
        write(page, Kept.read(page.name))


def _train(page: Page, size: Size, budget_s: float, runs_dir: Path, agents: int | None) -> None:
    """Print the plan, and follow it with so many agents; None means not to."""
    kept = Kept.read(page.name)
    steps = plan(page, kept, [size], budget_s)
    if agents is None or not steps:
        _print(page, steps, budget_s)
        return
    with trainer([step.setting for step in steps], runs_dir, agents) as topology:
        for step in steps:
            if step.seconds_a_round is None and (trial := topology.trial(step.setting)):
                kept = kept.with_trial(trial)
                kept.write(page.name)
        steps = plan(page, kept, [size], budget_s)
        _print(page, steps, budget_s)
        for step in steps:
            for run in topology.runs(step, page.further) if step.fits else ():
                kept = kept.with_run(run)
                kept.write(page.name)


def _print(page: Page, steps: list[Step], budget_s: float) -> None:
    print("\n".join(lines(page, steps, budget_s)), flush=True)


def write(page: Page, kept: Kept) -> None:
    """Write the page's parts, its pictures, and the list of all verdicts."""
    write_file(page.path, page.text(kept).encode())
    for path, picture in page.pictures(kept):
        draw(path, picture)
    write_file(DOCS / "papers.md", gathered().encode())


if __name__ == "__main__":
    main()
