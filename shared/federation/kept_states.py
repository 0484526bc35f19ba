"""How long the states of clients are kept: until no repetition can begin from them.

A visit begins from the state that the client's last visit has left. After a crash, a round is repeated from the last
commit of the cloud, so the states which counted then are needed too. An order to clients that have visited the edge
since says from where: in a header, because the length of its body must not depend on commits.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.core.errors import WireError
from shared.storage.states import Version

KEEP_FROM_HEADER = "strata-keep-from"
"""The text of the oldest version from which a repetition may begin; absent if the order begins from it."""


def oldest_needed(committed: Mapping[int, Version], now: Mapping[int, Version | None]) -> Version | None:
    """The oldest version from which a repetition may begin.

    Args:
        committed: by number, the versions that counted at the last commit.
        now: those from which an order begins.

    Returns:
        None if a repetition begins from the same versions as the order.
    """
    newer = (number for number, version in now.items() if version != committed.get(number))
    return min((committed.get(number, Version(0)) for number in newer), default=None)


def keep_from_headers(version: Version | None) -> dict[str, str]:
    """The headers of an order that say from which version states are kept."""
    return {} if version is None else {KEEP_FROM_HEADER: version.text}


def read_keep_from(headers: Mapping[str, str]) -> Version | None:
    """What such headers say.

    Raises:
        WireError: the text is no version.
    """
    text = headers.get(KEEP_FROM_HEADER)
    if text is None:
        return None
    try:
        return Version.parse(text)
    except ValueError as error:
        raise WireError(str(error), field=KEEP_FROM_HEADER) from None
