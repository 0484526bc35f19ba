"""Pages of `GET /runs/{id}/rounds`."""

from __future__ import annotations

from shared.core.bounds import DETAIL_CHARS
from shared.run_records.rounds import MAX_PAGE_BYTES, RoundInfo, RoundPage
from shared.run_records.visits import FailureInfo

LOST = FailureInfo(seat=0, reason="error", detail="x" * DETAIL_CHARS)


def test_pages_are_bounded_and_hold_every_round_once() -> None:
    rounds = [RoundInfo(round_no=number, phase="train", failures=(LOST,) * 1000) for number in range(1, 31)]
    pages: list[RoundPage] = []
    skip: int | None = 0
    while skip is not None:
        page, skip = RoundPage.of(rounds, skip)
        pages.append(page)
    assert [row.round_no for page in pages for row in page.rounds] == list(range(1, 31))
    assert len(pages) > 1
    assert all(len(page.model_dump_json()) < MAX_PAGE_BYTES + 100 for page in pages)


def test_a_round_that_is_larger_than_a_page_has_one_of_its_own() -> None:
    large = RoundInfo(round_no=1, phase="train", failures=(LOST,) * 20_000)
    page, more = RoundPage.of([large, large.replace(round_no=2)])
    assert (len(page.rounds), more) == (1, 1)
    assert RoundPage.of([], 5) == (RoundPage(rounds=()), None)
