"""Checks of the answers of agents."""

from __future__ import annotations

from typing import Any

import pytest

from edge_server.rounds.reply_checks import check_size, check_uploads, check_visits
from shared.core.errors import WireError
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
        ([outcome(0)], Uploads(), "expected the outcomes of devices"),
        ([outcome(1), outcome(0)], Uploads(), "expected the outcomes of devices"),
        ([outcome(0), outcome(0)], Uploads(), "expected the outcomes of devices"),
        ([outcome(0), outcome(1, kind="evaluate")], Uploads(), "expected the outcomes of devices"),
        ([outcome(0), outcome(1), outcome(2)], Uploads(), "expected the outcomes of devices"),
        ([outcome(0, failure=FAILED), outcome(1)], Uploads(), "names the failure of another device"),
        ([outcome(0), outcome(1)], Uploads(contributions=(single(2),)), "the answer has those of [2]"),
        ([outcome(0), outcome(1)], Uploads(contributions=(single(0), single(0))), "some twice"),
        ([outcome(0), outcome(1, failure=FAILED)], Uploads(contributions=(single(1),)), "the answer has those of [1]"),
        ([outcome(0), outcome(1)], Uploads(partial_sum=SUM_OF_TWO), "does not name the devices"),
        ([outcome(0), outcome(1)], Uploads(partial_sum=SUM_OF_TWO, link_bytes={0: 9}), "does not name the devices"),
        ([outcome(0), outcome(1)], Uploads(link_bytes={0: 9}), "does not name the devices"),
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
        ({"held_bytes": 9}, False, False, "updates of devices [1] were held, but not requested"),
        ({"held_bytes": 9, "kind": "evaluate"}, True, False, "updates of devices [1] were held, but not requested"),
        ({"held_bytes": 9, "failure": FAILED}, True, False, "updates of devices [1] were held, but not requested"),
        ({"held_bytes": 9}, True, True, "announcements of [] and updates of [1]"),
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
    size = held_bytes(outcome(0), single(0), reports=reports)
    check_size(single(0), outcome(0).replace(held_bytes=size), reports=reports)
    with pytest.raises(WireError, match="the update of device 0 has"):
        check_size(single(0), outcome(0).replace(held_bytes=size - 1), reports=reports)


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
