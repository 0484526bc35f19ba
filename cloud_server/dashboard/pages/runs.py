"""The list of runs, and the page that compares several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import Query
from nicegui import ui

from cloud_server.dashboard.comparison_view import MOST_COMPARED, ComparisonView
from cloud_server.dashboard.layout import Dashboard, Page, notify_outcome, open_page
from cloud_server.dashboard.tables import Figure, columns_of, figure, named_score, row_of
from shared.core.formatting import size
from shared.run_records.runs import FINAL, RunInfo, RunPage, UnreadableRun

_COLUMNS = (
    "name",
    "algorithm",
    "owner",
    "status",
    "rounds",
    "score",
    "loss",
    "bytes up",
    "simulated time",
    "created (UTC)",
    "run",
)
_MAX_LISTED = 1000
"""The list shows at most this many of the newest runs."""


def register(dashboard: Dashboard) -> None:
    """Add the pages."""

    @ui.page("/runs")
    async def runs_page(selected: list[str] = Query(default=[]), text: str = "") -> None:  # noqa: B008
        async with open_page(dashboard, "Runs", "/runs") as page:
            View(dashboard, page, set(selected), text).build()

    @ui.page("/compare")
    async def compare_page(run: list[str] = Query(default=[])) -> None:  # noqa: B008
        async with open_page(dashboard, "Compare runs") as page:
            await ComparisonView(dashboard, page, run[:MOST_COMPARED]).build()


class View:
    """The list in one browser. Its address holds the filter and the selection, so that both survive going back.

    Args:
        dashboard: the data behind the page.
        page: the page.
        selected: ids of the runs that are selected at first.
        text: the filter at first.
    """

    def __init__(self, dashboard: Dashboard, page: Page, selected: set[str], text: str) -> None:
        self.dashboard, self.page = dashboard, page
        self.selected, self.text = selected, text
        self.runs: RunPage | None = None

    def build(self) -> None:
        """Create the page's elements; refreshing fills them."""
        ui.label("Runs").classes("text-h6").props("role=heading aria-level=1")
        with ui.row().classes("w-full items-center gap-2"):
            self.filter = ui.input("Filter", value=self.text, placeholder="name, algorithm, owner, status")
            self.filter.classes("grow").props("clearable dense").on_value_change(self._keep_in_address)
            ui.button("New run", icon="add", on_click=lambda: ui.navigate.to("/new")).props("unelevated")
            self.compare = ui.button("Compare", icon="stacked_line_chart", on_click=self._compare).props("outline")
            self.remove = ui.button("Remove", icon="delete", on_click=self._confirm_removal).props("outline")
        self.table = ui.table(
            columns=_columns(RunPage(runs=())), rows=[], row_key="run", selection="multiple", pagination=20
        )
        self.table.classes("w-full").props('flat bordered dense no-data-label="No runs yet"')
        self.table.bind_filter_from(self.filter, "value")
        self.table.add_slot(
            "body-cell-name",
            '<q-td :props="props"><a class="text-primary" :href="\'/ui/runs/\' + props.row.run">'
            "{{ props.row.name }}</a></q-td>",
        )
        box = '<q-checkbox v-model="props.selected" :aria-label="%s" />'
        self.table.add_slot("header-selection", box % "'Select all runs of this page'")
        self.table.add_slot("body-selection", box % "'Select ' + props.row.name")
        self.table.on_select(lambda _: self._selected())
        self._update_buttons()
        self.page.start_refreshing(self._refresh)

    async def _refresh(self) -> None:
        runs = await self.dashboard.cloud.runs.page(_MAX_LISTED)
        if runs != self.runs:
            self.runs = runs
            self.table.columns = _columns(runs)
            self.table.rows = [_row(info) for info in runs.runs] + [_unreadable_row(each) for each in runs.unreadable]
            self.table.selected = [row for row in self.table.rows if row["run"] in self.selected]
            self.table.update()
            self._update_buttons()

    def _selected(self) -> None:
        self.selected = {str(row["run"]) for row in self.table.selected}
        self._update_buttons()
        self._keep_in_address()

    def _keep_in_address(self) -> None:
        """Write filter and selection into the page's address, without a new entry of the browser's history."""
        words = [("selected", run) for run in sorted(self.selected)] + [("text", self.filter.value or "")]
        query = urlencode([(name, value) for name, value in words if value])
        ui.navigate.history.replace(f"runs?{query}" if query else "runs")  # relative to the page's own address

    def _update_buttons(self) -> None:
        n_selected = len(self.table.selected)
        self.compare.set_enabled(n_selected >= 2)
        self.remove.set_enabled(n_selected >= 1)

    def _compare(self) -> None:
        ui.navigate.to("/compare?" + "&".join(f"run={row['run']}" for row in self.table.selected))

    def _confirm_removal(self) -> None:
        run_ids, question = removal(self.runs or RunPage(runs=()), [row["run"] for row in self.table.selected])
        with ui.dialog(value=True).props('aria-label="Remove runs"') as dialog, ui.card():
            ui.label(question)
            with ui.row():
                remove = ui.button("Remove", on_click=lambda: self._remove(run_ids, dialog)).props("color=negative")
                remove.set_enabled(bool(run_ids))
                ui.button("Cancel", on_click=dialog.close).props("flat")

    async def _remove(self, run_ids: list[str], dialog: ui.dialog) -> None:
        dialog.close()
        for run_id in run_ids:
            with notify_outcome(f"{run_id} was removed."):
                await self.dashboard.requests(self.page).delete(run_id)
        self.table.selected.clear()
        self._selected()


def removal(listed: RunPage, selected: Sequence[str]) -> tuple[list[str], str]:
    """Which of the selected runs can be removed, since they have ended or cannot be read, and what a user is asked."""
    status = {info.run: info.status for info in listed.runs}
    removed = [run for run in selected if status.get(run, "stopped") in FINAL]
    stay = Counter(status[run] for run in selected if run not in removed)
    runs = f"{len(removed) or 'no'} finished {'run' if len(removed) == 1 else 'runs'}"
    question = f"Remove {runs} from this list? Result files are kept."
    if not stay:
        return removed, question
    kinds = ", ".join(f"{n} {word}" for word, n in sorted(stay.items()))
    return removed, f"{question} Selected runs that have not ended stay: {kinds}."


def _columns(listed: RunPage) -> list[dict[str, Any]]:
    """The columns of the list; owners are shown where a run is a user's."""
    has_owners = any(info.owner is not None for info in listed.runs)
    return columns_of(name for name in _COLUMNS if has_owners or name != "owner")


def _row(info: RunInfo) -> dict[str, Any]:
    cells = {
        "run": info.run,
        "name": info.name,
        "algorithm": info.algorithm,
        "owner": info.owner_name,
        "status": info.status + (f": {info.reason[:60]}" if info.reason else ""),
        "rounds": Figure(info.rounds, f"{info.rounds}/{info.num_rounds}"),
        "score": named_score(info.headline, info.score),
        "loss": figure(info.loss),
        "bytes up": Figure(info.bytes_up, size(info.bytes_up)),
        "simulated time": figure(info.simulated_s, "s"),
        "created (UTC)": info.created_at[:19].replace("T", " "),
    }
    return row_of(cells)


def _unreadable_row(each: UnreadableRun) -> dict[str, Any]:
    created = each.created_at[:19].replace("T", " ")
    status = f"unreadable: {each.reason}"[:200]
    return {
        **dict.fromkeys(_COLUMNS, ""),
        "run": each.run,
        "name": each.run,
        "status": status,
        "created (UTC)": created,
    }
