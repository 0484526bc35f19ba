"""All runs: find some, look at one, lay several beside each other."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Query
from nicegui import ui

from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, open_page, saying
from shared.core.errors import StrataError
from shared.core.formatting import scale
from shared.plots.curves import comparison
from shared.plots.picture import Lines
from shared.results.comparison import Comparison, compare
from shared.run_records.runs import FINAL, RunInfo

_COLUMNS = ("name", "algorithm", "status", "rounds", "accuracy", "loss", "bytes up", "simulated", "created", "run")
_LISTED = 1000


def register(dashboard: Dashboard) -> None:
    """Serve the pages."""

    @ui.page("/runs")
    async def page() -> None:
        async with open_page(dashboard, "Runs", "/runs") as on:
            View(dashboard, on).build()

    @ui.page("/compare")
    async def beside_page(run: list[str] = Query(default=[])) -> None:  # noqa: B008
        async with open_page(dashboard, "Compare runs") as on:
            await _compared(dashboard, on, run[:20])


class View:
    """The list in one browser."""

    def __init__(self, dashboard: Dashboard, on: Page) -> None:
        self.dashboard, self.on = dashboard, on
        self.infos: list[RunInfo] | None = None

    def build(self) -> None:
        """Lay the page out; it fills itself."""
        ui.label("Runs").classes("text-h6").props("role=heading aria-level=1")
        with ui.row().classes("w-full items-center gap-2"):
            self.words = (
                ui.input("Filter", placeholder="name, algorithm, status").classes("grow").props("clearable dense")
            )
            ui.button("New run", icon="add", on_click=lambda: ui.navigate.to("/new")).props("unelevated")
            self.compare = ui.button("Compare", icon="stacked_line_chart", on_click=self._compare).props("outline")
            self.delete = ui.button("Delete", icon="delete", on_click=self._ask_delete).props("outline")
        columns: list[dict[str, Any]] = [
            {"name": name, "label": name, "field": name, "align": "left", "sortable": True} for name in _COLUMNS
        ]
        self.table = ui.table(columns=columns, rows=[], row_key="run", selection="multiple", pagination=20)
        self.table.classes("w-full").props('flat bordered dense no-data-label="No run yet"')
        self.table.bind_filter_from(self.words, "value")
        self.table.add_slot(
            "body-cell-name",
            '<q-td :props="props"><a class="text-primary" :href="\'/ui/runs/\' + props.row.run">'
            "{{ props.row.name }}</a></q-td>",
        )
        self.table.on_select(lambda _: self._selected())
        self._selected()
        self.on.keep_up(self._refresh)

    async def _refresh(self) -> None:
        infos = await self.dashboard.cloud.repository.infos(_LISTED)
        if infos != self.infos:
            self.infos = infos
            self.table.rows = [_row(info) for info in infos]
            self.table.update()

    def _selected(self) -> None:
        chosen = len(self.table.selected)
        self.compare.set_enabled(chosen >= 2)
        self.delete.set_enabled(chosen >= 1)

    def _compare(self) -> None:
        ui.navigate.to("/compare?" + "&".join(f"run={row['run']}" for row in self.table.selected))

    def _ask_delete(self) -> None:
        chosen = [row["run"] for row in self.table.selected]
        with ui.dialog(value=True) as dialog, ui.card():
            ui.label(f"Forget {len(chosen)} runs that have ended? Their results folders stay.")
            with ui.row():
                ui.button("Delete", on_click=lambda: self._delete(chosen, dialog)).props("color=negative")
                ui.button("Keep", on_click=dialog.close).props("flat")

    async def _delete(self, chosen: list[str], dialog: ui.dialog) -> None:
        dialog.close()
        for run_id in chosen:
            with saying(f"{run_id} is forgotten."):
                await self.dashboard.cloud.runs.delete(run_id)
        self.table.selected.clear()
        self._selected()


def _row(info: RunInfo) -> dict[str, Any]:
    worth, unit = scale("bytes", info.bytes_up)
    return {
        "run": info.run,
        "name": info.name,
        "algorithm": info.algorithm,
        "status": info.status + (f": {info.reason[:60]}" if info.reason else ""),
        "rounds": f"{info.rounds}/{info.num_rounds}",
        "accuracy": "" if info.accuracy is None else f"{info.accuracy:.2%}",
        "loss": "" if info.loss is None else f"{info.loss:.4g}",
        "bytes up": f"{info.bytes_up / worth:.3g} {unit}",
        "simulated": f"{info.simulated_s:.4g} s",
        "created": info.created_at[:19].replace("T", " "),
    }


async def _compared(dashboard: Dashboard, on: Page, run_ids: list[str]) -> None:
    """Runs side by side, from their results folders as `strata compare` has them."""
    ui.label("Compare runs").classes("text-h6").props("role=heading aria-level=1")
    if len(run_ids) < 2:
        ui.label("Select two or more in the list of runs.").classes("text-italic")
        ui.link("Runs", "/runs")
        return
    body = ui.column().classes("w-full items-stretch")
    shown: list[list[RunInfo]] = []

    async def refresh() -> None:
        infos = [await dashboard.cloud.repository.info(run_id) for run_id in run_ids]
        if shown and shown[-1] == infos:
            return
        folders = [dashboard.cloud.results.folder(info.run) for info in infos]
        found = await asyncio.to_thread(compare, folders)
        shown[:] = [infos] if all(info.status in FINAL for info in infos) else [*shown[-1:], infos][-1:]
        body.clear()
        with body:
            _beside(found, on)

    try:
        await refresh()
    except StrataError as error:
        ui.label(error.detail).props("role=alert")
        return
    on.keep_up(refresh, every_s=3.0)


def _beside(found: Comparison, on: Page) -> None:
    for remark in found.remarks:
        ui.label(remark).classes("text-caption")
    differs = list(dict.fromkeys(key for curve in found.curves for key in curve.differs))
    rows = [
        {
            "run": curve.label,
            **{key: str(curve.differs.get(key, "")) for key in differs},
            "accuracy": "" if curve.accuracy is None else f"{curve.accuracy:.2%}",
            "rounds": curve.info.rounds,
            "simulated": f"{curve.info.simulated_s:.4g} s",
            "MB up": f"{curve.info.bytes_up / 1e6:.4g}",
            "to the target": _reached(curve.reached(found.target)),
        }
        for curve in found.curves
    ]
    columns = [{"name": name, "label": name, "field": name, "align": "left", "sortable": True} for name in rows[0]]
    ui.table(columns=columns, rows=rows, row_key="run").props("flat bordered dense").classes("w-full")
    picture = comparison(found.curves, found.target)
    if picture is None:
        return
    for shown in picture.panels:
        title = f"Accuracy by {shown.x.label}" if isinstance(shown, Lines) else "Clients at the end"
        with card(title):
            Panel(on.look, titled=False).show(picture.replace(panels=(shown,)))


def _reached(point: Any) -> str:
    return (
        f"round {point.round_no}, {point.simulated_s:.4g} s, {point.bytes_up / 1e6:.4g} MB" if point else "not reached"
    )
