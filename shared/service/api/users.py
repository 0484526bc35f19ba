"""The bodies of `/tokens`: the users of a cloud, their limits, and what they use."""

from __future__ import annotations

from shared.core.bounds import Count
from shared.core.records import Record
from shared.core.validation import Id


class UserLimits(Record):
    """A user's name and limits; without one of its own the cloud's setting holds.

    Attributes:
        max_runs: runs of the user's that have not ended, at a time.
        max_bytes: bytes in the results folders of the user's runs, above which no further run begins.
    """

    name: Id
    max_runs: Count | None = None
    max_bytes: Count | None = None


class NewToken(UserLimits):
    """Body of `POST /tokens`."""


class TokenAnswer(Record):
    """Answer to `POST /tokens`: the token, which is shown this once."""

    name: Id
    token: str


class UserInfo(UserLimits):
    """A user with the limits that hold, None for none.

    Attributes:
        created_at: when the token was made.
        n_runs: runs of the user's that have not ended.
        n_bytes: bytes in the results folders of the user's runs.
    """

    created_at: str
    n_runs: int
    n_bytes: int


class UserPage(Record):
    """`GET /tokens`: by name; users see themselves alone."""

    users: tuple[UserInfo, ...]
