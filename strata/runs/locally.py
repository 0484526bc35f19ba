"""Following a run of a local topology to its end, from its start or from where it was interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from shared.core.errors import Conflict, NotFound, StrataError
from shared.results.folder import read_run
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo
from strata.api.client import Client
from strata.fleet.processes import fleet_of
from strata.launcher import local_state
from strata.launcher.topology import Topology
from strata.launcher.upkeep import Upkeep
from strata.launcher.work_folder import is_own
from strata.output import print_error, stderr
from strata.runs.run_and_wait import await_results, follow_until_end, keep_if_incomplete

_SETTLE_S, _LOOK_S = 60.0, 0.2


def follow_in(
    topology: Topology, begin: Callable[[Client], RunInfo], runs_dir: Path
) -> tuple[RunInfo, tuple[RoundInfo, ...], int, str | None]:
    """Begin a run in a topology that is ready, and follow it; its logs are kept unless it completes.

    Returns:
        The ended run, its rounds, the exit status of the signal that ended the command, 0 without one, and what
        `keep_if_incomplete` says.

    Raises:
        ProcessDied: the cloud, Redis or the fork server ended, and with it the run.
    """
    upkeep = Upkeep(topology, print_error)
    with (
        Client(topology.url, check=topology.check_vital, authority=topology.authority_file) as client,
        fleet_of(topology, "strata-run") as fleet,
    ):
        info = begin(client)

        def tend() -> None:
            upkeep.look()
            fleet.settle()

        try:
            info, interrupted = follow_until_end(client, info, check=tend)
            rounds = client.rounds(info.run).rounds
        except StrataError:
            _keep_logs(topology, runs_dir / info.run)
            raise
    await_results(info, runs_dir / info.run)
    if info.status == "failed":
        _keep_logs(topology, runs_dir / info.run)
    return info, rounds, interrupted, keep_if_incomplete(topology, info, runs_dir / info.run)


def topology_of(run: RunInfo, folder: Path, runs_dir: Path) -> Topology:
    """A topology on the state that an earlier one kept for a run, with as many processes; it has not been started.

    Args:
        run: the run.
        folder: its results folder.
        runs_dir: the folder of results folders.

    Raises:
        Conflict: the run has completed.
        NotFound: no state is kept on this machine.
    """
    if run.status == "completed":
        raise Conflict(f"run {run.run} has completed")
    state = local_state.kept_state(folder)
    shape = local_state.shape_of(state) if state is not None else None
    if state is None or shape is None:
        raise NotFound(
            f"run {run.run} is {run.status}, and this machine keeps no state of a local topology for it: resume it at "
            "its cloud (--url), or begin a new run of its spec"
        )
    devices, agents = sum(shape.devices_per_agent), len(shape.devices_per_agent)
    return Topology(
        edges=shape.edges,
        devices=devices,
        agents=agents,
        runs_dir=runs_dir,
        folder=state,
        own=is_own(state),
        secure=shape.secure,
    )


def resumed(client: Client, run: str, *, accept_changes: bool = False) -> RunInfo:
    """A run of a cloud that has just started on its state, which goes on: by itself if it was training, or as asked.

    Raises:
        ProvenanceChanged: it began with other data or packages, which is not accepted.
    """
    deadline = time.monotonic() + _SETTLE_S
    while (info := client.run(run)).status in ("pending", "starting") and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    if info.status in ("paused", "stopped", "failed"):
        return client.resume(info.run, accept_changes=accept_changes)
    return info


def say_how_to_resume(folder: Path) -> None:
    """Say how a run that has not completed goes on, if it can."""
    try:
        info = read_run(folder)
    except NotFound:
        return
    if info.status != "completed" and local_state.kept_state(folder) is not None:
        text = f"run {info.run} is {info.status} after round {info.rounds}: `strata resume {info.run}` goes on"
        stderr().print(text, markup=False, highlight=False, soft_wrap=True)


def _keep_logs(topology: Topology, folder: Path) -> None:
    if not folder.is_dir():
        return
    try:
        topology.keep_logs(folder / "logs")
        text = f"logs of all processes: {folder / 'logs'}"
    except OSError as error:  # the disk may be full, which the run failed of
        why = error.strerror or "not all could be copied"
        text = f"the logs of all processes are not kept in {folder / 'logs'}: {why}"
    stderr().print(text, markup=False, highlight=False, soft_wrap=True)
