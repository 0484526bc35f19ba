"""The page that compares runs: their figures, the parameters that differ, and curves over a measure of choice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nicegui import ui

from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, measure_switch
from cloud_server.dashboard.tables import Figure, as_title, columns_of, figure, row_of, score
from shared.core.errors import StrataError
from shared.core.formatting import scale
from shared.plots.curves import By, comparison
from shared.plots.picture import Lines
from shared.results.comparison import Comparison, LearningCurve, Point, compare
from shared.results.spec_differences import flat, text
from shared.run_records.runs import RunInfo

MOST_COMPARED = 20
"""Runs that are compared at most."""


class ComparisonView:
    """The page in one browser. It compares results folders, as `strata compare` does.

    Args:
        dashboard: the data behind the page.
        page: the page.
        run_ids: the runs, at most `MOST_COMPARED`.
    """

    def __init__(self, dashboard: Dashboard, page: Page, run_ids: Sequence[str]) -> None:
        self.dashboard, self.page, self.run_ids = dashboard, page, run_ids
        self.by: By = "round"
        self.chosen: str | None = None
        self.wanted: float | None = None  # the value to reach, by choice
        self.compared: Comparison | None = None
        self.compared_for: tuple[list[RunInfo], float | None, str | None] | None = None
        self.comparing = asyncio.Lock()

    async def build(self) -> None:
        """Create the page's elements."""
        ui.label("Compare runs").classes("text-h6").props("role=heading aria-level=1")
        if len(self.run_ids) < 2:
            ui.label("Select two or more runs in the list.").classes("text-italic")
            ui.link("All runs", "/runs")
            return
        try:
            await self._compare()
        except StrataError as error:
            ui.label(error.detail).props("role=alert")
            return
        with ui.row().classes("w-full items-center"):
            measure_switch(self._choose_measure)
            self.metric = ui.select([], label="Metric", on_change=lambda event: self._choose_metric(event.value))
            self.metric.props("dense options-dense").style("min-width: 9rem")
            self.target = ui.number(on_change=lambda event: self._choose_target(event.value))
            self.target.props('dense clearable debounce=400 hint="Empty: the best that all reach"')
            self.target.style("width: 13rem")
        self.figures = ui.column().classes("w-full items-stretch")
        with card("") as self.curves_box:
            self.title = ui.label().classes("text-subtitle1 text-bold").props("role=heading aria-level=2")
            self.curves = Panel(self.page, titled=False)
        with card("Clients after the last round") as self.clients_box:
            self.clients = Panel(self.page, titled=False)
        self.parameters = ui.column().classes("w-full items-stretch")
        self._show()
        self.page.start_refreshing(self._refresh, every_s=3.0)

    def _choose_measure(self, by: By) -> None:
        self.by = by
        self._show_curves()

    async def _choose_metric(self, label: str) -> None:
        if label != self.chosen:
            self.chosen, self.wanted = label, None
            self.target.set_value(None)
            await self._refresh()

    async def _choose_target(self, value: float | None) -> None:
        of_share = self.compared is not None and self.compared.metric.unit == "share"
        is_wrong = value is not None and of_share and not 0 <= value <= 100
        self.target.error = "from 0 to 100 %" if is_wrong else None
        wanted = value / 100 if value is not None and of_share else value
        if not is_wrong and wanted != self.wanted:
            self.wanted = wanted
            await self._refresh()

    async def _refresh(self) -> None:
        if await self._compare():
            self._show()

    async def _compare(self) -> bool:
        """Compare the runs anew; returns whether anything has changed."""
        async with self.comparing:  # the viewer may choose anew while a comparison is under way
            infos = [await self.dashboard.cloud.repository.info(run_id) for run_id in self.run_ids]
            wanted, chosen = self.wanted, self.chosen
            if self.compared_for == (infos, wanted, chosen):
                return False
            folders = [self.dashboard.cloud.results.folder(info.run) for info in infos]
            self.compared = await asyncio.to_thread(compare, folders, wanted, chosen)
            label = self.compared.metric.label
            self.chosen, self.compared_for = self.chosen or label, (infos, wanted, chosen or label)
            return True

    def _show(self) -> None:
        compared = self.compared
        if compared is None:
            return
        labels = list(dict.fromkeys(metric.label for curve in compared.curves for metric in curve.info.metrics))
        if self.metric.options != labels:
            self.metric.set_options(labels, value=compared.metric.label)
        unit = ", %" if compared.metric.unit == "share" else ""
        self.target.set_label(f"{as_title(compared.metric.label)} to reach{unit}")
        self._show_curves()
        for box, show in ((self.figures, _show_figures), (self.parameters, _show_parameters)):
            box.clear()
            with box:
                show(compared)

    def _show_curves(self) -> None:
        compared = self.compared
        if compared is None:
            return
        picture = comparison(compared.curves, compared.target, (self.by,))
        panels = picture.panels if picture else ()
        for box, panel, of_curves in ((self.curves_box, self.curves, True), (self.clients_box, self.clients, False)):
            shown = tuple(each for each in panels if isinstance(each, Lines) is of_curves)
            box.set_visibility(bool(shown))
            if picture is not None and shown:
                panel.show(picture.replace(panels=shown))
                if isinstance(shown[0], Lines):
                    self.title.set_text(f"{as_title(compared.metric.label)} by {shown[0].x.label}")


def _show_figures(compared: Comparison) -> None:
    """The figures of all runs, and what keeps them from being comparable."""
    for remark in compared.remarks:
        ui.label(remark).classes("text-caption")
    with card("Figures"):
        _table([_figures(compared, curve) for curve in compared.curves])


def _show_parameters(compared: Comparison) -> None:
    """The parameters that differ; those that do not are folded in."""
    differs = list(dict.fromkeys(key for curve in compared.curves for key in curve.differs))
    if differs:
        with card("Parameters that differ"):
            _table(
                [
                    {"run": curve.label} | {key: text(curve.differs.get(key)) for key in differs}
                    for curve in compared.curves
                ]
            )
    same = {key: value for key, value in flat(compared.curves[0].info.spec).items() if key not in differs}
    with ui.expansion("Parameters that all runs share", icon="tune").classes("w-full"):
        _table([{"parameter": key, "value": text(value)} for key, value in same.items()])


def _table(rows: list[dict[str, Any]]) -> None:
    first = next(iter(rows[0])) if rows else "run"
    table = ui.table(columns=columns_of(rows[0] if rows else ()), rows=[row_of(row) for row in rows], row_key=first)
    table.props("flat bordered dense").classes("w-full")


def _figures(compared: Comparison, curve: LearningCurve) -> dict[str, Any]:
    divisor, unit = scale("bytes", curve.info.bytes_up)
    return {
        "run": curve.label,
        compared.metric.label: score(compared.metric, curve.value),
        "worst decile": score(compared.metric, curve.clients.worst_decile if curve.clients else None),
        f"to reach {compared.metric.text(compared.target)}": _reached(curve.reached(compared.target)),
        "rounds": curve.info.rounds,
        "simulated time": figure(curve.info.simulated_s, "s"),
        "wall-clock time": figure(curve.info.wall_s, "s"),
        "bytes up": Figure(curve.info.bytes_up, f"{curve.info.bytes_up / divisor:.4g} {unit}"),
    }


def _reached(point: Point | None) -> Figure:
    if point is None:
        return Figure(None, "not reached")
    found = f"round {point.round_no}, {point.simulated_s:.4g} s, {point.bytes_up / 1e6:.4g} MB up"
    return Figure(point.round_no, found)
