"""`strata run`: one experiment from its spec to its results folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import home
from shared.cli.options import RUNS_DIR, Format, FormatOption, RunsDirOption, named_url
from shared.cli.signals import as_interrupt

if TYPE_CHECKING:
    from shared.api import RoundInfo, RunInfo
    from shared.cli.client import Client
    from shared.cli.launch import Topology
    from shared.spec import ExperimentSpec

_EDGES, _DEVICES = 2, 10
_STOP_S = 15.0
_RESULTS_S = 20.0
_INTERRUPTED = 130


def run(
    spec: Annotated[Path, typer.Argument(help="YAML or JSON file of an experiment.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="For instance partition.alpha=0.1")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Run there; else STRATA_URL, else on a local topology.")
    ] = None,
    agents: Annotated[
        int | None, typer.Option(min=1, help="Agent processes of the local topology; default: one a core.")
    ] = None,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Run an experiment; without --url on a local topology of its size, which is stopped at the end.

    Exit status 0 only if the run completed. With --format json the last line of stdout is one JSON object.
    """
    from shared.spec import read_spec

    for override in overrides or []:
        if not override.partition("=")[0] or "=" not in override:
            raise typer.BadParameter(f"an override reads key=value, not {override!r}")
    cloud = named_url(url)
    if cloud and agents is not None:
        raise typer.BadParameter("--agents is for a local topology; the cloud of --url has its own")
    experiment = read_spec(spec, overrides or [])
    with as_interrupt():
        if cloud:
            code = _on_cloud(cloud, experiment, runs_dir, format)
        else:
            code = _locally(experiment, agents, runs_dir, format)
    raise typer.Exit(code)


def _on_cloud(url: str, spec: ExperimentSpec, runs_dir: Path, format: Format) -> int:
    from shared.cli.client import Client

    with Client(url) as client:
        info, interrupted = drive(client, spec)
        return report(info, client.rounds(info.run).rounds, runs_dir, format, interrupted)


def _locally(spec: ExperimentSpec, agents: int | None, runs_dir: Path, format: Format) -> int:
    from shared.cli.client import Client
    from shared.cli.launch import Topology
    from shared.cli.output import stderr
    from shared.sizes import check_processes

    devices = spec.num_devices or _DEVICES
    edges = spec.num_edges or min(_EDGES, devices)
    spec = _sized(spec, edges, devices)
    console = stderr()
    running = home.running()
    if running:
        console.print(f"`strata up` runs at {running.url}; to run there: --url {running.url}", highlight=False)
    topology = Topology(edges=edges, devices=devices, agents=agents, runs_dir=runs_dir)
    check_processes(1 + edges + len(topology.rooms))
    words = f"cloud, {edges} edges, {len(topology.rooms)} agents with {devices} devices"
    with contextlib.ExitStack() as stack:
        with console.status(f"starting {words}"):
            stack.enter_context(topology)
            topology.wait_ready(spec.timeouts.ready_s)
        console.print(f"{words} at {topology.url}", highlight=False)
        with Client(topology.url) as client:
            info, interrupted = drive(client, spec, check=topology.check)
            rounds = client.rounds(info.run).rounds
        _await_results(info, runs_dir / info.run)
        if info.status == "failed":
            _keep_logs(topology, runs_dir / info.run)
    return report(info, rounds, runs_dir, format, interrupted)


def _sized(spec: ExperimentSpec, edges: int, devices: int) -> ExperimentSpec:
    """The spec with its numbers of edges and devices, refused before anything is started if they cannot be."""
    from shared.spec import parse_spec

    return parse_spec({**spec.model_dump(mode="json"), "num_edges": edges, "num_devices": devices})


def _await_results(info: RunInfo, folder: Path) -> None:
    """Give the cloud time to bring the results folder to the run's end before it is stopped."""
    from shared.errors import NotFound
    from shared.results import read_run

    deadline = time.monotonic() + (_RESULTS_S if info.rounds and info.status in {"completed", "stopped"} else 0.0)
    while time.monotonic() < deadline:
        with contextlib.suppress(NotFound):
            if read_run(folder).status == info.status:
                return
        time.sleep(0.05)


def _keep_logs(topology: Topology, folder: Path) -> None:
    from shared.cli.output import stderr

    topology.keep_logs(folder / "logs")
    stderr().print(f"logs of all processes: {folder / 'logs'}", highlight=False)


def drive(client: Client, spec: ExperimentSpec, *, check: Callable[[], None] = lambda: None) -> tuple[RunInfo, bool]:
    """Start a run and show it until it ends; Ctrl-C stops it. Answers with its end, and whether it was Ctrl-C."""
    from shared.cli.output import stderr
    from shared.cli.progress import follow, view_on

    info = client.create_run(spec.model_dump(mode="json", exclude_none=True))
    try:
        with view_on(stderr()) as view:
            return follow(client, info.run, view, check=check), False
    except KeyboardInterrupt:
        stderr().print(f"stopping run {info.run}; once more Ctrl-C does not wait for it", highlight=False)
        return _stopped(client, info), True


def _stopped(client: Client, info: RunInfo) -> RunInfo:
    """Stop a run and wait a little for its end, so that what it reached is on record."""
    from shared.api import FINAL
    from shared.errors import StrataError

    with contextlib.suppress(StrataError, KeyboardInterrupt):
        info = client.stop(info.run)
        deadline = time.monotonic() + _STOP_S
        while info.status not in FINAL and time.monotonic() < deadline:
            time.sleep(0.1)
            info = client.run(info.run)
    return info


def report(info: RunInfo, rounds: tuple[RoundInfo, ...], runs_dir: Path, format: Format, interrupted: bool) -> int:
    """Print how a run ended; answers with the exit status."""
    from shared.cli.output import print_json, stderr, stdout
    from shared.cli.tables import rounds_table, run_table
    from shared.results import summary

    folder = runs_dir / info.run if (runs_dir / info.run / "run.json").is_file() else None
    console = stderr() if format is Format.json else stdout()
    if rounds:
        console.print(rounds_table(rounds))
    console.print(run_table(info))
    if folder is not None:
        console.print(f"results: {folder}", highlight=False, soft_wrap=True)
    elif info.rounds:
        console.print(f"results: with the cloud; `strata pull {info.run}` fetches them", highlight=False)
    if format is Format.json:
        print_json(summary(info, folder), indent=None)
    if interrupted:
        return _INTERRUPTED
    return 0 if info.status == "completed" else 1
