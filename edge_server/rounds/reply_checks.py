"""Validation of an agent's answer: it must cover exactly the requested seats, each once; otherwise it is rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared.core.errors import WireError
from shared.federation.messages import Contribution, Kind, Outcome, UploadAnswer, Uploads, VisitAnswer
from shared.federation.visits.uploads import held_bytes


def check_visits(
    answer: VisitAnswer[Any, Any],
    requested: Mapping[int, Kind],
    *,
    hold: bool,
    reports: bool,
) -> None:
    """Checks that an answer holds one outcome for each visit, and updates of successful visits only.

    Args:
        answer: of the agent.
        requested: by seat, in order, the kinds of the requested visits.
        hold: whether the agent was to hold the updates.
        reports: whether a report must announce each held update.

    Raises:
        WireError: the answer covers other visits than the requested ones, or an outcome or update is not possible.
    """
    kinds = {outcome.seat: outcome.kind for outcome in answer.outcomes}
    if len(kinds) != len(answer.outcomes) or list(kinds.items()) != list(requested.items()):
        raise WireError(f"expected the outcomes of devices {dict(requested)}, the answer has {kinds}", field="outcomes")
    for outcome in answer.outcomes:
        if outcome.failure is not None and outcome.failure.seat != outcome.seat:
            raise WireError(f"device {outcome.seat} names the failure of another device", field="outcomes")
    succeeded = {outcome.seat for outcome in answer.outcomes if outcome.failure is None and outcome.kind != "evaluate"}
    held = {outcome.seat for outcome in answer.outcomes if outcome.held_bytes}
    if not held <= (succeeded if hold else set()):
        raise WireError(f"updates of devices {sorted(held)} were held, but not requested", field="outcomes.held_bytes")
    reported = {outcome.seat for outcome in answer.outcomes if outcome.report is not None}
    if hold and reports and reported != held:
        raise WireError(f"announcements of {sorted(reported)} and updates of {sorted(held)}", field="outcomes.report")
    sent = _sent(answer.uploads)
    due = [] if hold else sorted(succeeded)
    if not set(sent) <= set(due):
        raise WireError(f"expected updates from devices {due}, the answer has those of {sent}", field="uploads")


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
            f"expected updates from devices {sorted([*seats, *late])}, the answer covers {covered}", field="uploads"
        )
    if not set(apart) <= set(late) or not set(sent) <= set(seats):
        raise WireError(
            f"expected late updates from devices {list(late)}, the answer has those of {apart}", field="late"
        )


def check_size(item: Contribution[Any], outcome: Outcome[Any], *, reports: bool) -> None:
    """Checks that an update has the size that was announced, from which the edge decided whether it comes in time.

    The sizes of updates in a sum cannot be checked.

    Raises:
        WireError: it has another size.
    """
    found = held_bytes(outcome, item, reports=reports)
    if found != outcome.held_bytes:
        raise WireError(
            f"the update of device {item.seat} has {found} bytes instead of the announced {outcome.held_bytes}",
            field="uploads",
        )


def _sent(uploads: Uploads[Any]) -> list[int]:
    """The seats whose updates these are, be they single or in a sum.

    Raises:
        WireError: a seat appears twice, single updates come with a sum, or a sum does not name its seats.
    """
    singles, partial_sum = [item.seat for item in uploads.contributions], uploads.partial_sum
    summed = sorted(uploads.link_bytes)
    if singles and (partial_sum is not None or summed):
        raise WireError("updates come singly or as their sum, not both", field="uploads")
    if len(set(singles)) != len(singles):
        raise WireError(f"updates of devices {singles}, some twice", field="uploads")
    if (partial_sum.n_updates if partial_sum is not None else 0) != len(summed) or (
        partial_sum is not None and not summed
    ):
        raise WireError("a sum does not name the devices of its updates", field="uploads.link_bytes")
    return singles or summed
