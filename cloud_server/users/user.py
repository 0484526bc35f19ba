"""A user of a cloud."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.service.api.users import UserLimits


class User(UserLimits):
    """A user, as Redis has it: name, limits, the sha256 of the token, and when that was made."""

    token_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created_at: str
