"""Trains the runs of a page in one local topology; what was interrupted is resumed by the next call."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.papers.measured import Further, Measured, Trial, measure
from benchmarks.papers.plan import Step
from benchmarks.papers.settings import Setting, fingerprint
from shared.results.sweeps import SweepFolder
from shared.spec.run import RunSpec
from strata.api.client import Client
from strata.output import stderr
from strata.runs.run_and_wait import local_topology
from strata.runs.spec_check import checked, topology_size
from strata.sweeps.grid import SpecifiedCombination
from strata.sweeps.runner import from_here, run_all, sweep_of

TRIAL_ROUNDS = 3


class Trainer:
    """A started topology that trains one run after another.

    Args:
        client: of its cloud.
        check: raises if one of its processes has ended.
        runs_dir: the folder of all results folders.
    """

    def __init__(self, client: Client, check: Callable[[], None], runs_dir: Path) -> None:
        self.client, self.check, self.runs_dir = client, check, runs_dir

    def folder(self, name: str, spec: RunSpec, said: str) -> Path | None:
        """Train a spec, unless it has been; its results folder, or None if the run failed.

        Raises:
            KeyboardInterrupt: Ctrl-C stopped it.
        """
        spec = checked(spec)
        sweep = sweep_of([SpecifiedCombination({"setting": name, "seed": spec.seed}, spec)], [said])
        noted = SweepFolder(self.runs_dir / "papers" / f"{name}-{spec.seed}-{fingerprint(spec)}", sweep, self.runs_dir)
        if noted.todo() and run_all(
            self.client, [spec], noted, fetch=from_here(self.runs_dir), check=self.check, console=stderr()
        ):
            raise KeyboardInterrupt
        return None if noted.todo() else noted.folder_of(noted.sweep.combinations[0])

    def runs(self, step: Step, further: Further | None) -> Iterator[Measured]:
        """The runs of a step, each as it ends; a failed one is left out."""
        for seed in step.seeds:
            spec = step.setting.spec_of(seed)
            folder = self.folder(step.setting.key, spec, step.setting.command)
            if folder:
                yield measure(folder, step.setting.key, fingerprint(spec), further)

    def trial(self, setting: Setting) -> Trial | None:
        """The seconds of a round, by a run of a few; None if it failed."""
        seed = setting.seeds[0]
        folder = self.folder(
            f"{setting.key}-trial", setting.spec_of(seed, f"num_rounds={TRIAL_ROUNDS}"), setting.command
        )
        if folder is None:
            return None
        found = measure(folder, setting.key, fingerprint(setting.spec_of(seed)))
        return Trial(
            setting=setting.key,
            fingerprint=found.fingerprint,
            seconds_a_round=round(found.seconds / len(found.series["n_used"]), 3),
        )


@contextmanager
def trainer(settings: Sequence[Setting], runs_dir: Path, agents: int) -> Iterator[Trainer]:
    """A topology as large as the largest setting needs; its state is kept for the next call if it is left early."""
    specs = [setting.spec_of(setting.seeds[0]) for setting in settings]
    edges, devices = (max(numbers) for numbers in zip(*(topology_size(spec.experiment) for spec in specs), strict=True))
    state = runs_dir / "papers" / "state"
    ready_s = max(spec.timeouts.ready_s for spec in specs)
    with (
        local_topology(edges, devices, agents, runs_dir, ready_s, state, console=stderr()) as topology,
        Client(topology.url) as client,
    ):
        yield Trainer(client, topology.check, runs_dir)
    shutil.rmtree(state, ignore_errors=True)
