"""Runs, rounds, devices, edges and algorithms as tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeGuard

from rich.table import Table
from rich.text import Text

from shared.core.clocks import is_off, told_clock
from shared.core.formatting import duration, number, parameters_text, size
from shared.results.group_scores import group_columns
from shared.results.text_tables import TextColumn, round_columns, run_figures
from shared.run_records.groups import groups_text
from shared.run_records.metrics import ACCURACY, MetricInfo
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo, SeatInfo, UnreadableRun
from shared.run_records.visits import VisitRow
from shared.runtime.cpu_use import CpuUse
from shared.service.api.algorithms import AlgorithmInfo
from shared.service.api.identities import IdentityInfo
from shared.service.api.nodes import AgentInfo, EdgeInfo
from shared.service.api.users import UserInfo
from shared.simulation.digital_twin import Twin
from strata.output import Column, FittedTable, status_text

_MAX_ROUNDS = 40


def runs_table(runs: Sequence[RunInfo], unreadable: Sequence[UnreadableRun] = ()) -> Table:
    """A line for each run; at the end those that the cloud cannot read."""
    alike = all(info.headline == ACCURACY for info in runs)
    score = "accuracy" if alike else "score"
    has_owners = any(info.owner is not None for info in runs)
    owner = ["owner"] if has_owners else []
    table = Table("run", "name", *owner, "algorithm", "status", "rounds", score, "loss", "wall", "created")
    for info in runs:
        table.add_row(
            info.run,
            Text(info.name),
            *(info.owner_name for _ in owner),
            info.algorithm,
            status_text(info.status, info.reason),
            f"{info.rounds}/{info.num_rounds}",
            info.headline.text(info.score) + ("" if alike else f" {info.headline.label}"),
            number(info.loss),
            duration(info.wall_s),
            info.created_at,
        )
    for each in unreadable:
        status = status_text("unreadable", each.reason)
        unknown = ["-"] * (2 + len(owner))
        table.add_row(Text(each.run), *unknown, status, "-", "-", "-", "-", Text(each.created_at))
    return table


def run_table(info: RunInfo) -> Table:
    """One run, with a line for each figure."""
    table = Table(show_header=False, box=None, pad_edge=False)
    rows: list[tuple[str, str | Text]] = [
        ("run", info.run),
        ("name", Text(info.name)),
        *([("owner", info.owner)] if info.owner else []),
        ("status", status_text(info.status, info.reason)),
        *((label, Text(value)) for label, value in run_figures(info)),
        ("model", info.model_sha256 or "-"),
        *(("note", Text(note)) for note in info.notes),
    ]
    for label, value in rows:
        table.add_row(Text(label, style="dim"), value)
    return table


def rounds_table(rounds: Sequence[RoundInfo], metrics: Sequence[MetricInfo] = (ACCURACY,)) -> FittedTable:
    """One row for each round; of very many rounds, the first, the last and evenly spaced ones in between."""
    shown = thinned(rounds, _MAX_ROUNDS)
    lost = [Text(str(row.n_lost), style="red" if row.failures else "dim") for row in shown]
    columns = terminal_columns(round_columns(shown, metrics), lost=lost)
    return FittedTable(columns, None if len(shown) == len(rounds) else f"{len(shown)} of {len(rounds)} rounds")


def terminal_columns(columns: Sequence[TextColumn], **styled: Sequence[Text]) -> list[Column]:
    """Columns of text as the terminal shows them, headings in two lines; `styled`: coloured cells by column name."""
    return [
        Column(
            each.name if each.fold else each.name.replace(" ", "\n", 1),
            styled.get(each.name) or [Text(cell) for cell in each.cells],
            each.spare,
            "left" if each.words else "right",
            each.fold,
        )
        for each in columns
    ]


def group_scores_table(info: RunInfo) -> FittedTable | None:
    """The scores of a run by group of samples; None for data without groups."""
    columns = group_columns(info)
    return FittedTable(terminal_columns(columns)) if columns else None


def groups_table(threshold: float, groups: Sequence[Sequence[str]]) -> Table:
    """A line for each group of clients."""
    table = Table("group", "clients", title=f"groups at distances up to {threshold:.4g}", title_justify="left")
    for place, members in enumerate(groups):
        table.add_row(str(place), " ".join(members))
    return table


def visits_table(visits: Sequence[VisitRow]) -> FittedTable:
    """A line for each visit of a round: outcome, reason, costs and the algorithm's own figures."""
    figures = dict.fromkeys(name for row in visits for name, found in row.figures.items() if _is_number(found))
    columns = [
        Column("device", [str(row.seat) for row in visits]),
        Column("group", [groups_text(row) or "-" for row in visits], spare=2, justify="left"),
        Column("edge", [row.edge for row in visits], spare=1, justify="left"),
        Column("edge\nround", [str(row.edge_round) for row in visits], spare=3),
        Column("dispatch", [str(row.wave) for row in visits], spare=3),
        Column("outcome", [row.outcome for row in visits], justify="left"),
        Column("reason", [row.reason or "-" for row in visits], spare=1, justify="left"),
        Column("label", [row.label or "-" for row in visits], justify="left"),
        *(Column(name.replace("_", "\n"), [_figure(name, row) for row in visits], 2) for name in figures),
        Column("samples", [str(row.n_samples) for row in visits], spare=7),
        Column("share\nof work", [f"{row.work_share:.2f}" for row in visits], spare=8),
        Column("up", [size(row.up_bytes) for row in visits], spare=4),
        Column("down", [size(row.down_bytes) for row in visits], spare=6),
        Column("moved", [size(row.moved_bytes) for row in visits], spare=8),
        Column("simulated", [duration(row.simulated_s) for row in visits], spare=1),
        Column("predicted", ["-" if row.predicted_s is None else duration(row.predicted_s) for row in visits], spare=3),
        Column("energy", [f"{row.energy_j:.3g} J" for row in visits], spare=8),
    ]
    optional = {"group", "label", "edge\nround", "dispatch", "share\nof work", "moved", "predicted", "energy"}
    return FittedTable([column for column in columns if column.name not in optional or len(set(column.cells)) > 1])


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float)


def _figure(name: str, row: VisitRow) -> str:
    """One of the algorithm's figures of a visit; `..._bytes` is shown as bytes."""
    value = row.figures.get(name)
    if not _is_number(value):
        return "-"
    return size(int(value)) if name.endswith("_bytes") else f"{value:.4g}"


def labels_table(rounds: Sequence[RoundInfo]) -> Table:
    """Visits by the algorithm's label, a line for each round with labels; of many rounds, as in `rounds_table`."""
    labelled = [row for row in rounds if row.labels]
    names = sorted({name for row in labelled for name in row.labels})
    table = Table("round", *names, "retired", "announcements", "updates")
    for column in table.columns:
        column.justify = "right"
    for row in thinned(labelled, _MAX_ROUNDS):
        counts = [str(row.labels.get(name, 0)) for name in names]
        rest = size(row.device_bytes_up - row.report_bytes)
        table.add_row(str(row.round_no), *counts, str(len(row.retired)), size(row.report_bytes), rest)
    return table


def thinned(rounds: Sequence[RoundInfo], most: int) -> list[RoundInfo]:
    """At most `most` rounds, evenly spaced, with the first and the last."""
    if len(rounds) <= most:
        return list(rounds)
    last = len(rounds) - 1
    return [rounds[index * last // (most - 1)] for index in range(most)]


def agents_table(agents: Sequence[AgentInfo]) -> Table:
    """A line for each agent."""
    table = Table("agent", "name", "state", "seen", "room for", "profile", "edge", "devices", "working on")
    for agent in agents:
        table.add_row(
            agent.agent,
            agent.name,
            _node_state(agent),
            f"{agent.last_seen_s:.1f} s ago",
            str(agent.devices),
            agent.profile,
            agent.edge or "-",
            str(agent.seats) or "-",
            "-" if agent.visiting is None else str(agent.visiting),
        )
    return table


def identities_table(identities: Sequence[IdentityInfo]) -> Table:
    """A line for each node that has a certificate."""
    table = Table("class", "name", "certificate until", "SHA-256 of its key")
    for each in identities:
        until = datetime.fromtimestamp(each.not_after, UTC)
        table.add_row(each.node_class, each.name, f"{until:%Y-%m-%d %H:%M} UTC", each.key_sha256[:16])
    return table


def users_table(users: Sequence[UserInfo]) -> Table:
    """A line for each user of a cloud, with what is used of which limit."""
    table = Table("user", "runs that have not ended", "results", "since")
    for each in users:
        n_bytes = f"{size(each.n_bytes)} of {'any' if each.max_bytes is None else size(each.max_bytes)}"
        n_runs = f"{each.n_runs} of {'any' if each.max_runs is None else each.max_runs}"
        table.add_row(each.name, n_runs, n_bytes, each.created_at)
    return table


def seats_table(seats: Sequence[SeatInfo]) -> Table:
    """A line for each seat of a run."""
    grouped = any(seat.groups for seat in seats)
    names = (
        "device",
        *["group"] * grouped,
        "role",
        "state",
        "edge",
        "agent",
        "profile",
        "train",
        "test",
        "label counts",
    )
    table = Table(*names)
    for seat in seats:
        table.add_row(
            str(seat.seat),
            *[Text(groups_text(seat))] * grouped,
            f"{seat.role}, faulty data" if seat.faulty else seat.role,
            status_text(seat.state, seat.reason),
            seat.edge or "-",
            seat.agent or "-",
            seat.profile,
            str(seat.n_train),
            str(seat.n_test),
            " ".join(map(str, seat.label_counts)),
        )
    return table


def edges_table(edges: Sequence[EdgeInfo]) -> Table:
    """A line for each edge."""
    hosts = any(edge.name != edge.edge for edge in edges)  # of edges that drew their names
    table = Table("edge", *(("host",) if hosts else ()), "address", "state", "seen", "agents")
    for edge in edges:
        host = (edge.name,) if hosts else ()
        seen = f"{edge.last_seen_s:.1f} s ago"
        table.add_row(edge.edge, *host, edge.url, _node_state(edge), seen, str(edge.n_agents))
    return table


def _node_state(node: AgentInfo | EdgeInfo) -> Text:
    """The state of a node, with the reason for which it is left out of runs."""
    words = f"{node.state} ({node.reason})" if node.reason else str(node.state)
    if is_off(node.clock_ahead_s):
        words += f", {told_clock('it', node.clock_ahead_s or 0.0)}"
    return Text(words, style="" if node.state == "alive" else "red")


def twins_table(twins: Sequence[Twin]) -> Table:
    """A line for each twin: its estimate of its worker, and its newest prediction with the actual time.

    Where telemetry comes in messages, also how old it was at that planning, and the free compute estimated and actual.
    """
    messages, limited = any(twin.heard for twin in twins), any(twin.telemetry.cpu for twin in twins)
    head = ("device", "health", "free compute", "samples", "seconds to implied", "strikes", "predicted", "took")
    further = ("telemetry age", "estimated", "actual") if messages else ()
    table = Table(*head, *further, *(("CPUs", "used by others") if limited else ()))
    for twin in twins:
        newest = twin.history[-1] if twin.history else None
        seen = (newest.telemetry_age_s, newest.estimated_sps, newest.actual_sps) if newest else (None, None, None)
        compared = ["-" if seen[0] is None else duration(seen[0])]
        compared += ["-" if sps is None else f"{sps:.4g} /s" for sps in seen[1:]]
        table.add_row(
            str(twin.seat),
            Text(twin.health, style="" if twin.health == "healthy" else "red"),
            f"{twin.telemetry.free_sps:.4g} /s",
            str(twin.telemetry.n_collected),
            f"{twin.ratio:.2f} ± {twin.ratio_var**0.5:.2f}",
            str(twin.strikes),
            "-" if newest is None else duration(newest.predicted_s),
            "-" if newest is None or newest.took_s is None else duration(newest.took_s),
            *(compared if messages else ()),
            *(_cpus(twin.telemetry.cpu) if limited else ()),
        )
    return table


def _cpus(cpu: CpuUse | None) -> tuple[str, str]:
    """The CPUs that a worker's container may use, and how many of them others used."""
    return ("-", "-") if cpu is None else (f"{cpu.limit:.3g}", f"{max(cpu.used - cpu.own, 0):.2g}")


def algorithms_table(algorithms: Sequence[AlgorithmInfo]) -> Table:
    """A line for each algorithm: its parameters with their defaults, and its paper."""
    table = Table("name", "parameters", "paper")
    for algorithm in algorithms:
        table.add_row(algorithm.name, Text(parameters_text(algorithm.params)), Text(algorithm.paper))
    return table
