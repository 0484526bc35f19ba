"""The state of a run after a round, and the errors of what is stored of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ValidationError

from shared.core.errors import StrataError
from shared.core.field_errors import told
from shared.core.records import Record
from shared.storage.states import Version

S = TypeVar("S")


class Checkpoint(Record, Generic[S]):
    """The state of a run after a round.

    Attributes:
        round_no: the round, 0 before the first.
        state: of the algorithm.
        bases: by seat, the version of its state after its last visit that counts.
        edge_bases: by edge, the version of its state.
        retired: seats that no longer take part, with the reason.
    """

    round_no: int
    state: S
    bases: dict[int, Version]
    edge_bases: dict[int, Version]
    retired: dict[int, str]


@dataclass(frozen=True)
class CheckpointFiles:
    """The digests of a round's files: the state, and the rows of its visits."""

    state: str
    visits: str | None


class PendingEvaluation(Record):
    """A checkpoint is still to be evaluated; `final` after the last round."""

    final: bool


class StateUnreadable(StrataError):
    """A file to which the store refers is missing or damaged."""

    code = "state_gone"


class RunUnreadable(StateUnreadable):
    """What the store holds of a run is of another version, damaged or incomplete (409); the run can be deleted."""

    status, code = 409, "unreadable"


@contextmanager
def reading(run_id: str, what: str) -> Iterator[None]:
    """Turns errors of decoding what is stored of a run into `RunUnreadable`."""
    try:
        yield
    except ValidationError as error:
        raise _unreadable(run_id, what, told(error)) from None
    except (json.JSONDecodeError, LookupError, TypeError) as error:
        raise _unreadable(run_id, what, repr(error)) from None


def _unreadable(run_id: str, what: str, why: str) -> RunUnreadable:
    return RunUnreadable(f"{what} of run {run_id} cannot be read, it may be of another version: {why}"[:1000])
