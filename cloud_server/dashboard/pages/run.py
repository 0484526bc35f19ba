"""One run: steer it, and see what it does."""

from __future__ import annotations

from functools import partial
from typing import cast

import yaml
from nicegui import ui

from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, facts, open_page, saying
from cloud_server.dashboard.run_views import RunView
from shared.core.errors import NotFound
from shared.core.formatting import scale
from shared.plots.curves import By, accuracy, bytes_on_links, clients
from shared.plots.partition import partition
from shared.plots.timeline import timeline
from shared.results.folder import file_names
from shared.results.reader import own_pictures
from shared.results.tracking.progress import tracked_lines
from shared.run_records.rounds import RoundDetail, RoundInfo
from shared.run_records.runs import FINAL, RunInfo

_BY = {"round": "by round", "time": "by simulated time", "bytes": "by bytes"}
_CAN = {
    "pause": ("pending", "starting", "running"),
    "resume": ("paused", "stopped", "failed"),
    "stop": ("pending", "starting", "running", "pausing", "paused"),
}


def register(dashboard: Dashboard) -> None:
    """Serve the page."""

    @ui.page("/runs/{run_id}")
    async def page(run_id: str) -> None:
        async with open_page(dashboard, "Run") as on:
            try:
                watched = await on.wait_for(lambda: dashboard.run_views.seated(run_id[:300]))
            except NotFound as error:
                ui.label(error.detail).props("role=alert")
                ui.link("All runs", "/runs")
                return
            View(dashboard, on, watched).build()


class View:
    """The page in one browser."""

    def __init__(self, dashboard: Dashboard, on: Page, watched: RunView) -> None:
        self.dashboard, self.on, self.run_id = dashboard, on, watched.info.run
        self.by: By = "round"
        self.watched = watched
        self.info: RunInfo | None = None
        self.n_told = -1
        self.own: dict[str, Panel] = {}
        self.detail: RoundDetail | None = None
        self.follows = True

    # ---- layout

    def build(self) -> None:
        """Lay the page out; it fills itself."""
        self._head()
        look = self.on.look
        with ui.element("div").classes("wide w-full"):
            with card("Accuracy and loss"):
                ui.toggle(_BY, value="round", on_change=lambda event: self._measure(event.value)).props("dense no-caps")
                self.accuracy = Panel(look, titled=False)
            with card("Clients, each on its own test set"):
                self.clients = Panel(look, titled=False)
        with card("Timeline of a round"):
            with ui.row().classes("items-center w-full no-wrap"):
                self.which = ui.slider(min=1, max=1, value=1, on_change=self._moved).classes("grow")
                self.which.props('label aria-label="Round"')
                self.which_words = ui.label().style("white-space: nowrap")
            self.timeline = Panel(look, titled=False)
        with ui.element("div").classes("wide w-full"):
            with card("Bytes on links"):
                self.bytes = Panel(look, titled=False)
            with card("Samples of each class by seat"):
                self.partition = Panel(look, titled=False)
        self.own_box = ui.element("div").classes("wide w-full")
        with card("Rounds"):
            columns = [
                {"name": name, "label": name, "field": name, "align": "left", "sortable": True}
                for name in (
                    "round",
                    "phase",
                    "visits",
                    "used",
                    "lost",
                    "accuracy",
                    "train loss",
                    "bytes",
                    "simulated s",
                )
            ]
            self.table = ui.table(columns=columns, rows=[], row_key="round", pagination=10).classes("w-full")
            self.table.props("flat dense")
        with ui.expansion("Spec", icon="description").classes("w-full"):
            self.spec = ui.code("", language="yaml").classes("w-full")
        self.on.keep_up(self._refresh)

    def _head(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            self.title = ui.label().classes("text-h6").props("role=heading aria-level=1")
            self.status = ui.badge().props("role=status")
            ui.space()
            self.buttons = {wish: self._button(wish) for wish in ("pause", "resume", "stop")}
            self.more = ui.number("more rounds", value=5, min=1, max=100_000, step=1, format="%d").classes("w-24")
            ui.button("Add", icon="add", on_click=self._more).props("outline")
        self.reason = ui.label().classes("text-body2")
        self.tracking = ui.label().classes("text-body2")
        self.progress = ui.linear_progress(0, show_value=False).props('instant-feedback aria-label="Rounds done"')
        self.facts = ui.element("div").classes("w-full")
        with ui.row():
            ui.link("Topology", "/")
            ui.button("Results as files", icon="folder_open", on_click=self._files).props("flat dense no-caps")

    def _button(self, wish: str) -> ui.button:
        icons = {"pause": "pause", "resume": "play_arrow", "stop": "stop"}

        async def ask() -> None:
            runner = self.dashboard.cloud.runs
            asked = {"pause": runner.pause, "resume": runner.resume, "stop": runner.stop_run}[wish]
            with saying():
                await asked(self.run_id)
                await self._refresh()

        return ui.button(wish.capitalize(), icon=icons[wish], on_click=ask).props("outline")

    # ---- what people do

    async def _more(self) -> None:
        with saying(f"{int(self.more.value or 1)} rounds more."):
            await self.dashboard.cloud.runs.more(self.run_id, int(self.more.value or 1))
            await self._refresh()

    def _files(self) -> None:
        """What lies in the run's results folder, to be taken away."""
        folder = self.dashboard.cloud.results.folder(self.run_id)
        names = file_names(folder) if folder.is_dir() else []
        with ui.dialog(value=True) as dialog, ui.card():
            ui.label("Results as files" if names else "Nothing has been written yet.").classes("text-h6")
            for name in names:
                ui.button(name, icon="download", on_click=partial(ui.download.file, folder / name)).props(
                    "flat no-caps"
                )
            ui.button("Close", on_click=dialog.close).props("flat")
        dialog.on("hide", dialog.delete)

    def _measure(self, by: str) -> None:
        self.by = cast("By", by)
        self.accuracy.show(accuracy(self.watched.told, self.by), "Nothing has been evaluated yet.")

    async def _moved(self) -> None:
        """Look at another round; at the last one, follow."""
        trained = self.watched.newest.round_no if self.watched.newest else 0
        self.follows = int(self.which.value) >= trained
        await self._show_timeline()

    # ---- keeping up

    async def _refresh(self) -> None:
        watched = self.watched = await self.dashboard.run_views.run(self.run_id)
        told_to = tracked_lines(self.dashboard.cloud.results.folder(self.run_id), watched.info.tracking)
        self.tracking.set_text("; ".join(told_to))
        if watched.info != self.info:
            if not watched.seats or (self.info and self.info.status != watched.info.status):
                await self.dashboard.run_views.seated(self.run_id)
            self._show_info(watched)
        told = len(watched.rounds) + sum(row.evaluation is not None for row in watched.rounds)
        if told != self.n_told:
            self.n_told = told
            await self._show_rounds(watched)
        self.partition.show(partition(watched.seats, ""), "Dealt when the run starts.")

    def _show_info(self, watched: RunView) -> None:
        info = self.info = watched.info
        accuracy, loss = _headline(watched)
        self.title.set_text(f"{info.name} ({info.algorithm})")
        self.status.set_text(info.status)
        self.status.props(f"color={_colour(info.status)}")
        self.reason.set_text(info.reason or "")
        self.progress.set_value(info.rounds / max(info.num_rounds, 1))
        for wish, button in self.buttons.items():
            button.set_enabled(info.status in _CAN[wish])
        up, unit = scale("bytes", info.bytes_up + info.bytes_down)
        self.facts.clear()
        with self.facts:
            facts(
                {
                    "round": f"{info.rounds} of {info.num_rounds}",
                    f"accuracy, {info.accuracy_of}": "-" if accuracy is None else f"{accuracy:.2%}",
                    "loss": "-" if loss is None else f"{loss:.4g}",
                    "bytes on links": f"{(info.bytes_up + info.bytes_down) / up:.4g} {unit}",
                    "simulated": f"{info.simulated_s:.4g} s",
                    "wall": f"{info.wall_s:.4g} s",
                    "model": (info.model_sha256 or "-")[:12],
                }
            )
        self.spec.set_content(_yaml(info))

    async def _show_rounds(self, watched: RunView) -> None:
        told = watched.told
        self.accuracy.show(accuracy(told, self.by), "Nothing has been evaluated yet.")
        self.clients.show(clients(told), "No client has been tested yet.")
        self.bytes.show(bytes_on_links(told))
        for picture in own_pictures(watched.told):
            if picture.name not in self.own:
                with self.own_box, card(picture.title):
                    self.own[picture.name] = Panel(self.on.look, titled=False)
            self.own[picture.name].show(picture)
        self.table.rows = [_row(row) for row in reversed(told.trained)]
        self.table.update()
        trained = watched.newest.round_no if watched.newest else 1
        self.which.props(f"max={max(trained, 1)}")
        if self.follows:
            self.which.set_value(trained)
        await self._show_timeline()

    async def _show_timeline(self) -> None:
        newest, number = self.watched.newest, int(self.which.value)
        if newest is None:
            self.timeline.show(None, "No round has been committed yet.")
            return
        if self.detail is None or self.detail.round_no != number:
            known = newest.round_no == number
            self.detail = newest if known else await self.dashboard.cloud.repository.round(self.run_id, number)
        self.which_words.set_text(f"round {number}, {self.detail.simulated_s:.4g} s")
        self.timeline.show(timeline(self.detail, f"Round {number}"), "No visit of this round took time.")


def _row(info: RoundInfo) -> dict[str, object]:
    score = (info.evaluation or {}).get("global")
    worth, unit = scale("bytes", info.bytes_up + info.bytes_down)
    return {
        "round": info.round_no,
        "phase": info.phase,
        "visits": info.n_visits,
        "used": info.n_used,
        "lost": len(info.failures),
        "accuracy": f"{score.accuracy:.2%}" if score and score.accuracy is not None else "",
        "train loss": "" if info.train_loss is None else f"{info.train_loss:.4g}",
        "bytes": f"{(info.bytes_up + info.bytes_down) / worth:.3g} {unit}",
        "simulated s": f"{info.simulated_s:.4g}",
    }


def _yaml(info: RunInfo) -> str:
    return yaml.safe_dump(info.spec.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def _colour(status: str) -> str:
    return {"completed": "positive", "failed": "negative"}.get(status, "grey" if status in FINAL else "primary")


def _headline(watched: RunView) -> tuple[float | None, float | None]:
    """Accuracy and loss: while a run goes on, those of the newest evaluation of the global model."""
    info = watched.info
    scores = [score for row in watched.rounds if row.evaluation and (score := row.evaluation.get("global"))]
    if info.accuracy is not None or info.status in FINAL or not scores:
        return info.accuracy, info.loss
    return scores[-1].accuracy, scores[-1].loss
