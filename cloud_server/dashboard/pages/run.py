"""The page of one run: its controls, charts and rounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import yaml
from nicegui import ui
from nicegui.events import GenericEventArguments

from cloud_server.dashboard.forms import whole_number
from cloud_server.dashboard.layout import Dashboard, Page, Panel, card, facts, measure_switch, notify_outcome, open_page
from cloud_server.dashboard.round_rows import VisitCounts, round_table
from cloud_server.dashboard.round_timeline import TimelineCard
from cloud_server.dashboard.run_downloads import Downloads
from cloud_server.dashboard.run_events import RunEvents
from cloud_server.dashboard.run_views import RunView
from cloud_server.dashboard.sums_tables import SumsTables
from cloud_server.dashboard.tables import columns_of
from cloud_server.runs.provenance import ProvenanceChanged
from cloud_server.runs.user_requests import UserRequests
from shared.core.errors import StrataError
from shared.core.formatting import scale
from shared.plots.classes import classes
from shared.plots.curves import By, bytes_on_links, clients, placed, scores
from shared.plots.partition import partition
from shared.results.reader import own_pictures
from shared.results.text_tables import spread_text
from shared.results.tracking.tracker_notes import tracked_lines
from shared.run_records.metrics import MODELS
from shared.run_records.runs import FINAL, RunInfo

_ROUND_CELL = (
    '<q-td :props="props"><button class="in-row" :id="`show-${props.row.round}`" :aria-pressed="props.row.is_shown"'
    ' :aria-label="`Show round ${props.row.round}`">{{ props.row.round }}</button></q-td>'
)
"""A button for the keyboard; what answers to a click is the row around it."""
_AS_WRITTEN = "white-space: pre-wrap; overflow-wrap: anywhere; font-family: monospace"
_ALLOWED_STATUSES = {
    "pause": ("pending", "starting", "running"),
    "resume": ("paused", "stopped", "failed"),
    "stop": ("pending", "starting", "running", "pausing", "paused"),
}


def register(dashboard: Dashboard) -> None:
    """Add the page."""

    @ui.page("/runs/{run_id}")
    async def run_page(run_id: str) -> None:
        async with open_page(dashboard, "Run") as page:
            try:
                run_view = await page.wait_for(lambda: dashboard.run_views.with_seats(run_id[:300]))
            except StrataError as error:
                ui.label("Run").classes("text-h6").props("role=heading aria-level=1")
                ui.label(error.detail).props("role=alert")
                ui.link("All runs", "/runs")
                return
            ui.page_title(f"{run_view.info.name} · StrataFL")
            View(dashboard, page, run_view).build()


class View:
    """The page in one browser."""

    def __init__(self, dashboard: Dashboard, page: Page, run_view: RunView) -> None:
        self.dashboard, self.page, self.run_id = dashboard, page, run_view.info.run
        self.by: By = "round"
        self.run_view = run_view
        self.info: RunInfo | None = None
        self.n_results = -1
        self.summed: tuple[int | None, int | None, int] | None = None
        self.further_panels: dict[str, Panel] = {}
        self.counts = VisitCounts()

    # ---- layout

    def build(self) -> None:
        """Create the page's elements; refreshing fills them."""
        self._build_header()
        page = self.page
        with ui.row().classes("w-full items-center"):
            measure_switch(self._choose_measure)
            self.metric = ui.select([], label="Metric", on_change=self._show_curves)
            self.metric.props("dense options-dense").style("min-width: 9rem")
        with ui.element("div").classes("wide w-full"):
            with card("Scores and loss"):
                self.scores = Panel(page, titled=False)
            with ui.element("div").classes("stack"):
                with card("Clients, each on its own test set"):
                    self.clients = Panel(page, titled=False)
                with card("Bytes on links"):
                    self.bytes = Panel(page, titled=False)
        with card("Timeline of a round"):
            self.timeline = TimelineCard(page, self.dashboard.cloud.repository, self.run_view, self._mark_round)
        with card("Samples per class of each device"):
            self.partition = Panel(page, titled=False)
        self.further_box = ui.element("div").classes("wide w-full")
        with card("Rounds"):
            ui.label("A row shows its round in the timeline.").classes("text-caption")
            self.table = ui.table(rows=[], row_key="round", pagination=10).classes("w-full").props("flat dense")
            self.table.add_slot("body-cell-round", _ROUND_CELL)
            self.table.on("rowClick", self._row_clicked, [[], ["round"], []])
        self.sums = SumsTables(self.run_id)
        self.events = RunEvents(self.dashboard.cloud.repository, self.run_id)
        with ui.expansion("Plan", icon="fact_check").classes("w-full"):
            self.plan = ui.label().classes("w-full").style(_AS_WRITTEN)
        with ui.expansion("Spec", icon="description").classes("w-full"):
            self.spec = ui.label().classes("w-full").style(_AS_WRITTEN)
        self.page.start_refreshing(self._refresh)

    def _build_header(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            self.title = ui.label().classes("text-h6").props("role=heading aria-level=1")
            self.status = ui.badge().props("role=status")
            ui.space()
            self.buttons = {action: self._button(action) for action in ("pause", "resume", "stop")}
            self.n_more = ui.number("More rounds", value=5, step=1).classes("w-24")
            self.add = ui.button("Add", icon="add", on_click=self._add_rounds).props("outline")
        self.reason = ui.label().classes("text-body2")
        self.tracking = ui.label().classes("text-body2")
        self.progress = ui.linear_progress(0, show_value=False).props('instant-feedback aria-label="Completed rounds"')
        self.facts = ui.element("div").classes("w-full")
        with ui.row().classes("items-center"):
            ui.link("Topology", f"/?run={self.run_id}")
            Downloads(self.dashboard.cloud.results.folder(self.run_id))

    def _button(self, action: str) -> ui.button:
        icons = {"pause": "pause", "resume": "play_arrow", "stop": "stop"}

        async def request() -> None:
            if action == "resume":
                return await self._go_on(lambda requests, accept: requests.resume(self.run_id, accept))
            with notify_outcome():
                requests = self.dashboard.requests(self.page)
                await (requests.pause if action == "pause" else requests.stop_run)(self.run_id)
                await self._refresh()

        return ui.button(action.capitalize(), icon=icons[action], on_click=request).props("outline")

    # ---- user actions

    async def _add_rounds(self) -> None:
        with notify_outcome():
            n_more = whole_number("More rounds", self.n_more.value, 1, 100_000)
            await self._go_on(
                lambda requests, accept: requests.add_rounds(self.run_id, n_more, accept), "Rounds added."
            )

    async def _go_on(self, action: Callable[[UserRequests, bool], Awaitable[object]], success: str = "") -> None:
        """Continue the run; where its data or packages have changed, ask whether to continue with these."""
        with notify_outcome(success):
            try:
                await action(self.dashboard.requests(self.page), False)
            except ProvenanceChanged as error:
                return self._ask_to_accept(error.differences, lambda: action(self.dashboard.requests(self.page), True))
            await self._refresh()

    def _ask_to_accept(self, differences: Sequence[str], action: Callable[[], Awaitable[object]]) -> None:
        with ui.dialog(value=True).props("aria-label='Changed data or packages'") as dialog, ui.card():
            ui.label("This run began with other data or packages").classes("text-h6")
            for difference in differences:
                ui.label(difference)
            ui.label("If it continues with these, its record says so, and its results are those of no single version.")

            async def accept() -> None:
                dialog.close()
                with notify_outcome():
                    await action()
                    await self._refresh()

            with ui.row():
                ui.button("Continue with the changes", on_click=accept).props("color=negative")
                ui.button("Cancel", on_click=dialog.close).props("flat")
        dialog.on("hide", dialog.delete)

    def _choose_measure(self, by: By) -> None:
        self.by = by
        self._show_curves()

    def _show_curves(self) -> None:
        """Draw the pictures of the run, those of its classes and its algorithm included, over the chosen measure."""
        history, info = self.run_view.history, self.run_view.info
        chosen = next((metric for metric in info.metrics if metric.label == self.metric.value), info.headline)
        of_clients, on_links = clients(history, chosen), bytes_on_links(history)
        self.scores.show(scores(history, self.by, chosen), "No evaluation yet.")
        self.clients.show(of_clients and placed(of_clients, history, self.by), "No client has been evaluated yet.")
        self.bytes.show(on_links and placed(on_links, history, self.by))
        for picture in [*filter(None, [classes(history)]), *own_pictures(history)]:
            if picture.name not in self.further_panels:
                with self.further_box, card(picture.title):
                    self.further_panels[picture.name] = Panel(self.page, titled=False)
            self.further_panels[picture.name].show(placed(picture, history, self.by))

    # ---- refreshing

    async def _refresh(self) -> None:
        run_view = await self.dashboard.run_views.run(self.run_id)
        if not run_view.seats or (self.info and self.info.status != run_view.info.status):
            run_view = await self.dashboard.run_views.with_seats(self.run_id)
        self.run_view = run_view
        tracker_lines = tracked_lines(self.dashboard.cloud.results.folder(self.run_id), run_view.info.tracking)
        self.tracking.set_text("; ".join(tracker_lines))
        n_results = len(run_view.rounds) + sum(row.evaluation is not None for row in run_view.rounds)
        if run_view.info != self.info or n_results != self.n_results:
            self._show_info(run_view)
        if n_results != self.n_results:
            self.n_results = n_results
            await self._show_rounds(run_view)
        self.partition.show(partition(run_view.seats, ""), "Available once the run has started.")
        await self.events.refresh()
        await self._show_sums(run_view)

    async def _show_sums(self, run_view: RunView) -> None:
        """Show what each device and edge did, if that has changed."""
        await self.dashboard.run_views.add_final_scores(run_view)
        newest = run_view.newest.round_no if run_view.newest else None
        shown = (newest, run_view.tested, len(run_view.seats))
        if shown != self.summed:
            self.summed = shown
            self.sums.show(run_view)

    def _show_info(self, run_view: RunView) -> None:
        info = self.info = run_view.info
        is_own = self.page.viewer.may_change(info.owner)
        label, score, loss = headline_of(run_view)
        labels = [metric.label for metric in info.metrics]
        if self.metric.options != labels:
            self.metric.set_options(labels, value=labels[0])
        self.title.set_text(f"{info.name} ({info.algorithm})")
        self.status.set_text(info.status)
        self.status.props(f"color={_colour(info.status)}")
        self.reason.set_text(info.reason or "")
        self.progress.set_value(info.rounds / max(info.num_rounds, 1))
        for action, button in self.buttons.items():
            button.set_enabled(is_own and info.status in _ALLOWED_STATUSES[action])
        self.add.set_enabled(is_own)
        divisor, unit = scale("bytes", info.bytes_up + info.bytes_down)
        self.facts.clear()
        with self.facts:
            facts(
                {
                    "round": f"{info.rounds} of {info.num_rounds}",
                    label: score,
                    "loss": "-" if loss is None else f"{loss:.4g}",
                    **client_facts(run_view),
                    **({"owner": info.owner_name} if info.owner or self.page.viewer.user else {}),
                    **({"best model": str(info.best)} if info.best else {}),
                    "bytes on links": f"{(info.bytes_up + info.bytes_down) / divisor:.4g} {unit}",
                    "simulated time": f"{info.simulated_s:.4g} s",
                    "wall-clock time": f"{info.wall_s:.4g} s",
                    "model SHA-256": (info.model_sha256 or "-")[:12],
                }
            )
        self.plan.set_text("\n".join(info.plan))
        self.spec.set_text(_yaml(info))

    async def _show_rounds(self, run_view: RunView) -> None:
        self._show_curves()
        self.counts.add(run_view.visits)
        columns, self.table.rows = round_table(run_view.history, self.counts)
        self.table.columns = columns_of(columns)
        await self.timeline.show_newest(run_view)
        self._mark_round(self.timeline.shown)

    def _row_clicked(self, event: GenericEventArguments) -> None:
        self.timeline.show_round(event.args[1]["round"])
        self.timeline.scroll_to()

    def _mark_round(self, shown: int) -> None:
        """Mark the row of the round that the timeline shows."""
        for row in self.table.rows:
            row["is_shown"] = row["round"] == shown
        self.table.update()


def _yaml(info: RunInfo) -> str:
    return yaml.safe_dump(info.spec.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def _colour(status: str) -> str:
    return {"completed": "positive", "failed": "negative"}.get(status, "grey" if status in FINAL else "primary")


def headline_of(run_view: RunView) -> tuple[str, str, float | None]:
    """Name, headline score with its round, and loss of the run; until it is completed, of the newest evaluation."""
    info, word = run_view.info, run_view.info.spec.sync.round_word
    found = [(row.round_no, score) for row in run_view.rounds if (score := (row.evaluation or {}).get("global"))]
    if info.status == "completed" or not found:
        after = f" after {word} {info.rounds}" if info.status == "completed" and info.score is not None else ""
        name = f"{info.headline.label}, {info.accuracy_of}"
        return name, f"{info.headline.text(info.score)}{after}", info.loss
    round_no, score = found[-1]
    value = info.headline.text(score.value(info.headline))
    return f"{info.headline.label}, global model", f"{value} after {word} {round_no}", score.loss


def client_facts(run_view: RunView) -> dict[str, str]:
    """How the headline metric spreads over clients, by the model that each tested on its own test set."""
    info, word = run_view.info, run_view.info.spec.sync.round_word
    found = {which: (row.round_no, spread) for row in run_view.rounds for which, spread in row.clients.items()}
    if info.status == "completed":
        final = dict(info.clients)
        if final.get("own") == final.get("received"):  # the client keeps the model that it received
            final.pop("own", None)
        found |= {which: (info.rounds, spread) for which, spread in final.items()}
    facts = {}
    for which, model in MODELS.items():
        name = f"clients, {model}"
        round_no, spread = found.get(which, (0, None))
        facts[f"{name}, {word} {round_no}" if spread else name] = spread_text(spread, info.headline)
    return facts
