"""Validation of an agent's answer: it must cover exactly the requested seats, each once; otherwise it is rejected."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shared.core.errors import WireError
from shared.core.scores import Score
from shared.federation.messages import Kind, Outcome, UploadAnswer, Uploads, VisitAnswer
from shared.federation.visits.uploads import held_bytes

MAX_COUNT = 2**48
"""Bounds every count, so that sums and products of counts stay within the range of a float."""
MAX_LOSS = 1e100
"""Bounds the absolute value of a sum of losses, for the same reason."""


def check_visits(
    answer: VisitAnswer[Any, Any],
    requested: Mapping[int, Kind],
    *,
    hold: bool,
    reports: bool,
    test_on: Collection[str] = (),
) -> None:
    """Checks that an answer holds one possible outcome for each visit, and updates of successful visits only.

    Args:
        answer: of the agent.
        requested: by seat, in order, the kinds of the requested visits.
        hold: whether the agent was to hold the updates.
        reports: whether a report must announce each held update.
        test_on: names of the further test sets on which a seat may have been tested.

    Raises:
        WireError: the answer covers other visits than the requested ones, or an outcome or update is not possible.
    """
    kinds = {outcome.seat: outcome.kind for outcome in answer.outcomes}
    if len(kinds) != len(answer.outcomes) or list(kinds.items()) != list(requested.items()):
        raise WireError(f"expected the outcomes of seats {dict(requested)}, the answer has {kinds}", field="outcomes")
    for outcome in answer.outcomes:
        if outcome.failure is not None and outcome.failure.seat != outcome.seat:
            raise WireError(f"seat {outcome.seat} reports another seat's failure", field="outcomes")
        _check_numbers(outcome)
        _check_tests(outcome.own_on, test_on, f"seat {outcome.seat}", "outcomes.own_on")
    succeeded = {outcome.seat for outcome in answer.outcomes if outcome.failure is None and outcome.kind != "evaluate"}
    held = {outcome.seat for outcome in answer.outcomes if outcome.held_bytes}
    if not held <= (succeeded if hold else set()):
        raise WireError(f"updates of seats {sorted(held)} were held, but not requested", field="outcomes.held_bytes")
    reported = {outcome.seat for outcome in answer.outcomes if outcome.report is not None}
    if hold and reports and reported != held:
        raise WireError(f"reports of {sorted(reported)} and updates of {sorted(held)}", field="outcomes.report")
    sent = _sent(answer.uploads)
    due = [] if hold else sorted(succeeded)
    if not set(sent) <= set(due):
        raise WireError(f"expected updates from seats {due}, the answer has those of {sent}", field="uploads")


def check_uploads(answer: UploadAnswer[Any], seats: Sequence[int], late: Sequence[int] = ()) -> None:
    """Checks that the answer holds or reports as lost exactly the requested updates, the late ones apart.

    Raises:
        WireError: an update is missing, was not requested, or is in the wrong list.
    """
    lost = [failure.seat for failure in answer.failures]
    sent, apart = _sent(answer.uploads), [item.seat for item in answer.late]
    covered = sorted([*sent, *apart, *(seat for seat in lost if seat is not None)])
    if covered != sorted([*seats, *late]) or None in lost:
        raise WireError(
            f"expected updates from seats {sorted([*seats, *late])}, the answer covers {covered}", field="uploads"
        )
    if not set(apart) <= set(late) or not set(sent) <= set(seats):
        raise WireError(f"expected late updates from seats {list(late)}, the answer has those of {apart}", field="late")
    for item in answer.late:
        _check_count(item.n_samples, "late.n_samples")


def check_sizes(answer: UploadAnswer[Any], outcomes: Mapping[int, Outcome[Any]], *, reports: bool) -> None:
    """Checks that updates have the sizes that were announced, from which the edge decided which come in time.

    The sizes of updates in a sum cannot be checked.

    Raises:
        WireError: an update has another size.
    """
    for item in (*answer.uploads.contributions, *answer.late):
        announced, found = outcomes[item.seat].held_bytes, held_bytes(outcomes[item.seat], item, reports=reports)
        if found != announced:
            raise WireError(
                f"the update of seat {item.seat} has {found} bytes instead of the announced {announced}",
                field="uploads",
            )


def _check_tests(found: Mapping[str, Score], test_on: Collection[str], subject: str, field: str) -> None:
    """Checks that further scores are possible, and on test sets of the spec.

    Raises:
        WireError: a score is not possible, or its test set is not in the spec.
    """
    for name, score in found.items():
        if name not in test_on:
            raise WireError(
                f"{subject} was tested on {name[:40]!r}, which is not in the spec's test_on {list(test_on)}",
                field=field,
            )
        _check_score(score, subject, f"{field}.{name}")


def _check_numbers(outcome: Outcome[Any]) -> None:
    """Checks that an outcome's numbers are within bounds: simulated time, records and losses are computed from them.

    Raises:
        WireError: a number is out of bounds.
    """
    for name in ("n_samples", "n_trained", "n_steps", "held_bytes"):
        _check_count(getattr(outcome, name), f"outcomes.{name}")
    for name in ("train", "received", "own"):
        score: Score | None = getattr(outcome, name)
        if score is not None:
            _check_score(score, f"seat {outcome.seat}", f"outcomes.{name}")


def _check_score(score: Score, subject: str, field: str) -> None:
    _check_count(score.n, f"{field}.n")
    if score.n_correct > score.n or abs(score.loss_sum) > MAX_LOSS:
        found = f"{min(score.n_correct, MAX_COUNT)} of {score.n} correct and a loss of {score.loss_sum:g}"
        raise WireError(f"{subject} has {found}", field=field)


def _check_count(count: int, field: str) -> None:
    if count > MAX_COUNT:
        raise WireError(f"{field}: a count beyond {MAX_COUNT}", field=field)


def _sent(uploads: Uploads[Any]) -> list[int]:
    """The seats whose updates these are, be they single or in a sum.

    Raises:
        WireError: a seat appears twice, single updates come with a sum, a sum does not name its seats, or a number is
            out of bounds.
    """
    singles, partial_sum = [item.seat for item in uploads.contributions], uploads.partial_sum
    summed = sorted(uploads.link_bytes)
    n_samples = [item.n_samples for item in uploads.contributions] + (
        [partial_sum.n_samples] if partial_sum is not None else []
    )
    _check_count(max(n_samples, default=0), "uploads.n_samples")
    _check_count(max(uploads.link_bytes.values(), default=0), "uploads.link_bytes")
    if singles and (partial_sum is not None or summed):
        raise WireError("updates come singly or as their sum, not both", field="uploads")
    if len(set(singles)) != len(singles):
        raise WireError(f"updates of seats {singles}, some twice", field="uploads")
    if (partial_sum.n_updates if partial_sum is not None else 0) != len(summed) or (
        partial_sum is not None and not summed
    ):
        raise WireError("a sum does not name the seats of its updates", field="uploads.link_bytes")
    return singles or summed
