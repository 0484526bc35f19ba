"""What was removed of runs, or would be: their records are gone with them."""

from __future__ import annotations

from typing import Annotated

from shared.core.bounds import RunReason
from shared.core.records import LEFT_OUT, Record
from shared.core.validation import Id


class Removal(Record):
    """A run that is removed, with its results folder.

    Attributes:
        owner: as of the run.
        ended_at: when it ended.
        n_bytes: of its results folder.
        model_sha256: the digest of its last global model, by which a repetition can be compared.
        reason: why it is removed.
    """

    run: Id
    name: str
    owner: Annotated[Id | None, LEFT_OUT] = None
    status: str
    ended_at: str
    n_bytes: int
    model_sha256: str | None = None
    reason: RunReason


class Removals(Record):
    """`GET /removals` (what would be removed now) and `POST /removals` (what was): in that order."""

    runs: tuple[Removal, ...]
