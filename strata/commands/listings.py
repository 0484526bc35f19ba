"""Listings: `experiments`, `algorithms`, `models`, `datasets`, `partitions`, `agents`, `edges`, `twins`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.commands.runs import from_cloud_or_folder
from strata.options import RUNS_DIR, Format, FormatOption, RunsDirOption, UrlOption, connect, known_url, named_url

if TYPE_CHECKING:
    from shared.core.plugins import Kind
    from shared.service.api.algorithms import AlgorithmInfo
    from shared.simulation.digital_twin import Twin
    from strata.api.client import Client


def experiments(
    name: Annotated[str | None, typer.Argument(help="Print the spec of this one, to be changed and run.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List the experiments that come with StrataFL: what each shows, its data, size, and CPU time.

    `strata run NAME` runs one, `strata experiments NAME > mine.yaml` begins a spec of your own. CPU time is that of all
    processes together: divide it by your cores.
    """
    from shared.core.errors import UnknownName
    from shared.spec import catalogue
    from strata.output import Column, FittedTable, print_json, print_text, stdout

    if name is not None:
        if name not in catalogue.files():
            raise UnknownName("experiment", name, [*catalogue.files()])
        print_text(catalogue.files()[name].read_text(encoding="utf-8"))
        return
    known, times = catalogue.entries(), catalogue.measured()
    if format is Format.json:
        print_json([entry.listed(times) for entry in known])
        return
    specs = [entry.spec for entry in known]
    columns = [
        Column("name", [entry.name for entry in known], justify="left"),
        Column("what it shows", [entry.summary for entry in known], justify="left", fold=True),
        Column("data", [spec.data.name for spec in specs], spare=1, justify="left"),
        Column("devices", [str(spec.num_devices or "") for spec in specs], spare=3),
        Column("rounds", [str(spec.num_rounds) for spec in specs], spare=2),
        Column("CPU time", [entry.cost(times) for entry in known], justify="left"),
    ]
    stdout().print(FittedTable(columns))
    stdout().print(f"CPU time was measured on {times.machine}.", soft_wrap=True)


def algorithms(url: UrlOption = None, format: FormatOption = Format.table) -> None:
    """List the algorithms with their parameters and papers: those of the cloud, else those installed here."""
    from strata.output import print_json, stdout
    from strata.tables import algorithms_table

    found = _algorithms(url)
    if format is Format.json:
        print_json([algorithm.model_dump(mode="json") for algorithm in found])
    else:
        stdout().print(algorithms_table(found))


def _algorithms(url: str | None) -> list[AlgorithmInfo]:
    """The algorithms of the cloud that is named or running, else those installed here."""
    from shared.core.errors import Unreachable
    from shared.federation.registry import all_algorithms
    from shared.service.api.algorithms import AlgorithmInfo

    if known_url(url):
        try:
            with connect(url) as client:
                return list(client.algorithms().algorithms)
        except Unreachable:
            if named_url(url):
                raise
    return [
        AlgorithmInfo(name=name, paper=algorithm.paper, params=algorithm.params.model_json_schema())
        for name, algorithm in all_algorithms().items()
    ]


def agents(
    run: Annotated[str | None, typer.Argument(help="A run id, or `latest`: list the devices of this run.")] = None,
    url: UrlOption = None,
    format: FormatOption = Format.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """List the agents (device processes) of the cloud, or the devices of a run and the agents that host them.

    Without a cloud that knows the run, its devices are those of its results folder.
    """
    from shared.results.folder import read_run
    from shared.results.reader import read_seats
    from strata.output import print_json, stdout
    from strata.tables import agents_table, seats_table

    if run is None:
        with connect(url) as client:
            found = client.agents().agents
        rows, table = [agent.model_dump(mode="json") for agent in found], agents_table(found)
    else:
        (_, seats), _ = from_cloud_or_folder(
            run,
            url,
            runs_dir,
            lambda client, info: (info, client.seats(info.run).seats),
            lambda folder: (read_run(folder), read_seats(folder)),
        )
        rows, table = [seat.model_dump(mode="json") for seat in seats], seats_table(seats)
    if format is Format.json:
        print_json(rows)
    else:
        stdout().print(table)


def edges(url: UrlOption = None, format: FormatOption = Format.table) -> None:
    """List the edges that have registered with the cloud."""
    from strata.output import print_json, stdout
    from strata.tables import edges_table

    with connect(url) as client:
        page = client.edges()
    if format is Format.json:
        print_json(page.model_dump(mode="json")["edges"])
    else:
        stdout().print(edges_table(page.edges))


def models(format: FormatOption = Format.table) -> None:
    """List the models with their parameters, those of plug-ins included."""
    from shared.training.models import MODEL_FACTORIES

    _print_kind(MODEL_FACTORIES, format)


def datasets(format: FormatOption = Format.table) -> None:
    """List the data sets that have a name, those of plug-ins included; files are named by their path."""
    from shared.training.data.plugged import DATA_SOURCES

    _print_kind(DATA_SOURCES, format)


def partitions(format: FormatOption = Format.table) -> None:
    """List the partitions with their parameters, those of plug-ins included."""
    from shared.training.partition import PARTITIONERS

    _print_kind(PARTITIONERS, format)


def _print_kind(kind: Kind[Any], format: Format) -> None:
    """Print the values of a kind that are known on this machine."""
    from strata.output import Column, FittedTable, print_json, stdout
    from strata.plugin_listing import known

    rows = known(kind)
    if format is Format.json:
        print_json([row._asdict() for row in rows])
        return
    columns = [
        Column("name", [row.name for row in rows], justify="left"),
        Column("parameters", [row.parameters for row in rows], spare=2, justify="left", fold=True),
        Column("description", [row.description for row in rows], spare=1, justify="left", fold=True),
        Column("package", [row.package or "-" for row in rows], spare=3, justify="left"),
    ]
    stdout().print(FittedTable(columns))


def _twins_at(client: Client, edges: Sequence[str], run: str) -> tuple[Twin, ...]:
    """The twins that these edges keep in a run; those that take no part in it keep none.

    Raises:
        NotFound: none of them keeps any.
    """
    from shared.core.errors import NotFound

    found: list[Twin] = []
    none: list[NotFound] = []
    for edge in edges:
        try:
            found += client.twins(edge, run).twins
        except NotFound as error:
            none.append(error)
    if none and len(none) == len(edges):
        raise none[0]
    return tuple(found)


def twins(
    run: Annotated[str, typer.Argument(help="A run id, `latest`, or the name of one run.")] = "latest",
    edge: Annotated[str | None, typer.Option(help="The name of an edge; default: all edges.")] = None,
    agent: Annotated[
        str | None, typer.Option(help="Show the digital twins of this agent (by id) instead of an edge.")
    ] = None,
    url: UrlOption = None,
    format: FormatOption = Format.table,
) -> None:
    """List the digital twins that the edges keep of their workers in a run."""
    from strata.output import print_json, stdout
    from strata.tables import twins_table

    with connect(url) as client:
        run = client.run(run).run
        if agent is not None:
            found = client.agent_twins(agent, run).twins
        else:
            names = [edge] if edge is not None else [info.edge for info in client.edges().edges]
            found = _twins_at(client, names, run)
    if format is Format.json:
        print_json([twin.model_dump(mode="json") for twin in found])
    else:
        stdout().print(twins_table(found))
