"""A sweep: the runs of its combinations one after another at one cloud, noted so that it can be taken up again."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from shared.core.errors import BadInput, NotFound
from shared.results.spec_differences import described
from shared.results.sweeps import Combination, Sweep, SweepFolder
from shared.run_records.runs import RunInfo
from shared.spec.run import RunSpec
from strata.api.answers import Refused
from strata.api.client import Client
from strata.output import stderr
from strata.runs.attend import attend, await_results, ended_in
from strata.runs.download import pull_run
from strata.sweeps.grid import Cell

_RESULTS_S, _AGAIN_S = 20.0, 0.2

Fetch = Callable[[RunInfo], None]
"""Sees to it that the results folder of a run that has ended is here."""


def sweep_of(cells: Sequence[Cell], arguments: Sequence[str]) -> Sweep:
    """A sweep of these combinations that has not begun."""
    return Sweep(
        sweep=secrets.token_hex(8),
        name=cells[0].spec.name,
        arguments=tuple(arguments),
        keys=tuple(cells[0].values),
        combinations=tuple(Combination(values=cell.values, spec_digest=cell.spec.digest()) for cell in cells),
    )


def folder_name(sweep: Sweep) -> str:
    """The name that the same combinations get again: `sweep-quickstart-1f2e3d4c`."""
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
) -> bool:
    """Run what is not complete; True if Ctrl-C ended it. A combination that fails does not keep others from running.

    Args:
        client: of the cloud.
        specs: of all combinations.
        folder: of the sweep; what is so is noted there at once.
        fetch: called for each run that ended.
        check: called while nothing comes, to raise if nothing more can come.

    Raises:
        StrataError: the cloud is gone or takes no runs; the sweep can be taken up later.
    """
    for index in _said(folder):
        try:
            info = _begun(client, specs[index], folder, index)
        except Refused as error:
            if error.status != BadInput.status:
                raise
            folder.note(index, status="failed", reason=error.detail)
            _say_failed(error.detail)
            continue
        folder.note(index, run=info.run, status=info.status, reason=None)
        info, interrupted = attend(client, info, check=check)
        fetch(info)
        folder.note(index, status=info.status, reason=info.reason)
        folder.write_tables()
        if info.status == "failed":
            _say_failed(info.reason or "the cloud gives no reason")
        if interrupted:
            return True
    return False


def _say_failed(reason: str) -> None:
    stderr().print(f"failed: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)


def _said(folder: SweepFolder) -> Iterable[int]:
    """The combinations to run, each said aloud before it begins."""
    n = len(folder.sweep.combinations)
    todo = folder.todo()
    if len(todo) < n:
        stderr().print(f"{n - len(todo)} of {n} combinations are complete", highlight=False)
    for index in todo:
        what = described(folder.sweep.combinations[index].values)
        stderr().print(f"{index + 1} of {n}: {what}", style="bold", markup=False, highlight=False)
        yield index


def _begun(client: Client, spec: RunSpec, folder: SweepFolder, index: int) -> RunInfo:
    """The run of a combination: the one that it has, going on where that ended early, or a new one.

    The key makes one run of a creation whose answer was lost.
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
    """Results come from a cloud that writes them here: wait for the last of them."""
    return lambda info: await_results(info, runs_dir / info.run)


def from_cloud(client: Client, runs_dir: Path) -> Fetch:
    """Results are fetched, unless the cloud writes them here as well."""

    def fetch(info: RunInfo) -> None:
        deadline = time.monotonic() + _RESULTS_S
        while ended_in(runs_dir / info.run) != info.status:
            pull_run(client, info, runs_dir / info.run)
            if time.monotonic() > deadline:
                return
            time.sleep(_AGAIN_S)

    return fetch
