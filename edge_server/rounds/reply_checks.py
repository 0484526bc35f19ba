"""What an agent may answer. It speaks of the seats that it was asked for, each once; else nothing of it counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shared.core.errors import WireError
from shared.core.scores import Score
from shared.federation.messages import Kind, Outcome, UploadAnswer, Uploads, VisitAnswer
from shared.federation.visits.uploads import held_bytes

MOST = 2**48
"""No count is larger: in sums and products with such as these a float still has room."""
MOST_LOSS = 1e100
"""The same of a sum of losses, on both sides of 0."""


def check_visits(
    answer: VisitAnswer[Any, Any],
    asked: Mapping[int, Kind],
    *,
    hold: bool,
    reports: bool,
    test_on: Collection[str] = (),
) -> None:
    """See that an answer holds one outcome for each visit, in numbers that can be, and updates of those that succeeded.

    Args:
        answer: of the agent.
        asked: by seat, in order, what it was to do.
        hold: whether updates were to be kept back.
        reports: whether each of these is announced by a report.
        test_on: names of the further test sets on which a seat may have been tested.

    Raises:
        WireError: it does not.
    """
    kinds = {outcome.seat: outcome.kind for outcome in answer.outcomes}
    if len(kinds) != len(answer.outcomes) or list(kinds.items()) != list(asked.items()):
        raise WireError(f"the answer speaks of {kinds}, asked was {dict(asked)}", field="outcomes")
    for outcome in answer.outcomes:
        if outcome.failure is not None and outcome.failure.seat != outcome.seat:
            raise WireError(f"seat {outcome.seat} answers with the failure of another", field="outcomes")
        _check_numbers(outcome)
        _check_tests(outcome.own_on, test_on, f"seat {outcome.seat}", "outcomes.own_on")
    sound = {outcome.seat for outcome in answer.outcomes if outcome.failure is None and outcome.kind != "evaluate"}
    held = {outcome.seat for outcome in answer.outcomes if outcome.held_bytes}
    if not held <= (sound if hold else set()):
        raise WireError(f"updates of seats {sorted(held)} are held back", field="outcomes.held_bytes")
    told = {outcome.seat for outcome in answer.outcomes if outcome.report is not None}
    if hold and reports and told != held:
        raise WireError(f"reports of {sorted(told)} and updates of {sorted(held)}", field="outcomes.report")
    sent = _sent(answer.uploads)
    if not set(sent) <= (set() if hold else sound):
        raise WireError(f"the answer brings updates of seats {sent}, due were {sorted(sound)}", field="uploads")


def check_uploads(answer: UploadAnswer[Any], seats: Sequence[int], late: Sequence[int] = ()) -> None:
    """See that each update that was asked for is there, or said to be lost; late ones apart from the others.

    Raises:
        WireError: one is neither, or one was not asked for, or it comes in the place of another kind.
    """
    lost = [failure.seat for failure in answer.failures]
    sent, apart = _sent(answer.uploads), [item.seat for item in answer.late]
    told = sorted([*sent, *apart, *(seat for seat in lost if seat is not None)])
    if told != sorted([*seats, *late]) or None in lost:
        raise WireError(f"the answer speaks of seats {told}, asked were {sorted([*seats, *late])}", field="uploads")
    if not set(apart) <= set(late) or not set(sent) <= set(seats):
        raise WireError(f"seats {apart} answer as late ones, asked so were {list(late)}", field="late")
    for item in answer.late:
        _check_count(item.n_samples, "late.n_samples")


def check_sizes(answer: UploadAnswer[Any], outcomes: Mapping[int, Outcome[Any]], *, reports: bool) -> None:
    """See that updates are as large as was said, by which it was decided whose come in time; a sum does not tell.

    Raises:
        WireError: one is not.
    """
    for item in (*answer.uploads.contributions, *answer.late):
        said, found = outcomes[item.seat].held_bytes, held_bytes(outcomes[item.seat], item, reports=reports)
        if found != said:
            raise WireError(f"the update of seat {item.seat} has {found} bytes, not the {said} said", field="uploads")


def _check_tests(found: Mapping[str, Score], test_on: Collection[str], who: str, field: str) -> None:
    """See that further scores are of the spec's test sets, in numbers that can be.

    Raises:
        WireError: one is not.
    """
    for name, score in found.items():
        if name not in test_on:
            raise WireError(f"{who} was tested on {name[:40]!r}, which is none of {list(test_on)}", field=field)
        _check_score(score, who, f"{field}.{name}")


def _check_numbers(outcome: Outcome[Any]) -> None:
    """See that an outcome's numbers can be counted with: simulated time, records and losses are made of them.

    Raises:
        WireError: one is beyond all bounds.
    """
    for name in ("n_samples", "n_trained", "n_steps", "held_bytes"):
        _check_count(getattr(outcome, name), f"outcomes.{name}")
    for name in ("train", "received", "own"):
        score: Score | None = getattr(outcome, name)
        if score is not None:
            _check_score(score, f"seat {outcome.seat}", f"outcomes.{name}")


def _check_score(score: Score, who: str, field: str) -> None:
    _check_count(score.n, f"{field}.n")
    if score.n_correct > score.n or abs(score.loss_sum) > MOST_LOSS:
        told = f"{min(score.n_correct, MOST)} of {score.n} correct and a loss of {score.loss_sum:g}"
        raise WireError(f"{who} has {told}", field=field)


def _check_count(count: int, field: str) -> None:
    if count > MOST:
        raise WireError(f"{field}: a count beyond {MOST}", field=field)


def _sent(uploads: Uploads[Any]) -> list[int]:
    """Whose updates these are: singles, or those in a sum.

    Raises:
        WireError: a seat is there twice, or it is both at once, or a sum does not say whose updates it holds, or a
            number is beyond all bounds.
    """
    singles, folded = [item.seat for item in uploads.contributions], uploads.partial_sum
    summed = sorted(uploads.link_bytes)
    n_samples = [item.n_samples for item in uploads.contributions] + ([folded.n_samples] if folded is not None else [])
    _check_count(max(n_samples, default=0), "uploads.n_samples")
    _check_count(max(uploads.link_bytes.values(), default=0), "uploads.link_bytes")
    if singles and (folded is not None or summed):
        raise WireError("updates come singly or as their sum, not both", field="uploads")
    if len(set(singles)) != len(singles):
        raise WireError(f"updates of seats {singles}, some twice", field="uploads")
    if (folded.n_updates if folded is not None else 0) != len(summed) or (folded is not None and not summed):
        raise WireError("a sum does not say whose updates it holds", field="uploads.link_bytes")
    return singles or summed
