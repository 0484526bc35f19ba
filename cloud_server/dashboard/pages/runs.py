"""The list of runs, and the page that compares several."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Query
from nicegui import ui

from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, notify_outcome, open_page
from cloud_server.dashboard.tables import Figure, as_title, columns_of, figure, named_score, row_of, score
from shared.core.errors import StrataError
from shared.core.formatting import scale
from shared.plots.curves import comparison
from shared.plots.picture import Lines
from shared.results.comparison import Comparison, Point, compare
from shared.run_records.runs import RunInfo, RunPage, UnreadableRun

_COLUMNS = ("name", "algorithm", "status", "rounds", "score", "loss", "bytes up", "simulated time", "created", "run")
_MAX_LISTED = 1000
"""The list shows at most this many of the newest runs."""


def register(dashboard: Dashboard) -> None:
    """Add the pages."""

    @ui.page("/runs")
    async def runs_page() -> None:
        async with open_page(dashboard, "Runs", "/runs") as page:
            View(dashboard, page).build()

    @ui.page("/compare")
    async def compare_page(run: list[str] = Query(default=[])) -> None:  # noqa: B008
        async with open_page(dashboard, "Compare runs") as page:
            await _build_comparison(dashboard, page, run[:20])


class View:
    """The list in one browser."""

    def __init__(self, dashboard: Dashboard, page: Page) -> None:
        self.dashboard, self.page = dashboard, page
        self.runs: RunPage | None = None

    def build(self) -> None:
        """Create the page's elements; refreshing fills them."""
        ui.label("Runs").classes("text-h6").props("role=heading aria-level=1")
        with ui.row().classes("w-full items-center gap-2"):
            self.filter = (
                ui.input("Filter", placeholder="name, algorithm, status").classes("grow").props("clearable dense")
            )
            ui.button("New run", icon="add", on_click=lambda: ui.navigate.to("/new")).props("unelevated")
            self.compare = ui.button("Compare", icon="stacked_line_chart", on_click=self._compare).props("outline")
            self.remove = ui.button("Remove", icon="delete", on_click=self._confirm_removal).props("outline")
        self.table = ui.table(columns=columns_of(_COLUMNS), rows=[], row_key="run", selection="multiple", pagination=20)
        self.table.classes("w-full").props('flat bordered dense no-data-label="No runs yet"')
        self.table.bind_filter_from(self.filter, "value")
        self.table.add_slot(
            "body-cell-name",
            '<q-td :props="props"><a class="text-primary" :href="\'/ui/runs/\' + props.row.run">'
            "{{ props.row.name }}</a></q-td>",
        )
        self.table.on_select(lambda _: self._update_buttons())
        self._update_buttons()
        self.page.start_refreshing(self._refresh)

    async def _refresh(self) -> None:
        runs = await self.dashboard.cloud.runs.page(_MAX_LISTED)
        if runs != self.runs:
            self.runs = runs
            self.table.rows = [_row(info) for info in runs.runs] + [_unreadable_row(each) for each in runs.unreadable]
            self.table.update()

    def _update_buttons(self) -> None:
        n_selected = len(self.table.selected)
        self.compare.set_enabled(n_selected >= 2)
        self.remove.set_enabled(n_selected >= 1)

    def _compare(self) -> None:
        ui.navigate.to("/compare?" + "&".join(f"run={row['run']}" for row in self.table.selected))

    def _confirm_removal(self) -> None:
        run_ids = [row["run"] for row in self.table.selected]
        with ui.dialog(value=True) as dialog, ui.card():
            runs = "1 finished run" if len(run_ids) == 1 else f"{len(run_ids)} finished runs"
            ui.label(f"Remove {runs} from this list? Result files are kept.")
            with ui.row():
                ui.button("Remove", on_click=lambda: self._remove(run_ids, dialog)).props("color=negative")
                ui.button("Cancel", on_click=dialog.close).props("flat")

    async def _remove(self, run_ids: list[str], dialog: ui.dialog) -> None:
        dialog.close()
        for run_id in run_ids:
            with notify_outcome(f"{run_id} was removed."):
                await self.dashboard.cloud.runs.delete(run_id)
        self.table.selected.clear()
        self._update_buttons()


def _row(info: RunInfo) -> dict[str, Any]:
    divisor, unit = scale("bytes", info.bytes_up)
    cells = {
        "run": info.run,
        "name": info.name,
        "algorithm": info.algorithm,
        "status": info.status + (f": {info.reason[:60]}" if info.reason else ""),
        "rounds": Figure(info.rounds, f"{info.rounds}/{info.num_rounds}"),
        "score": named_score(info.headline, info.score),
        "loss": figure(info.loss),
        "bytes up": Figure(info.bytes_up, f"{info.bytes_up / divisor:.3g} {unit}"),
        "simulated time": figure(info.simulated_s, "s"),
        "created": info.created_at[:19].replace("T", " "),
    }
    return row_of(cells)


def _unreadable_row(each: UnreadableRun) -> dict[str, Any]:
    created = each.created_at[:19].replace("T", " ")
    status = f"unreadable: {each.reason}"[:200]
    return {**dict.fromkeys(_COLUMNS, ""), "run": each.run, "name": each.run, "status": status, "created": created}


async def _build_comparison(dashboard: Dashboard, page: Page, run_ids: list[str]) -> None:
    """Compare runs from their results folders, as `strata compare` does."""
    ui.label("Compare runs").classes("text-h6").props("role=heading aria-level=1")
    if len(run_ids) < 2:
        ui.label("Select two or more runs in the list.").classes("text-italic")
        ui.link("All runs", "/runs")
        return
    body = ui.column().classes("w-full items-stretch")
    shown: list[list[RunInfo]] = []

    async def refresh() -> None:
        infos = [await dashboard.cloud.repository.info(run_id) for run_id in run_ids]
        if shown == [infos]:
            return
        folders = [dashboard.cloud.results.folder(info.run) for info in infos]
        compared = await asyncio.to_thread(compare, folders)
        shown[:] = [infos]
        body.clear()
        with body:
            _show_comparison(compared, page)

    try:
        await refresh()
    except StrataError as error:
        ui.label(error.detail).props("role=alert")
        return
    page.start_refreshing(refresh, every_s=3.0)


def _show_comparison(compared: Comparison, page: Page) -> None:
    for remark in compared.remarks:
        ui.label(remark).classes("text-caption")
    target = compared.metric.text(compared.target)
    differs = list(dict.fromkeys(key for curve in compared.curves for key in curve.differs))
    rows: list[dict[str, Any]] = [
        {
            "run": curve.label,
            **{key: str(curve.differs.get(key, "")) for key in differs},
            compared.metric.label: score(compared.metric, curve.value),
            "worst decile": score(compared.metric, curve.clients.worst_decile if curve.clients else None),
            "rounds": curve.info.rounds,
            "simulated time": figure(curve.info.simulated_s, "s"),
            "MB up": figure(curve.info.bytes_up / 1e6),
            f"to reach {target}": _reached(curve.reached(compared.target)),
        }
        for curve in compared.curves
    ]
    ui.table(columns=columns_of(rows[0]), rows=[row_of(row) for row in rows], row_key="run").props(
        "flat bordered dense"
    ).classes("w-full")
    picture = comparison(compared.curves, compared.target)
    if picture is None:
        return
    for shown in picture.panels:
        title = (
            f"{as_title(compared.metric.label)} by {shown.x.label}"
            if isinstance(shown, Lines)
            else "Clients after the last round"
        )
        with card(title):
            Panel(page, titled=False).show(picture.replace(panels=(shown,)))


def _reached(point: Point | None) -> Figure:
    if point is None:
        return Figure(None, "not reached")
    text = f"round {point.round_no}, {point.simulated_s:.4g} s, {point.bytes_up / 1e6:.4g} MB up"
    return Figure(point.round_no, text)
