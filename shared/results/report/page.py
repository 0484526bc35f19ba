"""The content of a report, and its HTML."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from shared.core.versions import VERSION
from shared.plots.history import RunHistory
from shared.plots.picture import Cells, Panel, Spans, Tree
from shared.results.comparison import compare
from shared.results.comparison_figure import drawn_comparison
from shared.results.manifest import Manifest
from shared.results.matplotlib_figures import drawn
from shared.results.reader import read_edges, read_history, read_seats, read_visits
from shared.results.report.figures import PAGE, WIDE, pictures
from shared.results.report.rerun import Rerun, read_manifest, rerun
from shared.results.report.svg import inline
from shared.results.report.tables import (
    Table,
    classes_table,
    comparison_table,
    edge_rounds_table,
    failures_table,
    groups_tables,
    rounds_table,
    visits_tables,
)
from shared.results.text_tables import run_figures
from shared.run_records.runs import RunInfo


@dataclass(frozen=True)
class Figure:
    """A picture as it stands in the page."""

    title: str
    content: Markup
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """A run in the page.

    Attributes:
        place: number of the run in the page, from 1.
        headline: names and values shown first.
        spec: as YAML.
    """

    place: int
    info: RunInfo
    headline: Sequence[tuple[str, str]]
    figures: Sequence[Figure]
    tables: Sequence[Table]
    spec: str
    manifest: Manifest | None
    rerun: Rerun


def report(folders: Sequence[Path], target: float | None = None, round_no: int | None = None) -> str:
    """One HTML file about runs, those of several beside each other first; it needs no network and runs no script.

    Args:
        folders: results folders, `runs/<id>`.
        target: a value of the first run's headline metric; None means the best that all runs reach.
        round_no: whose timeline is shown; None means that of each run's slowest round.

    Raises:
        NotFound: a folder holds no run, or no such round.
    """
    sections = [_section(place, folder, round_no) for place, folder in enumerate(folders, start=1)]
    page: dict[str, Any] = {"sections": sections, "comparison": None, "version": VERSION}
    if len(folders) > 1:
        comparison = compare(folders, target)
        svg = drawn_comparison(comparison, "svg")
        title = f"{comparison.metric.label} of all runs by rounds, simulated time and bytes"
        figure = Figure(title, inline(svg, "c-", title), wide=True) if svg else None
        page["comparison"] = {"table": comparison_table(comparison), "figure": figure, "remarks": comparison.remarks}
    return _templates().get_template("report.html").render(page)


@cache
def _templates() -> Environment:
    """The templates; whatever they are given is escaped, unless it is markup already."""
    loader = PackageLoader("shared.results.report", "")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    css = resources.files("shared.results.report").joinpath("report.css").read_text(encoding="utf-8")
    found.globals["css"] = Markup(css)  # noqa: S704  a file of ours
    return found


def _section(place: int, folder: Path, round_no: int | None) -> Section:
    history = read_history(folder)
    info, manifest = history.info, read_manifest(folder)
    clients, edges, links = visits_tables(read_visits(folder), read_seats(folder), folder / "links.csv", info.headline)
    by_edge = edge_rounds_table(history.trained, read_edges(folder), info.headline)
    fields = info.spec.model_dump(mode="json", exclude_none=True)
    return Section(
        place=place,
        info=info,
        headline=_headline(history),
        figures=_figures(place, folder, history, round_no),
        tables=[
            rounds_table(history.rounds, info.metrics),
            *groups_tables(info),
            *filter(None, [classes_table(history.rounds, info.classes)]),
            clients,
            edges,
            by_edge,
            links,
            failures_table(history.rounds),
        ],
        spec=yaml.safe_dump(fields, sort_keys=False, allow_unicode=True),
        manifest=manifest,
        rerun=rerun(info, manifest, history.rounds),
    )


def _headline(history: RunHistory) -> list[tuple[str, str]]:
    energy_j = sum(row.energy_j for row in history.trained)
    return [
        *run_figures(history.info),
        *([("energy", f"{energy_j:.4g} J")] if energy_j else []),
        ("lost contributions", str(sum(row.n_lost for row in history.trained))),
        ("created", f"{history.info.created_at[:19].replace('T', ' ')} UTC"),
    ]


def _figures(place: int, folder: Path, history: RunHistory, round_no: int | None) -> list[Figure]:
    found, shown = [], pictures(folder, history, round_no)
    for at, (picture, wide) in enumerate(shown):
        title = f"{picture.title}: {', '.join(_said(panel) for panel in picture.panels)}"
        svg = drawn(picture, "svg", WIDE if wide else PAGE)
        found.append(Figure(title, inline(svg, f"r{place}f{at}-", title), wide))
    drawn_before = folder / "plots" / "partition.png"
    if all(picture.name != "partition" for picture, _ in shown) and drawn_before.is_file():
        found.append(_as_image(drawn_before, f"{history.info.name}: samples of each class by device"))
    return found


def _said(panel: Panel) -> str:
    """What a panel shows, in words: its axes, or what it is."""
    if isinstance(panel, Tree):
        return f"a dendrogram by {panel.y.label}"
    if isinstance(panel, Spans):
        return f"{panel.x.label} by device"
    return f"{panel.value.label if isinstance(panel, Cells) else panel.y.label} by {panel.x.label}"


def _as_image(path: Path, title: str) -> Figure:
    """A picture drawn by an earlier version, which recorded no data for it."""
    data = b64encode(path.read_bytes()).decode()
    return Figure(title, Markup('<img alt="{}" src="data:image/png;base64,{}">').format(title, data), wide=True)
