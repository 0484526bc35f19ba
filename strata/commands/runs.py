"""Commands on existing runs: `ls`, `show`, `groups`, `watch`, `change`, `pause`, `resume`, `stop`, `rm`, `pull`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from shared.core.bounds import LARGEST_DEVICES
from strata.commands.run import report
from strata.options import (
    RUNS_DIR,
    Format,
    FormatOption,
    ReadRunArgument,
    RunArgument,
    RunsDirOption,
    UrlOption,
    connect,
    known_url,
    say_of_another,
)

if TYPE_CHECKING:
    from shared.run_records.rounds import RoundDetail, RoundInfo
    from shared.run_records.runs import RunInfo
    from strata.api.client import Client

T = TypeVar("T")


def ls(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Largest number of runs to list.")] = 20,
    owner: Annotated[str | None, typer.Option(help="Only the runs of this user, or of `admin`.")] = None,
    url: UrlOption = None,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """List the newest runs of the cloud, or, if no cloud is running, those in the results folders."""
    from shared.results.folder import summary
    from shared.results.run_list import runs_in
    from strata.output import print_json, stdout
    from strata.tables import runs_table

    if known_url(url):
        with connect(url) as client:
            page = client.run_page(limit, owner)
    else:
        say_of_another(url)
        page = runs_in(runs_dir).page(limit, owner)
    if format is Format.json:
        lost = [{**each.model_dump(mode="json"), "status": "unreadable"} for each in page.unreadable]
        print_json([summary(info, _local(runs_dir, info.run)) for info in page.runs] + lost)
    else:
        stdout().print(runs_table(page.runs, page.unreadable) if page.runs or page.unreadable else "no runs")


def show(
    run: ReadRunArgument,
    round_no: Annotated[
        int | None, typer.Option("--round", min=1, help="Show the tasks of this round instead.")
    ] = None,
    plots: Annotated[
        bool, typer.Option("--plots", help="Draw pictures into plots/ of the results folder instead.")
    ] = False,
    url: UrlOption = None,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Show a run and its rounds, as the cloud knows it or, failing that, from its results folder.

    With --plots it prints the paths of the pictures; their timeline shows the round of --round, or the slowest round.
    """
    from shared.plots.groups import newest_grouping
    from shared.results.folder import read_rounds, read_run, summary
    from strata.output import print_json, stdout
    from strata.tables import group_scores_table, groups_table, labels_table, rounds_table, run_table

    if plots:
        _draw_plots(run, round_no, url, format, runs_dir)
        return
    if round_no is not None:
        _show_round(run, round_no, url, format, runs_dir)
        return

    def fetch(client: Client, info: RunInfo) -> tuple[RunInfo, tuple[RoundInfo, ...]]:
        return info, client.rounds(info.run).rounds

    (info, rounds), folder = from_cloud_or_folder(
        run, url, runs_dir, fetch, lambda path: (read_run(path), read_rounds(path))
    )
    if format is Format.json:
        print_json(summary(info, folder), indent=None)
        return
    console = stdout()
    console.print(run_table(info))
    for line in info.plan:
        console.print(f"plan: {line}", markup=False, highlight=False, soft_wrap=True)
    if rounds:
        console.print(rounds_table(rounds, info.metrics))
    if by_group := group_scores_table(info):
        console.print(by_group)
    if any(row.labels for row in rounds):
        console.print(labels_table(rounds))
    if grouping := newest_grouping(rounds):
        console.print(groups_table(grouping.threshold, grouping.groups))
    if folder is not None:
        console.print(f"results: {folder}", highlight=False, soft_wrap=True)


def _draw_plots(run: str, round_no: int | None, url: str | None, format: Format, runs_dir: Path) -> None:
    """Draw the pictures of a run's results folder, and print their paths.

    Raises:
        NotFound: the run is known, but its results folder is not here.
    """
    from shared.core.errors import NotFound
    from shared.results.folder import read_run
    from shared.results.matplotlib_figures import SCREEN
    from shared.results.report.figures import write_pictures
    from strata.output import print_json, stdout

    info, folder = from_cloud_or_folder(run, url, runs_dir, lambda _, info: info, read_run)
    if folder is None:
        raise NotFound(f"run {info.run} has no results folder in {runs_dir}: `strata pull {info.run}` fetches it")
    paths = [str(path) for path in write_pictures(folder, folder / "plots", "png", SCREEN, round_no)]
    if format is Format.json:
        print_json(paths)
    else:
        stdout().print("\n".join(paths), markup=False, highlight=False, soft_wrap=True)


def _show_round(run: str, round_no: int, url: str | None, format: Format, runs_dir: Path) -> None:
    """Print one round with a row for each task."""
    from shared.results.folder import read_round, read_run
    from strata.output import print_json, stdout
    from strata.tables import rounds_table, visits_table

    def fetch(client: Client, info: RunInfo) -> tuple[RunInfo, RoundDetail]:
        return info, client.round(info.run, round_no)

    def read(folder: Path) -> tuple[RunInfo, RoundDetail]:
        return read_run(folder), read_round(folder, round_no)

    (info, detail), _ = from_cloud_or_folder(run, url, runs_dir, fetch, read)
    if format is Format.json:
        print_json(detail.model_dump(mode="json"), indent=None)
        return
    stdout().print(rounds_table([detail], info.metrics))
    stdout().print(visits_table(detail.seats))


def groups(
    run: ReadRunArgument,
    at: Annotated[
        list[float] | None,
        typer.Option(min=0, max=2, help="A cosine distance, such as 0.3; may be given several times."),
    ] = None,
    url: UrlOption = None,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Show the groups into which a run clustered its clients, cut at one or more distance thresholds."""
    from shared.core.errors import NotFound
    from shared.plots.groups import cut, newest_tree
    from shared.results.folder import read_rounds
    from strata.output import print_json, stdout
    from strata.tables import groups_table

    def fetch(client: Client, info: RunInfo) -> tuple[RoundInfo, ...]:
        return client.rounds(info.run).rounds

    rounds, _ = from_cloud_or_folder(run, url, runs_dir, fetch, read_rounds)
    tree = newest_tree(rounds)
    if tree is None:
        raise NotFound(f"run {run} has not clustered its clients")
    found = {threshold: cut(tree, threshold) for threshold in at or [tree["threshold"]]}
    if format is Format.json:
        print_json([{"threshold": threshold, "groups": members} for threshold, members in found.items()])
        return
    for threshold, members in found.items():
        stdout().print(groups_table(threshold, members))


def watch(
    run: RunArgument = "latest",
    url: UrlOption = None,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Follow a run until it ends. Ctrl-C stops watching; the run goes on. Exit status 0 only if it completed."""
    from strata.output import stderr
    from strata.runs.progress import follow, view_on

    with connect(url) as client:
        with view_on(stderr()) as view:
            info = follow(client, client.run(run).run, view)
        rounds = client.rounds(info.run).rounds
    raise typer.Exit(report(info, rounds, runs_dir, format))


def pause(run: RunArgument, url: UrlOption = None, format: FormatOption = Format.table) -> None:
    """Pause a run after its current round."""
    with connect(url) as client:
        _print(client.pause(client.run(run).run), format)


def change(
    run: RunArgument,
    max_devices: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST_DEVICES, help="Devices for which the run has room from its next round on."),
    ] = None,
    pin: Annotated[
        bool | None, typer.Option("--pin/--no-pin", help="Keep the run however long ago it ended, or no longer.")
    ] = None,
    url: UrlOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Make room for more devices in a run that goes on, whose spec has `partition: sampled`; or pin a run."""
    if max_devices is None and pin is None:
        raise typer.BadParameter("say what to change: --max-devices, --pin or --no-pin")
    with connect(url) as client:
        info = client.change(client.run(run).run, max_devices=max_devices, pinned=pin)
    _print(info, format)
    if format is Format.table and max_devices is not None:
        from strata.output import stdout

        stdout().print(f"room for {info.spec.max_devices} devices from its next round on", highlight=False)


def resume(
    run: RunArgument,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on with other data or packages than the run began with.")
    ] = False,
    url: UrlOption = None,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Resume a paused, stopped or failed run from its last committed round.

    It is refused if the run began with other data, devices, code or packages; --accept-changes records what differs. A
    run of a local topology that has ended, however it ended, goes on in one that is started for it, and is followed to
    its end as by `strata run`.
    """
    from shared.core.errors import NotFound, StrataError, Unreachable

    refusal: StrataError | None = None
    if known_url(url):
        try:
            with connect(url) as client:
                _print(client.resume(client.run(run).run, accept_changes=accept_changes), format)
            return
        except (NotFound, Unreachable) as error:  # it may be one of an earlier topology
            refusal = error
    try:
        folder = _only_folder(runs_dir, run)
    except NotFound as error:
        raise refusal or error from None
    raise typer.Exit(_resume_here(folder, runs_dir, accept_changes, format))


def _resume_here(folder: Path, runs_dir: Path, accept_changes: bool, format: Format) -> int:
    """Start a local topology on the state of a run, let the run go on, and return the exit status."""
    from shared.results.folder import read_run
    from strata.commands.run import follow_and_report
    from strata.launcher.signals import as_interrupt
    from strata.runs.locally import resumed, topology_of
    from strata.runs.run_and_wait import ready_topology

    info = read_run(folder)
    topology = ready_topology(topology_of(info, folder, runs_dir), info.spec.timeouts.ready_s)
    with as_interrupt():
        return follow_and_report(
            topology, lambda client: resumed(client, info.run, accept_changes=accept_changes), runs_dir, format
        )


def stop(run: RunArgument, url: UrlOption = None, format: FormatOption = Format.table) -> None:
    """Stop a run now. Its committed rounds are kept, and `resume` continues after them."""
    with connect(url) as client:
        _print(client.stop(client.run(run).run), format)


def rm(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs that have ended.")],
    results: Annotated[
        bool,
        typer.Option("--results", help="Remove their results folders too, also those of runs removed before."),
    ] = False,
    url: UrlOption = None,
) -> None:
    """Remove ended runs from the cloud, with their states and models. Their results folders stay, unless --results."""
    from strata.output import stdout

    with connect(url) as client:
        for run in runs:
            # `latest` is another run after each removal; of a run that was removed already its results may be left.
            found = run if results and run != "latest" else client.run(run).run
            client.delete(found, results=results)
            stdout().print(f"removed {found}", highlight=False)


def pull(
    run: RunArgument,
    into: Annotated[Path, typer.Option(help="The folder in which the run's folder is created.")] = RUNS_DIR,
    url: UrlOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Fetch a run's spec, rounds, devices, links and global model from the cloud."""
    from strata.output import print_json, stdout
    from strata.runs.download import pull_run

    with connect(url) as client:
        info = client.run(run)
        names = pull_run(client, info, into / info.run)
    if format is Format.json:
        print_json({"run": info.run, "results": str((into / info.run).resolve()), "files": names})
    else:
        stdout().print(f"{len(names)} files in {into / info.run}: {', '.join(names)}", highlight=False, soft_wrap=True)


def _print(info: RunInfo, format: Format) -> None:
    from shared.results.folder import summary
    from strata.output import print_json, status_text, stdout

    if format is Format.json:
        print_json(summary(info, None), indent=None)
    else:
        stdout().print(f"run {info.run}:", status_text(info.status, info.reason), highlight=False)


def _local(runs_dir: Path, run: str) -> Path | None:
    """The results folder of a run, None if it is not here."""
    folder = runs_dir / run
    return folder if os.path.isfile(folder / "run.json") else None  # `Path.is_file` raises where a name is too long


def from_cloud_or_folder(
    run: str,
    url: str | None,
    runs_dir: Path,
    fetch: Callable[[Client, RunInfo], T],
    read: Callable[[Path], T],
) -> tuple[T, Path | None]:
    """Data of a run from the cloud or, if no cloud is known, answers or knows the run, from its results folder.

    Raises:
        StrataError: neither has the run; the cloud's error takes precedence over the folder's, unless the folder has
            results of it that cannot be read.
    """
    from shared.core.errors import NotFound, StrataError, Unreachable
    from shared.results.folder import ResultsUnreadable

    refusal: StrataError | None = None
    if known_url(url):
        try:
            with connect(url) as client:
                info = client.run(run)
                return fetch(client, info), _local(runs_dir, info.run)
        except StrataError as error:
            if not isinstance(error, Unreachable) and error.status != NotFound.status:
                raise
            refusal = error
    try:
        folder = _only_folder(runs_dir, run)
        return read(folder), folder
    except ResultsUnreadable:
        raise
    except NotFound as error:
        raise refusal or error from None


def _only_folder(runs_dir: Path, run: str) -> Path:
    """The folder in the runs folder of the run of this id or name.

    Raises:
        NotFound: there is none, or several have that name.
    """
    from shared.core.errors import NotFound
    from shared.results.lookup import folders_named
    from shared.results.run_list import runs_in

    if Path(run).name != run or run in {".", ".."}:
        raise NotFound(f"{run!r} is not a run id")
    if run == "latest":
        return runs_in(runs_dir).newest()
    folders = [folder] if (folder := _local(runs_dir, run)) else folders_named(runs_dir, run)
    if len(folders) > 1:
        newest = ", ".join(folder.name for folder in folders[:-4:-1])
        raise NotFound(f"{len(folders)} runs are named {run!r}; give the id of one, the newest are {newest}")
    return folders[0]
