"""Who views the dashboard: the administrator, or a user who has logged in with their token."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from cloud_server.users.tokens import Tokens
from cloud_server.users.user import User
from shared.core.errors import Forbidden, Unauthorised
from shared.run_records.runs import owner_name

VIEWER = "strata.viewer"
"""Key of the ASGI scope: the `Viewer` who has logged in; absent where nobody needs to."""


@dataclass(frozen=True)
class Viewer:
    """The viewer of a page, which may stay open for longer than the token is valid.

    Attributes:
        user: None for the administrator.
        tokens: those that are valid.
    """

    user: User | None = None
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def name(self) -> str:
        """As what the viewer is shown."""
        return owner_name(self.user.name if self.user else None)

    def caller(self) -> str | None:
        """The user's name, None for the administrator.

        Raises:
            Unauthorised: the token was removed.
        """
        if self.user is None:
            return None
        if not self.tokens.holds(self.user):
            raise Unauthorised(f"the token of {self.user.name} has been removed: log in with another one")
        return self.user.name

    def check_admin(self) -> None:
        """Refuse users.

        Raises:
            Forbidden: the viewer is one.
        """
        if (user := self.caller()) is not None:
            raise Forbidden(f"only the administrator may do this, not the user {user}")

    def may_change(self, owner: str | None) -> bool:
        """Whether the runs of an owner are the viewer's to change."""
        return self.user is None or self.user.name == owner


def viewer_of(connection: HTTPConnection) -> Viewer:
    """The viewer of a request to the dashboard."""
    found: Viewer = connection.scope.get(VIEWER, Viewer())
    return found
