"""Running a sweep on one cloud: its combinations in order, some at a time, recorded so that it can be resumed."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from secrets import token_hex

from rich.console import Console

from shared.core.errors import BadInput, NotFound
from shared.results.comparison import Comparison, compare
from shared.results.spec_differences import described
from shared.results.sweeps import Combination, Sweep, SweepFolder
from shared.run_records.runs import RunInfo
from shared.spec.run import RunSpec
from strata.api.answers import Refused
from strata.api.client import Client
from strata.launcher.upkeep import Upkeep
from strata.output import print_error, stderr
from strata.runs.run_and_wait import await_results, follow_until_end, local_topology, pull_ended
from strata.runs.spec_check import topology_size
from strata.sweeps.grid import SpecifiedCombination

Fetch = Callable[[RunInfo], None]
"""Makes the results folder of an ended run available locally."""


def sweep_of(combinations: Sequence[SpecifiedCombination], arguments: Sequence[str]) -> Sweep:
    """A new sweep of these combinations."""
    return Sweep(
        sweep=token_hex(8),
        name=combinations[0].spec.name,
        arguments=tuple(arguments),
        keys=tuple(combinations[0].values),
        combinations=tuple(Combination(values=one.values, spec_digest=one.spec.digest()) for one in combinations),
    )


def planned(
    combinations: Sequence[SpecifiedCombination], arguments: Sequence[str], into: Path | None, runs_dir: Path
) -> tuple[list[RunSpec], SweepFolder]:
    """The specs of all combinations, and the new or existing folder of their sweep.

    Args:
        combinations: at least one.
        arguments: how the user named them.
        into: the folder of the sweep; None means one in `runs_dir` with a name that follows from the combinations.
        runs_dir: the folder of results folders.
    """
    sweep = sweep_of(combinations, arguments)
    folder = SweepFolder(into or runs_dir / folder_name(sweep), sweep, runs_dir)
    return [one.spec for one in combinations], folder


def run_locally(
    specs: Sequence[RunSpec],
    folder: SweepFolder,
    *,
    agents: int | None = None,
    parallel: int = 1,
    console: Console | None = None,
) -> int:
    """Run a sweep on one local topology for as many runs at a time; the arguments are those of `run_all`.

    The topology is as large as the largest spec needs. Its state is kept until the sweep is complete.
    """
    edges, devices = (max(numbers) for numbers in zip(*map(topology_size, specs), strict=True))
    ready_s = max(spec.timeouts.ready_s for spec in specs)
    folder.own_state()
    with (
        local_topology(edges, devices, agents, folder.runs_dir, ready_s, folder.state, parallel, console) as topology,
        Client(topology.url, check=topology.check_vital) as client,
    ):
        fetch, upkeep = from_here(folder.runs_dir), Upkeep(topology, print_error)
        interrupted = run_all(client, specs, folder, fetch=fetch, check=upkeep.look, parallel=parallel, console=console)
    if not folder.todo():
        shutil.rmtree(folder.state, ignore_errors=True)
    return interrupted


def compared(folder: SweepFolder, target: float | None = None) -> Comparison | None:
    """All runs of a sweep that have results, side by side; None if there are none."""
    found = [place for each, info in folder.rows() if info and (place := folder.folder_of(each))]
    return compare(found, target) if found else None


def folder_name(sweep: Sweep) -> str:
    """A folder name that depends on the combinations only, such as `sweep-quickstart-1f2e3d4c`."""
    digests = "".join(each.spec_digest for each in sweep.combinations)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", sweep.name)[:40].strip("-") or "experiment"
    return f"sweep-{name}-{hashlib.sha256(digests.encode()).hexdigest()[:8]}"


def run_all(
    client: Client,
    specs: Sequence[RunSpec],
    folder: SweepFolder,
    *,
    fetch: Fetch,
    check: Callable[[], None] = lambda: None,
    parallel: int = 1,
    console: Console | None = None,
) -> int:
    """Run all incomplete combinations, whether or not some fail; returns 0, or the status of the signal that ended it.

    Args:
        client: client of the cloud.
        specs: the specs of all combinations.
        folder: folder of the sweep, where every change of a status is recorded at once.
        fetch: called for each run that has ended.
        check: called regularly while a run is followed; raises if the run cannot continue.
        parallel: number of runs that are submitted at a time.
        console: shows the progress; None means stderr.

    Raises:
        StrataError: the cloud cannot be reached or accepts no runs; the sweep can be resumed later.
    """
    console = console or stderr()
    todo, submitted = iter(_announced(folder, console)), deque[tuple[int, RunInfo]]()
    while True:
        while len(submitted) < parallel and (index := next(todo, None)) is not None:
            info = _submitted(client, specs[index], folder, index, console)
            submitted += [(index, info)] if info is not None else []
        if not submitted:
            return 0
        index, info = submitted.popleft()
        info, interrupted = follow_until_end(client, info, check=check, console=console)
        fetch(info)
        folder.note(index, status=info.status, reason=info.reason)
        folder.write_tables()
        if info.status == "failed":
            _print_failure(console, info.reason or "the cloud gives no reason")
        if interrupted:
            for index, info in submitted:
                folder.note(index, status=client.stop(info.run).status)
            return interrupted


def _submitted(client: Client, spec: RunSpec, folder: SweepFolder, index: int, console: Console) -> RunInfo | None:
    """The run of a combination; None if the cloud refuses its spec."""
    try:
        info = _started(client, spec, folder, index)
    except Refused as error:
        if error.status != BadInput.status:
            raise
        folder.note(index, status="failed", reason=error.detail)
        _print_failure(console, error.detail)
        return None
    folder.note(index, run=info.run, status=info.status, reason=None)
    return info


def _print_failure(console: Console, reason: str) -> None:
    console.print(f"failed: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)


def _announced(folder: SweepFolder, console: Console) -> Iterable[int]:
    """The indices of the combinations to run; each combination is printed before it begins."""
    n = len(folder.sweep.combinations)
    todo = folder.todo()
    if len(todo) < n:
        console.print(f"{n - len(todo)} of {n} combinations are complete", highlight=False)
    for index in todo:
        what = described(folder.sweep.combinations[index].values)
        console.print(f"{index + 1} of {n}: {what}", style="bold", markup=False, highlight=False)
        yield index


def _started(client: Client, spec: RunSpec, folder: SweepFolder, index: int) -> RunInfo:
    """The run of a combination: its existing run, resumed if it ended early, or a new one.

    The idempotency key prevents a second run when the cloud's answer was lost.
    """
    combination = folder.sweep.combinations[index]
    info = None
    if combination.run:
        try:
            info = client.run(combination.run)
        except Refused as error:
            if error.status != NotFound.status:
                raise
    if info is None:
        key = f"sweep-{folder.sweep.sweep}-{combination.spec_digest}"
        info = client.create_run(spec.model_dump(mode="json", exclude_none=True), key)
    return client.resume(info.run) if info.status in {"paused", "stopped", "failed"} else info


def from_here(runs_dir: Path) -> Fetch:
    """For a cloud that writes its results here: waits until they are complete."""
    return lambda info: await_results(info, runs_dir / info.run)


def from_cloud(client: Client, runs_dir: Path) -> Fetch:
    """For a remote cloud: downloads the results, unless the cloud also writes them here."""
    return lambda info: pull_ended(client, info, runs_dir / info.run)
