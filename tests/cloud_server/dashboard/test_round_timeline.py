"""The timeline of a round on a run's page: it shows the round that was chosen last."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from nicegui import Client, ui

from cloud_server.dashboard.layout import Page
from cloud_server.dashboard.round_timeline import TimelineCard
from cloud_server.dashboard.run_views import RunView
from shared.run_records.rounds import RoundDetail
from tests.strata.samples import a_round, a_run


class Repository:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()

    async def round(self, _: str, number: int) -> RoundDetail:
        await self.answer.wait()
        return a_round(number)


async def test_a_late_answer_does_not_replace_the_round_chosen_after_it() -> None:
    repository, run_view, marked = Repository(), RunView(a_run()), list[int]()
    with Client(ui.page("")):
        page = Page(ui.label(), ui.element(), ui.element())
        card = TimelineCard(page, cast("Any", repository), run_view, marked.append)
        for number in (1, 2, 3):
            run_view.add_round(a_round(number))
        await card.show_newest(run_view)
        card._slider.value = 2
        older = asyncio.create_task(card._round_chosen())
        await asyncio.sleep(0)
        card._slider.value = 3
        await card._round_chosen()
        repository.answer.set()
        await older
        assert card._timeline is not None
        assert (card.shown, card._timeline.row.round_no) == (3, 3)
        card._number.value = 99
        card._number.sanitize()  # as when the field loses the focus
        assert card._number.value == 3
