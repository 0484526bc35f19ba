"""The timeline of a round on a run's page: a slider over rounds, pages of devices, and what decided the round's end."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from cloud_server.dashboard.layout import Page, Panel
from cloud_server.dashboard.run_views import RunView
from cloud_server.runs.repository import RunRepository
from shared.plots.timeline import LATER, RoundTimeline
from shared.run_records.rounds import RoundDetail

SEATS_A_PAGE = 25
"""Devices that the timeline shows at a time."""


class TimelineCard:
    """The timeline of one round of a run.

    Args:
        page: on which it is.
        repository: of the runs.
        run_view: the run; a newer view is given to `show_newest`.
        on_round: called with the number of the round that the viewer has chosen.
    """

    def __init__(
        self, page: Page, repository: RunRepository, run_view: RunView, on_round: Callable[[int], None]
    ) -> None:
        self._repository, self._run_view, self._on_round = repository, run_view, on_round
        self._timeline: RoundTimeline | None = None
        self._follows_newest = True
        with ui.row().classes("items-center w-full"):
            with ui.row().classes("items-center grow no-wrap").style("min-width: 14rem"):
                self._back = self._step("chevron_left", "Previous", -1)
                self._slider = ui.slider(min=1, max=1, value=1, on_change=self._round_chosen).classes("grow")
                self._slider.props(f'label aria-label="{self._word.capitalize()}"')
                self._on = self._step("chevron_right", "Next", 1)
            self._number = ui.number(self._word.capitalize(), value=1, min=1, on_change=self._number_typed)
            self._number.props("dense").style("width: 5rem")
            self._label = ui.label().style("white-space: nowrap")
        with ui.row().classes("items-center w-full"):
            self._decider = ui.label().classes("grow")
            self._slowest_first = ui.switch("Slowest first", on_change=self._draw)
            self._pages = ui.pagination(1, 1, value=1, direction_links=True, on_change=self._draw)
            self._pages.props('max-pages=5 aria-label="Pages of devices"')
        self._panel = Panel(page, titled=False)

    @property
    def _word(self) -> str:
        return self._run_view.info.spec.sync.round_word

    def _step(self, icon: str, which: str, by: int) -> ui.button:
        button = ui.button(icon=icon, on_click=lambda: self.show_round(self.shown + by))
        return button.props(f'flat round dense aria-label="{which} {self._word}"')

    @property
    def _newest(self) -> int:
        """The number of the newest round; 0 without one."""
        return self._run_view.newest.round_no if self._run_view.newest else 0

    @property
    def shown(self) -> int:
        """The number of the round that is shown."""
        return int(self._slider.value)

    def scroll_to(self) -> None:
        """Bring the timeline into the window."""
        ui.run_javascript(f"getHtmlElement({self._slider.id}).scrollIntoView({{block: 'center'}})")

    def show_round(self, number: int) -> None:
        """Show a round of the run."""
        self._slider.set_value(min(max(number, 1), max(self._newest, 1)))

    def _number_typed(self) -> None:
        """Show the round that is in the field, if there is one."""
        number = self._number.value
        if number is not None and number == int(number) and 1 <= number <= self._newest:
            self.show_round(int(number))

    async def show_newest(self, run_view: RunView) -> None:
        """Draw the chosen round, or the newest one if that was shown until now."""
        self._run_view = run_view
        self._number.max = most = max(self._newest, 1)
        self._slider.props(f"max={most}")
        if self._follows_newest:
            self.show_round(self._newest)
        await self._show()

    async def _round_chosen(self) -> None:
        """Show the chosen round; if it is the newest, the slider follows new rounds."""
        self._follows_newest = self.shown >= self._newest
        await self._show()
        self._on_round(self.shown)

    async def _show(self) -> None:
        newest, number = self._run_view.newest, self.shown
        self._number.set_value(number)
        self._back.set_enabled(number > 1)
        self._on.set_enabled(number < self._newest)
        if newest is None:
            self._timeline = None
        elif self._timeline is None or self._timeline.row.round_no != number or self._word == "version":
            is_newest = newest.round_no == number
            row = newest if is_newest else await self._repository.round(self._run_view.info.run, number)
            spec = self._run_view.info.spec
            limits = (spec.round_deadline_s, spec.report_deadline_s)
            placed = {seat.seat: seat for seat in self._run_view.seats}
            timeline = RoundTimeline(row, await self._later(number), self._word, *limits, placed)
            if number != self.shown:  # another round was chosen meanwhile
                return
            self._timeline = timeline
        self._draw()

    async def _later(self, number: int) -> list[RoundDetail]:
        """The versions after one, in which visits ended that were in flight; none where tiers wait for all."""
        newest = self._run_view.newest
        if newest is None or self._word == "round":
            return []
        following = range(number + 1, min(number + LATER, newest.round_no) + 1)
        return [detail async for detail in self._repository.details(self._run_view.info.run, following)]

    def _draw(self) -> None:
        """Draw the chosen page."""
        shown = self._timeline
        if shown is None:
            self._panel.show(None, "No training round has been completed yet.")
            return
        n_seats, number = len(shown.seats()), shown.row.round_no
        n_pages = max(-(-n_seats // SEATS_A_PAGE), 1)
        self._pages.max = n_pages
        self._pages.set_visibility(n_pages > 1)
        first = (min(self._pages.value or 1, n_pages) - 1) * SEATS_A_PAGE
        self._label.set_text(f"{self._word} {number}, {shown.row.simulated_s:.4g} s")
        devices = f"Devices {first + 1} to {min(first + SEATS_A_PAGE, n_seats)} of {n_seats}. " if n_pages > 1 else ""
        self._decider.set_text(devices + (shown.decider.text if shown.decider else ""))
        title = f"{self._word.capitalize()} {number}"
        picture = shown.picture(title, slowest_first=bool(self._slowest_first.value), first=first, most=SEATS_A_PAGE)
        self._panel.show(picture, f"No task of this {self._word} took any time.")
