"""The tables of devices and of edges on a run's page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from nicegui import events, ui

from cloud_server.dashboard.layout import card
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.tables import Figure, columns_of, row_of
from shared.results.group_scores import GROUPS_NOTE, group_columns, group_rows
from shared.results.sum_columns import (
    DEVICES_NOTE,
    EDGE_COLUMNS,
    EDGES_NOTE,
    STALENESS_NOTE,
    Columns,
    Device,
    Edge,
    device_columns,
    devices_of,
)
from shared.run_records.runs import RunInfo

ROWS_A_PAGE = 10
_LINKED = (
    '<q-td :props="props"><a v-if="props.row.page" class="in-row" :id="`leads-to-${props.row.page}`"'
    """ :href="'/ui' + props.row.page" @click.exact.prevent>{{ props.value }}</a>"""
    "<template v-else>{{ props.value }}</template></q-td>"
)
"""A link for the keyboard and for further tabs; what answers to a plain click is the row around it, which stays."""
R = TypeVar("R")


class SumsTable(Generic[R]):
    """A table that the cloud sorts and cuts into pages, so that of thousands of rows a browser has those it shows.

    Args:
        title: of its card.
        page_of: the address of a row's own page, to which the row leads; empty where it has none.
    """

    def __init__(self, title: str, page_of: Callable[[R], str] = lambda _: "") -> None:
        self._page_of = page_of
        self._columns: Columns[R] | None = None
        self._rows: Sequence[R] = ()
        self._names: list[str] = []
        with card(title):
            pagination = {"rowsPerPage": ROWS_A_PAGE, "page": 1, "sortBy": None, "descending": False, "rowsNumber": 0}
            self._table = ui.table(rows=[], columns=[], row_key="key", pagination=pagination).classes("w-full")
            self._table.props(f'flat dense :rows-per-page-options="[{ROWS_A_PAGE}, 25, 100]" binary-state-sort')
            self._table.on("request", self._requested, ["pagination"]).on_pagination_change(self._count_again)
            self._table.on("rowClick", self._row_clicked, [[], ["key"], []])
            self._note = ui.label().classes("text-caption")

    def show(self, columns: Columns[R], rows: Sequence[R], note: str) -> None:
        """Show rows, in the order and at the page that the viewer has chosen."""
        self._columns, self._rows, self._names = columns, rows, columns.shown(rows)
        self._note.set_text(note + (STALENESS_NOTE if "staleness" in self._names else ""))
        self._table.columns = columns_of(self._names)
        if (slot := f"body-cell-{self._names[0]}") not in self._table.slots:
            self._table.add_slot(slot, _LINKED)
        self._update(self._table.pagination)

    def _requested(self, event: events.GenericEventArguments) -> None:
        self._update(event.args["pagination"])

    def _row_clicked(self, event: events.GenericEventArguments) -> None:
        page = next((row["page"] for row in self._table.rows if row["key"] == event.args[1]["key"]), "")
        if page:
            ui.navigate.to(page)

    def _count_again(self) -> None:
        """Set the number of rows, of which a browser that has just built the table sends back the first one."""
        self._table.pagination = {**self._table.pagination, "rowsNumber": len(self._rows)}

    def _update(self, wanted: dict[str, Any]) -> None:
        if self._columns is None:
            return
        size, n = min(int(wanted["rowsPerPage"]), 100), len(self._rows)
        page = max(min(int(wanted["page"]), -(-n // size)), 1)
        rows = self._rows
        if (by := wanted["sortBy"]) in self._names:
            rows = self._columns.in_order(rows, by, descending=bool(wanted["descending"]))
        shown = rows[(page - 1) * size : page * size]
        cells = [{name: self._columns.cells[name](row) for name in self._names} for row in shown]
        self._table.rows = [
            {"key": at, "page": self._page_of(row), **row_of(cells[at])} for at, row in enumerate(shown)
        ]
        self._table.pagination = {**wanted, "rowsPerPage": size, "page": page, "rowsNumber": n}
        self._table.update()


class GroupsTable:
    """The scores by group of samples, such as hospitals, once the run has ended; not shown where there are none."""

    def __init__(self) -> None:
        with card("Groups") as self._card:
            self._table = ui.table(rows=[], row_key="group", pagination=ROWS_A_PAGE).classes("w-full")
            self._table.props("flat dense")
            ui.label(GROUPS_NOTE).classes("text-caption")
        self._card.set_visibility(False)

    def show(self, info: RunInfo) -> None:
        """Show the scores of a run."""
        columns, rows = group_columns(info), group_rows(info)
        self._table.columns = columns_of(column.name for column in columns)
        self._table.rows = [
            row_of(
                {
                    c.name: text if c.words else Figure(value, text)
                    for c, value, text in zip(columns, row.values(), texts, strict=True)
                }
            )
            for row, *texts in zip(rows, *(column.cells for column in columns), strict=True)
        ]
        self._card.set_visibility(bool(rows))


class SumsTables:
    """The scores by group, and what each device and each edge did; a device's number leads to its visits.

    Args:
        run_id: the run.
    """

    def __init__(self, run_id: str) -> None:
        def dialog(device: Device) -> str:
            return f"/?run={run_id}&opened=seat+{device.number}" if device.is_client else ""

        self._groups = GroupsTable()
        self._devices, self._edges = SumsTable[Device]("Devices", dialog), SumsTable[Edge]("Edges")

    def show(self, run_view: RunView) -> None:
        """Show the sums of a run so far."""
        sums = run_view.sums
        self._groups.show(run_view.info)
        devices = devices_of(sums, run_view.seats)
        note = DEVICES_NOTE.format(label=run_view.info.headline.label)
        self._devices.show(device_columns(devices), devices, note)
        edges = [Edge(name, total, sums.by_edge.get(name)) for name, total in sorted(sums.edges.items())]
        self._edges.show(EDGE_COLUMNS, edges, EDGES_NOTE)
