"""`strata run`: runs one experiment, from its spec to its results folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.launcher.signals import as_interrupt
from strata.options import (
    RUNS_DIR,
    AgentsOption,
    AgentsPerGpuOption,
    Format,
    FormatOption,
    LocalOption,
    RunsDirOption,
    ServerOption,
    SpecArgument,
    connect,
    say_of_another,
    server_of,
    spec_and_fields,
)

if TYPE_CHECKING:
    from shared.run_records.rounds import RoundInfo
    from shared.run_records.runs import RunInfo
    from shared.spec.run import RunSpec
    from strata.api.client import Client
    from strata.launcher.topology import Topology

NOTHING = ""
"""Of a run whose cloud is gone."""
NO_UPDATE = 3
"""Exit status of a run that completed, but in no round of which an update was used."""


def run(
    spec: SpecArgument = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Fields of the spec to change, such as partition.alpha=0.1"),
    ] = None,
    url: ServerOption = None,
    agents: AgentsOption = None,
    agents_per_gpu: AgentsPerGpuOption = 0,
    local: LocalOption = False,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Run an experiment and save its results in runs/<id>/.

    It runs on the cloud of --url or of a running `strata up`. Without one, or with --local, --agents or
    --agents-per-gpu, the command starts a local topology of the size that the spec needs and stops it at the end. Exit
    status 0 only if the run completed, 3 if it completed but no update was ever used. With --format json the last line
    of stdout is one JSON object.
    """
    from strata.spec_files import read_spec

    source, fields = spec_and_fields(spec, overrides or [], "an override has the form key=value")
    cloud = server_of(url, agents, local, agents_per_gpu)
    if cloud is None and not local and agents is None and not agents_per_gpu:
        say_of_another(url)
    experiment = read_spec(source, fields, check_names=False)
    with as_interrupt():
        if cloud:
            code = _on_cloud(cloud, experiment, runs_dir, format)
        else:
            code = _locally(experiment, agents, agents_per_gpu, runs_dir, format)
    raise typer.Exit(code)


def _on_cloud(url: str, spec: RunSpec, runs_dir: Path, format: Format) -> int:
    from strata.output import stderr
    from strata.runs.run_and_wait import check_edges, follow_until_end

    with connect(url) as client:
        check_edges(spec, client.topology())
        info = client.create_run(spec.model_dump(mode="json", exclude_none=True))
        stderr().print(f"run {info.run} on the cloud at {url}", highlight=False)
        info, interrupted = follow_until_end(client, info)
        return report(info, client.rounds(info.run).rounds, runs_dir, format, interrupted)


def _locally(spec: RunSpec, agents: int | None, agents_per_gpu: int, runs_dir: Path, format: Format) -> int:
    from strata.launcher.gpus import agents_on_gpus
    from strata.runs.run_and_wait import local_topology
    from strata.runs.spec_check import topology_size, with_topology_size

    edges, devices = topology_size(spec)
    spec = with_topology_size(spec)

    def begin(client: Client) -> RunInfo:
        return client.create_run(spec.model_dump(mode="json", exclude_none=True))

    agents, ready_s = agents or agents_on_gpus(agents_per_gpu, devices), spec.timeouts.ready_s
    topology = local_topology(edges, devices, agents, runs_dir, ready_s, unchecked=spec, agents_per_gpu=agents_per_gpu)
    return follow_and_report(topology, begin, runs_dir, format)


def follow_and_report(
    starting: AbstractContextManager[Topology], begin: Callable[[Client], RunInfo], runs_dir: Path, format: Format
) -> int:
    """Start a local topology, follow a run in it to its end, print how it ended, and return the exit status.

    Args:
        starting: starts the topology and stops it.
        begin: begins the run, or lets it go on.
        runs_dir: the folder of results folders.
        format: of the output.
    """
    from strata.runs.locally import follow_in, say_how_to_resume

    known = list[Path]()

    def noted(client: Client) -> RunInfo:
        info = begin(client)
        known.append(runs_dir / info.run)
        return info

    try:
        with starting as topology:
            info, rounds, interrupted, incomplete = follow_in(topology, noted, runs_dir)
        code = report(info, rounds, runs_dir, format, interrupted, stored=incomplete or NOTHING)
        return code or (1 if incomplete else 0)
    finally:
        for folder in known:
            say_how_to_resume(folder)


def report(
    info: RunInfo,
    rounds: tuple[RoundInfo, ...],
    runs_dir: Path,
    format: Format,
    interrupted: int = 0,
    stored: str | None = None,
) -> int:
    """Print how a run ended, and return the exit status: `interrupted` if a signal ended the command.

    `stored` says where its results are if not all in their folder.
    """
    from shared.results.folder import summary
    from shared.results.tracking.tracker_notes import tracked_lines
    from strata.output import print_json, stderr, stdout
    from strata.tables import rounds_table, run_table

    folder = runs_dir / info.run if (runs_dir / info.run / "run.json").is_file() else None
    console = stderr() if format is Format.json else stdout()
    if rounds:
        console.print(rounds_table(rounds, info.metrics))
    console.print(run_table(info))
    if folder is not None:
        console.print(f"results: {folder}", highlight=False, soft_wrap=True)
    if stored is None and folder is None and info.rounds:
        stored = f"results are stored by the cloud; `strata pull {info.run}` fetches them"
    if stored:
        console.print(stored, markup=False, highlight=False, soft_wrap=True)
    for line in tracked_lines(folder, info.tracking) if folder is not None else ():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if format is Format.json:
        print_json(summary(info, folder), indent=None)
    if interrupted:
        return interrupted
    if info.status != "completed":
        return 1
    return 0 if any(row.n_used for row in rounds) else NO_UPDATE
