"""Checks of the answers of agents."""

from __future__ import annotations

from typing import Any

import pytest

from edge_server.rounds.reply_checks import check_sizes, check_uploads, check_visits
from shared.core.errors import WireError
from shared.core.scores import Score
from shared.federation.aggregation import PartialSum
from shared.federation.messages import Contribution, Failure, Outcome, UploadAnswer, Uploads, VisitAnswer
from shared.federation.visits.uploads import held_bytes


def outcome(seat: int, failure: Failure | None = None, kind: str = "train") -> Outcome[None]:
    return Outcome[None].model_validate({"seat": seat, "kind": kind, "failure": failure})


def single(seat: int) -> Contribution[None]:
    return Contribution[None](seat=seat, n_samples=1, update=None)


SUM_OF_TWO = PartialSum(n_updates=2, n_samples=2, means={}, each={})
FAILED = Failure(seat=1, reason="error", detail="x")
REQUESTED = {0: "train", 1: "train"}


@pytest.mark.parametrize(
    ("outcomes", "uploads", "message"),
    [
        ([outcome(0)], Uploads(), "expected the outcomes of seats"),
        ([outcome(1), outcome(0)], Uploads(), "expected the outcomes of seats"),
        ([outcome(0), outcome(0)], Uploads(), "expected the outcomes of seats"),
        ([outcome(0), outcome(1, kind="evaluate")], Uploads(), "expected the outcomes of seats"),
        ([outcome(0), outcome(1), outcome(2)], Uploads(), "expected the outcomes of seats"),
        ([outcome(0, failure=FAILED), outcome(1)], Uploads(), "reports another seat's failure"),
        ([outcome(0), outcome(1)], Uploads(contributions=(single(2),)), "the answer has those of [2]"),
        ([outcome(0), outcome(1)], Uploads(contributions=(single(0), single(0))), "some twice"),
        ([outcome(0), outcome(1, failure=FAILED)], Uploads(contributions=(single(1),)), "the answer has those of [1]"),
        ([outcome(0), outcome(1)], Uploads(partial_sum=SUM_OF_TWO), "does not name the seats"),
        ([outcome(0), outcome(1)], Uploads(partial_sum=SUM_OF_TWO, link_bytes={0: 9}), "does not name the seats"),
        ([outcome(0), outcome(1)], Uploads(link_bytes={0: 9}), "does not name the seats"),
        (
            [outcome(0), outcome(1)],
            Uploads(contributions=(single(0),), partial_sum=SUM_OF_TWO, link_bytes={0: 9, 1: 9}),
            "not both",
        ),
    ],
)
def test_an_answer_that_differs_from_the_request_is_rejected(
    outcomes: list[Outcome[None]], uploads: Uploads[None], message: str
) -> None:
    with pytest.raises(WireError) as caught:
        check_visits(VisitAnswer(outcomes=tuple(outcomes), uploads=uploads), REQUESTED, hold=False, reports=False)  # type: ignore[arg-type]
    assert message in caught.value.detail


def test_answers_that_match_the_request_pass() -> None:
    both = (outcome(0), outcome(1))
    for uploads in (
        Uploads[None](),
        Uploads(contributions=(single(1),)),
        Uploads(partial_sum=SUM_OF_TWO, link_bytes={0: 9, 1: 9}),
    ):
        check_visits(VisitAnswer(outcomes=both, uploads=uploads), REQUESTED, hold=False, reports=False)  # type: ignore[arg-type]
    check_visits(VisitAnswer(outcomes=both, uploads=Uploads()), REQUESTED, hold=True, reports=False)  # type: ignore[arg-type]
    with pytest.raises(WireError):
        check_visits(
            VisitAnswer(outcomes=both, uploads=Uploads(contributions=(single(1),))),
            REQUESTED,  # type: ignore[arg-type]
            hold=True,
            reports=False,
        )


@pytest.mark.parametrize(
    ("changes", "hold", "reports", "message"),
    [
        ({"held_bytes": 9}, False, False, "updates of seats [1] were held, but not requested"),
        ({"held_bytes": 9, "kind": "evaluate"}, True, False, "updates of seats [1] were held, but not requested"),
        ({"held_bytes": 9, "failure": FAILED}, True, False, "updates of seats [1] were held, but not requested"),
        ({"held_bytes": 9}, True, True, "reports of [] and updates of [1]"),
        ({"report": None, "held_bytes": 9}, True, False, None),
    ],
)
def test_only_successful_updates_are_held_and_reports_announce_them(
    changes: dict[str, Any], hold: bool, reports: bool, message: str | None
) -> None:
    second = outcome(1).replace(**changes)
    answer: VisitAnswer[None, None] = VisitAnswer(outcomes=(outcome(0), second), uploads=Uploads())
    requested: dict[int, Any] = {0: "train", 1: second.kind}
    if message is None:
        check_visits(answer, requested, hold=hold, reports=reports)
        return
    with pytest.raises(WireError) as caught:
        check_visits(answer, requested, hold=hold, reports=reports)
    assert message in caught.value.detail


HUGE = 10**400
"""A number beyond the range of a float, which JSON can represent."""


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(({name: HUGE}, f"outcomes.{name}") for name in ("n_samples", "n_trained", "n_steps", "held_bytes")),
        ({"train": Score(n=HUGE, n_correct=0, loss_sum=0.0)}, "outcomes.train.n"),
        ({"received": Score(n=1, n_correct=HUGE, loss_sum=0.0)}, "outcomes.received"),
        ({"own": Score(n=1, n_correct=2, loss_sum=0.0)}, "outcomes.own"),
        ({"train": Score(n=1, n_correct=0, loss_sum=-1e308)}, "outcomes.train"),
    ],
)
def test_outcomes_with_numbers_out_of_bounds_are_rejected(changes: dict[str, Any], field: str) -> None:
    """Each would fail the whole round when time, records or losses are computed from it."""
    answer: VisitAnswer[None, None] = VisitAnswer(outcomes=(outcome(0).replace(**changes),), uploads=Uploads())
    with pytest.raises(WireError) as caught:
        check_visits(answer, {0: "train"}, hold=True, reports=False)
    assert caught.value.field == field


def test_weights_out_of_bounds_are_rejected() -> None:
    heavy = single(0).replace(n_samples=HUGE)
    sums = Uploads[None](partial_sum=SUM_OF_TWO.replace(n_samples=HUGE), link_bytes={0: 9, 1: 9})
    large = Uploads[None](partial_sum=SUM_OF_TWO, link_bytes={0: 9, 1: HUGE})
    for uploads, field in (
        (Uploads[None](contributions=(heavy, single(1))), "uploads.n_samples"),
        (sums, "uploads.n_samples"),
        (large, "uploads.link_bytes"),
    ):
        with pytest.raises(WireError) as caught:
            check_uploads(UploadAnswer(uploads=uploads), [0, 1])
        assert caught.value.field == field
    with pytest.raises(WireError) as caught:
        check_uploads(UploadAnswer(uploads=Uploads(), late=(heavy,)), [], [0])
    assert caught.value.field == "late.n_samples"


@pytest.mark.parametrize(
    ("sent", "late", "is_accepted"),
    [((0,), (1,), True), ((0, 1), (), False), ((), (0, 1), False), ((1,), (0,), False), ((0,), (1, 1), False)],
)
def test_late_updates_and_only_those_come_in_the_list_of_late_ones(
    sent: tuple[int, ...], late: tuple[int, ...], is_accepted: bool
) -> None:
    uploads = Uploads[None](contributions=tuple(single(seat) for seat in sent))
    answer: UploadAnswer[None] = UploadAnswer(uploads=uploads, late=tuple(single(seat) for seat in late))
    if is_accepted:
        check_uploads(answer, [0], [1])
    else:
        with pytest.raises(WireError):
            check_uploads(answer, [0], [1])


@pytest.mark.parametrize("reports", [False, True])
def test_an_update_has_its_announced_size(reports: bool) -> None:
    """The size determines whether an update arrives in time."""
    sizes = [held_bytes(outcome(seat), single(seat), reports=reports) for seat in (0, 1)]
    announced = {seat: outcome(seat).replace(held_bytes=size) for seat, size in enumerate(sizes)}
    answer: UploadAnswer[None] = UploadAnswer(uploads=Uploads(contributions=(single(0),)), late=(single(1),))
    check_sizes(answer, announced, reports=reports)
    for seat in (0, 1):
        with pytest.raises(WireError, match=f"the update of seat {seat} has"):
            check_sizes(
                answer, {**announced, seat: announced[seat].replace(held_bytes=sizes[seat] - 1)}, reports=reports
            )


@pytest.mark.parametrize(
    ("contributions", "failures", "is_accepted"),
    [
        ((single(0), single(1)), (), True),
        ((single(0),), (FAILED,), True),
        ((single(0),), (), False),
        ((single(0), single(1), single(2)), (), False),
        ((single(0), single(1)), (FAILED,), False),
        ((single(0), single(1)), (Failure(reason="error", detail="of nobody"),), False),
    ],
)
def test_uploads_hold_each_requested_update_or_report_it_lost(
    contributions: tuple[Contribution[None], ...], failures: tuple[Failure, ...], is_accepted: bool
) -> None:
    answer: UploadAnswer[None] = UploadAnswer(uploads=Uploads(contributions=contributions), failures=failures)
    if is_accepted:
        check_uploads(answer, [0, 1])
    else:
        with pytest.raises(WireError):
            check_uploads(answer, [0, 1])
