"""Attending a run from start to end: the parts that `strata run` and `strata sweep` share."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from shared.core.errors import BadInput, DeadlineExceeded, NotFound, StrataError
from shared.core.formatting import counted
from shared.results.folder import read_run
from shared.results.tracking.tracker_notes import read_notes
from shared.run_records.runs import FINAL, RunInfo
from shared.runtime.host_limits import cpus
from shared.runtime.memory import check_topology
from shared.service.api.nodes import TopologyInfo
from shared.spec.experiment import ExperimentSpec
from shared.spec.run import RunSpec
from strata.api.client import Client
from strata.launcher.signals import status_of
from strata.launcher.topology import Topology
from strata.output import stderr, working
from strata.runs.download import pull_run
from strata.runs.progress import follow, view_on
from strata.runs.spec_check import check_beside

_STOP_S = 15.0
_RESULTS_S, _AGAIN_S = 20.0, 0.2
_TRACKING_S = 60.0
RESUMABLE = frozenset({"failed", "stopped"})


def check_edges(spec: ExperimentSpec, topology: TopologyInfo) -> None:
    """Check that a cloud has as many edges as a spec wants, so that the run does not wait for them in vain.

    Raises:
        BadInput: it has fewer.
    """
    n = sum(edge.state in ("alive", "suspect", "revived") for edge in topology.edges)
    if spec.num_edges is not None and spec.num_edges > n:
        more = f"`strata scale edge={spec.num_edges}` starts more"
        why = f"num_edges {spec.num_edges}: the cloud has {counted(n, 'edge')}; {more}, or set num_edges to at most {n}"
        raise BadInput(why, field="num_edges")


def planned_topology(
    edges: int,
    devices: int,
    agents: int | None,
    runs_dir: Path,
    folder: Path | None = None,
    parallel: int = 1,
    agents_per_gpu: int = 0,
) -> Topology:
    """A local topology that has not been started.

    Args:
        edges: number of edges.
        devices: number of devices of each run that trains at a time.
        agents: number of agent processes; None means one per core. Each run at a time needs one at least.
        runs_dir: the folder of results.
        folder: a folder that keeps its state; None means a temporary one.
        parallel: number of runs at a time.
        agents_per_gpu: how many agents share a GPU; 0 = each sees all.

    Raises:
        BadInput: the numbers do not fit together, or this machine has too little memory for so many processes.
    """
    if parallel > 1:
        devices, agents = parallel * devices, max(agents or cpus(), parallel)
    env = {"CLOUD_MAX_CONCURRENT_RUNS": str(parallel)}
    topology = Topology(
        edges=edges,
        devices=devices,
        agents=agents,
        runs_dir=runs_dir,
        folder=folder,
        agents_per_gpu=agents_per_gpu,
        env=env,
    )
    check_topology(edges, len(topology.devices_per_agent))
    return topology


@contextlib.contextmanager
def local_topology(
    edges: int,
    devices: int,
    agents: int | None,
    runs_dir: Path,
    ready_s: float,
    folder: Path | None = None,
    parallel: int = 1,
    console: Console | None = None,
    unchecked: RunSpec | None = None,
    agents_per_gpu: int = 0,
) -> Iterator[Topology]:
    """A local topology that is ready within `ready_s` seconds, and is stopped at the end; see `planned_topology`.

    A spec that is `unchecked` is checked with its data before a tier starts.

    Raises:
        BadInput: this machine has too little memory for so many processes.
        StrataError: the topology did not start, or was not ready in time; or the spec does not hold.
    """
    topology = planned_topology(edges, devices, agents, runs_dir, folder, parallel, agents_per_gpu)
    with ready_topology(topology, ready_s, console, unchecked):
        yield topology


@contextlib.contextmanager
def ready_topology(
    topology: Topology, ready_s: float, console: Console | None = None, unchecked: RunSpec | None = None
) -> Iterator[Topology]:
    """Start a topology, wait until it is ready, and stop it at the end; the arguments are those of `local_topology`."""
    console = console or stderr()
    per_agent = topology.devices_per_agent
    words = f"cloud, {len(topology.edge_names)} edges, {len(per_agent)} agents with {sum(per_agent)} devices"
    with contextlib.ExitStack() as stack:
        if unchecked is not None:
            stack.callback(topology.stop)
            topology.prepare()
            check_beside(topology, unchecked)
        with working(f"starting {words}", console):
            stack.enter_context(topology)
            topology.wait_ready(ready_s)
        console.print(f"{words} at {topology.url}", highlight=False)
        yield topology


def follow_until_end(
    client: Client, info: RunInfo, *, check: Callable[[], None] = lambda: None, console: Console | None = None
) -> tuple[RunInfo, int]:
    """Show a run on stderr until it ends; Ctrl-C stops it.

    Returns the ended run, and the exit status of a command that a signal ended (`signals.status_of`), 0 without one.
    """
    console = console or stderr()
    try:
        with view_on(console) as view:
            return follow(client, info.run, view, check=check), 0
    except KeyboardInterrupt as interrupt:
        console.print(f"stopping run {info.run}; press Ctrl-C again to leave without waiting", highlight=False)
        return _stopped(client, info), status_of(interrupt)


def _stopped(client: Client, info: RunInfo) -> RunInfo:
    """Stop a run and wait a limited time for its end, so that its results are saved."""
    client.wait_at_most(_STOP_S)
    with contextlib.suppress(StrataError, KeyboardInterrupt):
        info = client.stop(info.run)
        deadline = time.monotonic() + _STOP_S
        while info.status not in FINAL and time.monotonic() < deadline:
            time.sleep(0.1)
            info = client.run(info.run)
    return info


def await_results(info: RunInfo, folder: Path) -> None:
    """Wait until the cloud has completed the results folder and its trackers, since it will be stopped afterwards."""
    if info.rounds and info.status in {"completed", "stopped"}:
        _until(lambda: ended_in(folder) == info.status, _RESULTS_S)
    if info.tracking:
        with working(f"sending the run to {', '.join(info.tracking)}", stderr()):
            _until(lambda: all(_is_complete(folder, tracker, info) for tracker in info.tracking), _TRACKING_S)


def keep_if_incomplete(topology: Topology, info: RunInfo, folder: Path) -> str | None:
    """Have the state of a temporary topology outlive it if the results of an ended run are not all in their folder.

    Returns:
        Where the state is then, and how the results are got from it; None if they are complete.
    """
    complete = ended_in(folder) == info.status and (info.status != "failed" or any(folder.rglob("*.safetensors")))
    if complete or not info.rounds:
        return None
    spec, kept = info.spec, topology.keep_state()
    size = f"--edges {spec.num_edges or 1} --devices {spec.num_devices or 1}"
    again = f"`strata up --state-dir {shlex.quote(str(kept))} {size}` starts its cloud again, and then"
    ways = f"`strata resume {info.run}` writes its results anew" if info.status in RESUMABLE else ""
    ways += f"{', ' if ways else ''}`strata pull {info.run} --into FOLDER` fetches its model"
    return f"the results of run {info.run} are incomplete, and its state is kept in {kept}: {again} {ways}"


def pull_ended(client: Client, info: RunInfo, folder: Path, *, model: bool = True) -> None:
    """Fetch an ended run's results as `pull_run` does, again for a limited time until the cloud has completed them.

    Raises:
        DeadlineExceeded: it has not, though the run did not fail; what there is was fetched.
    """
    deadline = time.monotonic() + _RESULTS_S
    while ended_in(folder) != info.status:
        pull_run(client, info, folder, model=model)
        if info.status == "failed":
            return
        if time.monotonic() > deadline:
            have = f"the cloud's results of run {info.run} do not say that it is {info.status}"
            raise DeadlineExceeded(f"{have}: were files removed there? What there is lies in {folder}")
        time.sleep(_AGAIN_S)


def _is_complete(folder: Path, tracker: str, info: RunInfo) -> bool:
    """Whether a tracker has received the end of the run."""
    note = read_notes(folder).get(tracker)
    return note is not None and note.status == info.status


def _until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def ended_in(folder: Path) -> str | None:
    """The status of the run in a results folder, None if the folder has none."""
    try:
        return read_run(folder).status
    except NotFound:
        return None
